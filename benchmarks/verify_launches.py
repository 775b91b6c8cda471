"""Kernel launches and waits of one field check on CuPy, the mean over the structures of each workload.

The counts need no GPU: NumPy arrays replace those of CuPy (small instances: the counts do not depend on sizes). Needs g++
and the test group; run it from the repository root: `python -m benchmarks.verify_launches [WORKLOAD…]`.
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
from mirage_eg.search.structure_search import search
from mirage_eg.verify.reference import Reference
from property_tests.support.fake_launches import LAUNCHES, CountingCupy

SINGLE = ("rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans", "mha", "mqa")


def count(workload: str, xp: CountingCupy) -> tuple[int, Counter[str]]:
    """The number of structures and the launches of all their checks, after the random inputs and tables are computed."""
    primitive = expand(WORKLOADS[workload](1))
    axes = infer_axes(primitive)
    examples = [
        small_instance(structure, primitive, axes) for structure in search(primitive, axes, load_rules("indexed")).structures
    ]
    examples = examples[:: max(1, len(examples) // 16)]
    references = {program: Reference(program, xp=xp) for program, _ in examples}
    for program, graph in examples:
        assert references[program].check(graph).equal
    LAUNCHES.clear()
    for program, graph in examples:
        references[program].check(graph)
    return len(examples), Counter(LAUNCHES)


if __name__ == "__main__":
    table = Table("workload", "structures", "launches", "of which own kernels", "waits", "most frequent")
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
