"""Execute the notebooks in place: `python notebooks/build.py [NOTEBOOK…]`; needs nbclient and ipykernel (group `test`).

With --check nothing is written: each cell whose committed outputs are older than the code is named, and the exit code is 1.

What changes from run to run (times of execution, the plain text of what is drawn, how printed text came in pieces) is not kept,
so a second run changes no byte.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 240  # for one cell


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook run from start to end in a fresh kernel, in an empty folder; raises what a cell raises."""
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False)
    with tempfile.TemporaryDirectory() as folder:  # a notebook runs from any folder
        client.execute(cwd=folder)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _settled(cell.outputs)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _settled(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs with printed text in one piece and no plain text beside a picture or page."""
    settled: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = settled[-1] if settled else None
        if output.output_type == "stream" and last is not None and last.output_type == "stream" and last.name == output.name:
            last.text += output.text
            continue
        if len(output.get("data", {})) > 1:
            output.data.pop("text/plain", None)
        settled.append(output)
    return settled


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook as committed."""
    return nbformat.read(path, as_version=4)


def stale(committed: nbformat.NotebookNode, ran: nbformat.NotebookNode) -> Iterator[str]:
    """The cells whose committed outputs differ from those of a run; what Triton's compiler says depends on its version."""
    pairs = [cells for cells in zip(committed.cells, ran.cells, strict=True) if cells[0].cell_type == "code"]
    for number, (old, new) in enumerate(pairs, 1):
        if _compared(old) != _compared(new):
            yield f"cell [{number}]: {old.source.splitlines()[-1][:80]}"


def _compared(cell: nbformat.NotebookNode) -> list[str]:
    shown = [
        "".join(output.get("text", "")) + "".join(entry for _, entry in sorted(output.get("data", {}).items()))
        for output in cell.outputs
    ]
    return [re.sub(r"\d+", "n", text) if "registers a thread" in text else without_times(text) for text in shown]


def without_times(text: str) -> str:
    """HTML without the cells of columns of milliseconds: the head is `ms`."""

    def untimed(table: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]*>", "", head).strip() for head in re.findall(r"(?s)<th[^>]*>(.*?)</th>", table[0])]
        timed = [place for place, head in enumerate(heads) if head == "ms"]

        def row(found: re.Match[str]) -> str:
            cells = re.findall(r"(?s)<td[^>]*>.*?</td>", found[0])
            return "".join(cell for place, cell in enumerate(cells) if place not in timed) if cells else found[0]

        return re.sub(r"(?s)<tr[^>]*>.*?</tr>", row, table[0]) if timed else table[0]

    return re.sub(r"(?s)<table[^>]*>.*?</table>", untimed, text)


def main(arguments: list[str]) -> int:
    """Execute all notebooks, or those named."""
    names = [name for name in arguments if name != "--check"]
    found = 0
    for path in [Path(name) for name in names] or sorted(HERE.glob("*.ipynb")):
        notebook = execute(path)
        if "--check" in arguments:
            for cell in stale(read(path), notebook):
                print(f"{path}: {cell}: its outputs are older than the code")
                found += 1
            continue
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
