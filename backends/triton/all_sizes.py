"""A µGraph with named dims as one Triton program for all sizes of a range: the sizes are arguments of its kernels.

The text is written from the µGraph at expressions of the sizes. Every decision of the emitter sees a number, the value of an
expression at one choice; so the text is written at two choices that have nothing in common, and must be the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from mirage_eg.backends.triton.emit import emit, size_name
from mirage_eg.backends.triton.schedule import Schedule, Schedules
from mirage_eg.ir.at_sizes import at_sizes, named_dims
from mirage_eg.ir.errors import TiedToSizeError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.sizes import SizeArgument, SizeExpression, SizeRange

_DEFAULT = Schedule()
_CHOICES = 64  # of numbers that stand for the sizes, tried at most
_SPREAD = 16

Ranges = Mapping[str, SizeRange]  # by the names of dims


def emit_for_sizes(
    graph: Graph, ranges: Ranges, *, program: Graph | None = None, schedule: Schedule | Schedules = _DEFAULT
) -> str:
    """The source of a Triton program for all sizes in `ranges`; a dim of one size is fixed, all of them without ranges.

    Raises UnsupportedError: the µGraph holds fewer sizes, or its text depends on the size.
    """
    names = [name for name, values in ranges.items() if values.least < values.largest]
    fixed = {name: values.least for name, values in ranges.items() if values.least == values.largest}
    if not ranges:
        return emit(graph, program=program, schedule=schedule)
    if not names:
        return emit(at_sizes(graph, fixed), program=program and at_sizes(program, fixed), schedule=schedule)
    arguments = _arguments(graph, names, ranges)
    texts, first = [], None
    for hints in _stand_ins(graph, names, ranges, fixed):
        sizes = {**fixed, **hints}
        general = at_sizes(graph, sizes)
        if first is not None and not _all_differ(first, general):
            continue
        first = first or general
        whole = None if program is None else at_sizes(program, sizes)
        if whole is not None and whole.output_types != general.output_types:
            raise TiedToSizeError("an extent of a constant is another size than in the program")
        texts.append(emit(general, program=whole, schedule=schedule, sizes=arguments, example=program))
        if len(texts) == 2:
            break
    if len(texts) < 2 or texts[0] != texts[1]:
        listed = ", ".join(f"{name} from {ranges[name].least} to {ranges[name].largest}" for name in names)
        raise UnsupportedError(
            f"no text of the kernels serves {listed}; try: tiles that no size in it fills, or a smaller range"
        )
    return texts[0]


def _arguments(graph: Graph, names: Sequence[str], ranges: Ranges) -> dict[str, SizeArgument]:
    """Where the program reads each size."""
    found: dict[str, SizeArgument] = {}
    for place, at, dim in named_dims(graph):
        if dim.name in names:
            found.setdefault(size_name(dim.name), SizeArgument(place, at, ranges[dim.name]))
    return found


def _stand_ins(
    graph: Graph, names: Sequence[str], ranges: Ranges, fixed: dict[str, int]
) -> Iterator[dict[str, SizeExpression]]:
    """Sizes as expressions with numbers at which every dim is cut as it is in general."""
    tied, found = list[TiedToSizeError](), 0
    choices = [[*islice(_numbers(ranges[name]), place, None, len(names))] for place, name in enumerate(names)]
    for numbers in islice(zip(*choices, strict=False), _CHOICES):
        sizes = {
            name: SizeExpression(number, size_name(name), ranges[name].largest, ranges[name].multiple_of)
            for name, number in zip(names, numbers, strict=True)
        }
        try:
            general = _is_general(at_sizes(graph, {**fixed, **sizes}))
        except TiedToSizeError as error:  # perhaps to a smaller number than this one
            tied.append(error)
            continue
        found += 1
        if general:
            yield sizes
    if tied and not found:
        raise tied[0]


def _all_differ(one: Graph, other: Graph) -> bool:
    """Whether all extents that depend on sizes are other numbers; two heights may have as many windows."""
    pairs = zip(one.types, other.types, strict=True)
    extents = (pair for x, y in pairs for pair in zip(x.shape, y.shape, strict=True))
    return all(x != y for x, y in extents if isinstance(x, SizeExpression))


def _numbers(values: SizeRange) -> Iterator[int]:
    """Multiples near the top of the range, then some down to its step, which have other counts of tiles, then larger ones."""
    step, largest = values.multiple_of, values.largest
    far = step * max(1, largest // step // _SPREAD)
    return chain(
        islice(range(largest, 0, -step), _SPREAD),
        range(largest - far, 0, -far),
        range(largest + step, 4 * largest + 64 * step, step),
    )


def _is_general(graph: Graph) -> bool:
    """Whether each split that depends on sizes has several parts."""
    for block in graph.blocks:
        for item in block.inputs:
            for dim, extent in enumerate(item["shape"]):
                counts = [count for count, target in zip(block.grid, item["imap"], strict=True) if target == dim]
                counts += [block.loop] if item.get("fmap", REPLICATED) == dim else []
                if 1 in counts and isinstance(extent, SizeExpression):
                    return False
    return True
