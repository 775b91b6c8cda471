"""The kernel of a cumulative sum: a program walks a row, and adds the sum of what it passed to each part.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator
from math import prod

from mirage_eg.backends.launches.generated_ops import scans
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two

_PART = 2048  # elements of a row at once


def write_scan(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a cumulative sum, and its launch."""
    [scan] = (it for it in scans(file.graph) if it.nodes == launch.nodes)
    *lead, width = file.types[scan.value].shape

    def body(program: str, x: str, y: str) -> list[str]:
        return [*_body(program, x, y, width, scan.is_reversed)]

    write_generated_kernel(file, launch, prod(lead), body)


def _body(program: str, x: str, y: str, width: int, is_reversed: bool) -> Iterator[str]:
    part = min(_PART, power_of_two(width))
    count, mask = -(-width // part), "" if width % part == 0 else f", mask=at < {width}"
    yield f"row = {program} * {width}"
    yield f"i = tl.arange(0, {part})"
    yield "passed = 0.0"
    yield f"for step in range({count}):"
    yield f"    at = {f'({count - 1} - step)' if is_reversed else 'step'} * {part} + i"
    yield f"    block = tl.load({x} + row + at{mask}{', other=0.0' if mask else ''}).to(tl.float32)"
    yield f"    sums = tl.cumsum(block, 0{', reverse=True' if is_reversed else ''}) + passed"
    yield f"    tl.store({y} + row + at, sums{mask})"
    yield "    passed += tl.sum(block, 0)"
