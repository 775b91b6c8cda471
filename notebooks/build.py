"""Execute the notebooks in place: `python notebooks/build.py [NOTEBOOK…]`; needs nbclient and ipykernel (group `test`).

What changes from run to run (times of execution, the plain text of what is drawn, how printed text came in pieces) is not kept,
so a second run changes no byte.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 240  # for one cell


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook run from start to end in a fresh kernel; raises what a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(HERE.parent))
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


def main(names: list[str]) -> None:
    """Execute all notebooks, or those named."""
    for path in [Path(name) for name in names] or sorted(HERE.glob("*.ipynb")):
        notebook = execute(path)
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
