"""The op `patch(y, c, …)`: y with blocks written into it, each at constant starts and steps; its shape rule.

    result[start : start + step · extent : step] = c        (in each dim of each block c; elsewhere y)

It is linear in y and the blocks together. Blocks do not overlap, so that they may be written in any order, and in place.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.op.index_map import Span
from mirage_eg.ir.shapes import Attributes, Shape, text


def written_spans(rank: int, blocks: Sequence[Shape], attributes: Attributes) -> Iterator[tuple[Span, ...]]:
    """For each block the positions that it is written at, a span for each dim."""
    starts, steps = attributes["starts"], attributes.get("steps") or (1,) * len(attributes["starts"])
    for place, shape in enumerate(blocks):
        own = slice(place * rank, (place + 1) * rank)
        yield tuple(Span(*it) for it in zip(starts[own], shape, steps[own], strict=True))


def written_ranges(rank: int, blocks: Sequence[Shape], attributes: Attributes) -> Iterator[tuple[range, ...]]:
    """`written_spans` as ranges."""
    for spans in written_spans(rank, blocks, attributes):
        yield tuple(range(start, start + step * extent, step) for start, extent, step in spans)


def patch_shape(operands: Sequence[Shape], attributes: Attributes) -> Shape:
    """The shape of y; blocks have its rank, are inside it and apart."""
    y, *blocks = operands
    for name in ("starts", "steps"):
        given = attributes.get(name)
        if given is not None and len(given) != len(y) * len(blocks):
            raise GraphError(
                f"got {len(given)} {name} for blocks of {len(blocks)} × {len(y)} dims; wanted one for each dim of each"
            )
    for shape in blocks:
        if len(shape) != len(y):
            raise GraphError(f"got a block {text(shape)} for {text(y)}, wanted one of {len(y)} dims")
    if any(step < 1 for step in attributes.get("steps") or ()):
        raise GraphError(f"got steps {text(attributes['steps'])}, wanted 1 or more")
    for shape, spans in zip(blocks, written_spans(len(y), blocks, attributes), strict=True):
        if any(start < 0 or start + (own - 1) * step >= extent for extent, (start, own, step) in zip(y, spans, strict=True)):
            at = ", ".join(
                f"{start} + {step} · 0…{own - 1}" if step > 1 else f"{start}:{start + own}" for start, own, step in spans
            )
            raise GraphError(f"got a block {text(shape)} at [{at}], wanted it inside {text(y)}")
    if len(blocks) == 1:
        return y
    written = list(written_ranges(len(y), blocks, attributes))
    for first, second in combinations(written, 2):
        if all(set(one).intersection(other) for one, other in zip(first, second, strict=True)):
            raise GraphError(
                f"got overlapping blocks at {_places(first)} and {_places(second)}, wanted each element written once"
            )
    return y


def _places(ranges: Sequence[range]) -> str:
    return "[" + ", ".join(f"{it.start}:{it[-1] + 1}{f':{it.step}' if it.step > 1 else ''}" for it in ranges) + "]"
