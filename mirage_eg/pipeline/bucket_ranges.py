"""The buckets of named dims: their ranges of sizes, and the sizes at which structures are searched."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from mirage_eg.backends.triton.kernel_binaries import ALIGNMENT
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import Dim, SizeRange

TOPS = (16, 32, 64, 128, 256)  # the largest sizes of buckets, where the caller names none
SEARCHED_BEFORE = 16  # likewise of the dims before the last one: the tests of 256 × 256 take several times as long
SEARCHED = 256  # the search is done at sizes up to this: loops are worth while, and its tests take seconds


def largest_sizes(dims: Mapping[str, Dim], sizes: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """The largest sizes of the buckets of each dim: those named in `sizes`, else `TOPS`.

    Raises:
        OptionError: a size of an unknown name.
        GraphError: a size outside the range of its dim.
    """
    if not dims:
        raise OptionError(
            "sizes: got a program without named dims, wanted one with a Dim: new_input((Dim('n', max=8192), 4096))"
        )
    if isinstance(sizes, Mapping) or not all(isinstance(each, Mapping) for each in sizes):
        raise OptionError(f"sizes: got {sizes!r}, wanted a list of dictionaries, such as [{{{min(dims)!r}: 16}}]")
    for each in sizes:
        if unknown := set(each) - set(dims):
            raise OptionError(f"sizes: got unknown name {min(unknown)!r}, wanted one of {', '.join(dims)}")
        for key, size in each.items():
            dims[key].check(size)
    tops = {}
    for name, dim in dims.items():
        named = [each[name] for each in sizes if name in each] or [top for top in TOPS if top % dim.multiple_of == 0]
        one = [1] if dim.min == 1 < dim.max else []  # a kernel of its own
        tops[name] = sorted({dim.max, *(top for top in (*one, *named) if dim.min <= top <= dim.max)})
    return tops


def searched_sizes(dims: Mapping[str, Dim], tops: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The sizes at which structures are searched: of several dims the last, as a rule a length, is the longest."""
    sizes = {name: _search_size(dim, tops[name]) for name, dim in dims.items()}
    few = {name: max(dim.min, SEARCHED_BEFORE // dim.multiple_of * dim.multiple_of) for name, dim in dims.items()}
    return {name: size if name == [*dims][-1] else min(size, few[name]) for name, size in sizes.items()}


def ranges_between(dim: Dim, tops: Sequence[int]) -> Iterator[SizeRange]:
    """The buckets of a dim, each with one of `tops` as its largest size."""
    for below, top in pairwise((dim.min - dim.multiple_of, *tops)):
        yield SizeRange(below + dim.multiple_of, top, dim.multiple_of)


def timed_sizes(ranges: Mapping[str, SizeRange]) -> list[dict[str, int]]:
    """Sizes at which kernels of a bucket are timed: the largest ones, and the largest at which rows are not aligned."""
    largest = {name: values.largest for name, values in ranges.items()}
    unaligned = {
        name: next((size for size in range(it.largest, it.least - 1, -it.multiple_of) if size % ALIGNMENT), it.largest)
        for name, it in ranges.items()
    }
    return [largest] if unaligned == largest else [largest, unaligned]


def timed_shapes(program: Graph, ranges: Mapping[str, SizeRange]) -> list[list[Shape]]:
    """The shapes of a program's inputs at each of the `timed_sizes`."""
    return [[kind.shape for kind in at_sizes(program, sizes).input_types] for sizes in timed_sizes(ranges)]


def _search_size(dim: Dim, tops: Sequence[int]) -> int:
    """The largest size that is tuned for, of those up to SEARCHED; structures are the same at all sizes above 1."""
    most = max((top for top in tops if top <= SEARCHED), default=0)
    fitting = SEARCHED // dim.multiple_of * dim.multiple_of
    return most if most == tops[-1] or most >= SEARCHED // 2 else max(dim.min, min(dim.max, fitting or dim.multiple_of))


Ranges = Mapping[str, SizeRange]
Sizes = Mapping[str, int]
