"""The pages of docs/, README and CONTRIBUTING as the tests read them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "rules" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
GIVEN = {  # files that a page speaks of and does not show
    "my_layer.py": "import mirage_eg as mi\n\ndef program():\n    graph = mi.new_kernel_graph()\n"
    '    x, w = graph.new_input((16, 64), name="X"), graph.new_input((64, 32), name="W")\n'
    "    graph.mark_output(graph.relu(graph.matmul(x, w)))\n    return graph\n"
}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: the language and the text."""
    lines, found = read(name).splitlines(), list[tuple[str, str]]()
    inside: list[str] | None = None
    for line in lines:
        if not line.startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside, language = [], line[3:]
        else:
            found.append((language, "\n".join(inside)))
            inside = None
    assert inside is None, f"{name}: a block has no end"
    return found
