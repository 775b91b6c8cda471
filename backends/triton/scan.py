"""The kernel of a cumulative sum: a program walks a row, and adds the sum of what it passed to each part.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from mirage_eg.backends.launches.generated_ops import Scan, scans
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.ir.graph import Graph

_PART = 2048  # elements of a row at once


def write_scan(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a cumulative sum, and its launch."""
    [scan] = (it for it in scans(file.graph) if it.nodes == launch.nodes)
    lead, widths = file.types[scan.value].shape[:-1], [file.types[it].shape[-1] for it in (*scan.operands, scan.value)]
    items = [file.graph.nodes[position] for position in scan.prologue]
    helpers = [name for item in items for name, _ in ELEMENTWISE[item.op].helpers]
    write_generated_kernel(file, launch, prod(lead), partial(_body, scan, widths, [*_addend(file.graph, scan)]), helpers)


def _addend(graph: Graph, scan: Scan) -> Iterator[str]:
    """The lines that compute the addend of each element of the sources."""
    name = {value: f"x{number}" for number, value in enumerate(scan.sources)}
    made = {graph.makers[value]: value for value in range(len(graph.types))}
    for number, position in enumerate(scan.prologue):
        item = graph.nodes[position]
        written = ELEMENTWISE[item.op].triton([name[it] for it in item.operands], item.mapping)
        name[made[position]] = f"v{number}"
        yield f"v{number} = {written}"


def _body(scan: Scan, widths: Sequence[int], addend: Sequence[str], *pointers: str) -> Iterator[str]:
    """The lines of the kernel; `widths` are those of the rows of the operands and of the result."""
    sources, before = len(scan.sources), widths[-2] if scan.first is not None else 0
    width = widths[-1] - before
    part = min(_PART, power_of_two(width))
    count, mask = -(-width // part), "" if width % part == 0 else f", mask=at < {width}"
    yield from (f"row{number} = {pointers[number]} + program * {widths[0]} + {scan.start}" for number in range(sources))
    yield f"y = {pointers[-1]} + program * {widths[-1]} + {before}"
    yield f"i = tl.arange(0, {part})"
    for start in range(0, before, part):
        inside = f"i < {before - start}"
        yield f"first = tl.load({pointers[-2]} + program * {before} + {start} + i, mask={inside})"
        yield f"tl.store(y - {before - start} + i, first, mask={inside})"
    yield "passed = 0.0"
    yield f"for step in range({count}):"
    yield f"    at = {f'({count - 1} - step)' if scan.is_reversed else 'step'} * {part} + i"
    other = ", other=0.0" if mask else ""
    yield from (f"    x{number} = tl.load(row{number} + at{mask}{other}).to(tl.float32)" for number in range(sources))
    yield from (f"    {line}" for line in addend)
    block = f"v{len(addend) - 1}" if addend else "x0"
    if mask and addend:  # zeros beyond the row may give other numbers
        yield f"    {block} = tl.where(at < {width}, {block}, 0.0)"
    yield f"    sums = tl.cumsum({block}, 0{', reverse=True' if scan.is_reversed else ''}) + passed"
    yield f"    tl.store(y + at, sums{mask})"
    yield f"    passed += tl.sum({block}, 0)"
