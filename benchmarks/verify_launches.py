"""How many kernels one field check launches on CuPy, and how often it waits, on average over each workload's structures.

Counted without a GPU, on arrays of NumPy that stand for CuPy's (small instances: the number does not depend on sizes). Needs
g++ and the test group; run it from the repository root: `python -m benchmarks.verify_launches [WORKLOAD…]`.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.table import Table

from mirage_eg.cli.terminal import console
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.search import search
from mirage_eg.verify.reference import Reference
from property_tests.support.fake_launches import LAUNCHES, CountingCupy

SINGLE = ("rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans", "mha", "mqa")


def count(workload: str, xp: CountingCupy) -> tuple[int, Counter[str]]:
    """The structures, and the launches of the checks of all of them, draws and tables made before."""
    primitive = expand(WORKLOADS[workload](1))
    axes = infer_axes(primitive)
    examples = [small_instance(found, primitive, axes) for found in search(primitive, axes, load_rules("indexed")).structures]
    examples = examples[:: max(1, len(examples) // 16)]
    references = {program: Reference(program, xp=xp) for program, _ in examples}
    for program, graph in examples:
        assert references[program].check(graph).equal
    LAUNCHES.clear()
    for program, graph in examples:
        references[program].check(graph)
    return len(examples), Counter(LAUNCHES)


if __name__ == "__main__":
    table = Table("workload", "structures", "launches", "of them kernels of ours", "waits", "most frequent")
    with tempfile.TemporaryDirectory() as folder:
        xp = CountingCupy(Path(folder))
        for workload in sys.argv[1:] or SINGLE:
            structures, launches = count(workload, xp)
            waits = launches.pop("wait", 0)
            ours = sum(number for name, number in launches.items() if name.startswith("mirage_"))
            frequent = ", ".join(f"{name} {number / structures:.1f}" for name, number in launches.most_common(5))
            cells = (launches.total() / structures, ours / structures, waits / structures)
            table.add_row(workload, str(structures), *(f"{cell:.1f}" for cell in cells), frequent)
    console().print(table)
