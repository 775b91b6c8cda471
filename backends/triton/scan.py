"""The kernel of a cumulative sum: a program walks a row, and adds the sum of what it passed to each part.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator, Sequence
from math import prod

from mirage_eg.backends.launches.generated_ops import Scan, scans
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two

_PART = 2048  # elements of a row at once


def write_scan(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a cumulative sum, and its launch."""
    [scan] = (it for it in scans(file.graph) if it.nodes == launch.nodes)
    lead, widths = file.types[scan.value].shape[:-1], [file.types[it].shape[-1] for it in (*scan.operands, scan.value)]

    def body(program: str, x: str, *others: str) -> list[str]:
        return [*_body(scan, widths, program, x, *others)]

    write_generated_kernel(file, launch, prod(lead), body)


def _body(scan: Scan, widths: Sequence[int], program: str, x: str, *others: str) -> Iterator[str]:
    """The lines of the kernel; `widths` are those of the rows of the operands and of the result."""
    before = widths[1] if scan.first is not None else 0
    width = widths[-1] - before
    part = min(_PART, power_of_two(width))
    count, mask = -(-width // part), "" if width % part == 0 else f", mask=at < {width}"
    yield f"program = {program}"
    yield f"x = {x} + program * {widths[0]} + {scan.start}"
    yield f"y = {others[-1]} + program * {widths[-1]} + {before}"
    yield f"i = tl.arange(0, {part})"
    for start in range(0, before, part):
        inside = f"i < {before - start}"
        yield f"first = tl.load({others[0]} + program * {before} + {start} + i, mask={inside})"
        yield f"tl.store(y - {before - start} + i, first, mask={inside})"
    yield "passed = 0.0"
    yield f"for step in range({count}):"
    yield f"    at = {f'({count - 1} - step)' if scan.is_reversed else 'step'} * {part} + i"
    yield f"    block = tl.load(x + at{mask}{', other=0.0' if mask else ''}).to(tl.float32)"
    yield f"    sums = tl.cumsum(block, 0{', reverse=True' if scan.is_reversed else ''}) + passed"
    yield f"    tl.store(y + at, sums{mask})"
    yield "    passed += tl.sum(block, 0)"
