"""Hooks of mkdocs: the notebooks as pages, and figures inline, so that they scroll on a narrow page and follow its colours.

The pages of the notebooks have the committed outputs; `notebooks/build.py` executes the notebooks.
"""

import json
import re
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
NOTEBOOKS = DOCS.parent / "notebooks"
_FIGURE = re.compile(r'<p><img alt="([^"]*)" src="([^"]+\.svg)" ?/?></p>')


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, and the notebook itself for download."""
    from mkdocs.structure.files import File

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Figures of our own as elements of the page; others as images on a white ground. All scroll where the page is narrow."""
    folder = (DOCS / page.file.src_uri).parent

    def inline(match: re.Match[str]) -> str:
        words, source = match.groups()
        path = DOCS / re.sub(r"^(\.\./)*", "", source)
        text = path.read_text(encoding="utf-8") if path.is_file() else (folder / source).read_text(encoding="utf-8")
        if 'class="mg-' not in text:
            return f'<div class="figure plain"><img alt="{words}" src="{source}"></div>'
        return f'<div class="figure" role="figure" aria-label="{words}">{text}</div>'

    return _FIGURE.sub(inline, html)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: text, code, and the committed outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [f"[Download this notebook]({path.name})"]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _shown(output))]
    first = next((index for index, part in enumerate(parts) if part.startswith("# ")), None)
    if first is not None:  # the title comes first
        parts.insert(0, parts.pop(first))
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """An output as a block of HTML, which Markdown leaves alone: no blank lines."""
    data = output.get("data", {})
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            text = re.sub(r"\n\s*\n", "\n", re.sub(r"<\?xml[^>]*\?>|<!DOCTYPE[^>]*>", "", "".join(data[kind])))
            return f'<div class="figure output">\n{text.strip()}\n</div>'
    text = "".join(output.get("text", "")) or "".join(data.get("text/plain", ""))
    return f'<pre class="output">{escape(text.rstrip()).replace(chr(10), "&#10;")}</pre>' if text.strip() else ""
