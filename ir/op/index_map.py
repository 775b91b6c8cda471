"""Index maps: which element of which operand an element of a result is. They are the meaning of ops that only move elements.

piece    a box of the result, all of whose elements are elements of one operand
group    some dims of this operand: their row-major index is an affine function of the place in the box

Of the pieces that have an index in their box, the first one gives the element. Where none has it, the element is the attribute
`value` of the op. What else is known of a move is derived: its function on arrays here, elsewhere the strides of views,
ragged cuts, tied dims of tiles, and sums of products.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from mirage_eg.ir.shapes import Attributes, Shape, broadcast


class Span(NamedTuple):
    """Indices of a dim of the result: start, start + step, …, `extent` of them."""

    start: int
    extent: int
    step: int = 1


def row_major(dims: Sequence[int], extents: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The pairs (dim, stride) of the row-major index of some dims."""
    return tuple((dim, prod(extents[place + 1 :])) for place, dim in enumerate(dims))


class Group(NamedTuple):
    """Dims of an operand, whose row-major index is start + Σ stride · place over the pairs (dim of the result, stride).

    `digits` are pairs (dim, extent), the slowest first. A digit of dim None is dropped: a repeated element has it. `cuts`: the
    op has bounds that select elements, even if it selects all of them here.
    """

    digits: tuple[tuple[int | None, int], ...]
    terms: tuple[tuple[int, int], ...]
    start: int = 0
    cuts: bool = False


def plain(shape: Shape) -> tuple[Group, ...]:
    """Each dim for itself."""
    return tuple(Group(((dim, extent),), ((dim, 1),)) for dim, extent in enumerate(shape))


class Piece(NamedTuple):
    """A box of the result, and where its elements are in an operand.

    `box` has a span for each dim; None is all of the dim. A place is counted from the start of its span, in steps.
    """

    operand: int
    groups: tuple[Group, ...]
    box: tuple[Span | None, ...]

    def kept(self, result: Shape) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The dims of the operand and those of the result that have one row-major index, for each such group.

        The other dims are cut, joined, repeated or reversed, or of extent 1.
        """
        for group in self.groups:
            sources = tuple(dim for dim, _ in group.digits if dim is not None)
            targets = tuple(dim for dim, _ in group.terms)
            extents = [result[dim] for dim in targets]
            is_bounded = group.start or group.cuts or any(self.box[dim] for dim in targets)
            whole = len(sources) == len(group.digits) and prod(extents) == prod(extent for _, extent in group.digits)
            if targets and whole and not is_bounded and group.terms == row_major(targets, extents):
                yield sources, targets


IndexMap = tuple[Piece, ...]
IndexRule = Callable[[Sequence[Shape], Attributes], IndexMap]


def moved(xp: Any, arrays: Sequence[Any], lead: int, pieces: IndexMap, shape: Shape, value: Any = 0) -> Any:
    """The result, of this shape, on arrays whose first `lead` dims go together; `value` where no piece has an element."""
    if not any(pieces[0].box):
        return _elements(xp, arrays[pieces[0].operand], lead, pieces[0], shape)
    leading = broadcast([array.shape[:lead] for array in arrays], {}) if lead else ()
    result = xp.full((*leading, *shape), value, dtype=xp.result_type(*arrays))
    for piece in reversed(pieces):
        spans = [span or Span(0, extent) for span, extent in zip(piece.box, shape, strict=True)]
        places = tuple(slice(start, start + step * extent, step) for start, extent, step in spans)
        extents = tuple(span.extent for span in spans)
        result[(..., *places)] = _elements(xp, arrays[piece.operand], lead, piece, extents)
    return result


def _elements(xp: Any, x: Any, lead: int, piece: Piece, extents: Shape) -> Any:
    """The elements of an operand at all places of a box: by an array of indices for each dim, where it is not all of x."""
    if extents == x.shape[lead:] and piece.groups == plain(extents):
        return x
    rank = len(extents)
    index: list[Any] = [0] * (x.ndim - lead)
    for group in piece.groups:
        flat = xp.full((1,) * rank, group.start)
        for dim, stride in group.terms:
            flat = flat + stride * xp.arange(extents[dim]).reshape([-1 if other == dim else 1 for other in range(rank)])
        for place, (source, extent) in reversed([*enumerate(group.digits)]):
            digit = flat % extent if place else flat
            flat = flat // extent
            if source is not None:
                index[source] = xp.broadcast_to(digit, extents)
    return x[(slice(None),) * lead + tuple(index)]
