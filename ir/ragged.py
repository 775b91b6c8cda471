"""Ragged dims: a grid dim or the loop may cut a dim into parts that do not divide it; the last part holds the rest. Trusted.

Tiles then have two extents: the full one, which types show, and that of the rest. An op on a ragged dim means what it means at
the extent that the tile has. Ops whose meaning would depend on the extent of a part are refused: the mean of a part (take the
sum and scale it), a reshape that merges or splits the dim, a sum over tiles of unequal extents.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.node import REPLICATED, Node, result_count
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import CASTS, PRODUCTS, QUOTIENTS, SQUARES, TERMS
from mirage_eg.ir.op.moves import MOVES, VIEWS
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import SizeExpression

LOOP = -1  # where grid dims have their number
_ALIGNED = 16  # elements; parts of a multiple of it can be loaded in whole sectors


@dataclass(frozen=True, slots=True)
class Cut:
    """How a dim of `extent` elements is cut: into parts of `part`; a step of a grid dim or the loop moves by some elements."""

    extent: int
    part: int
    steps: tuple[tuple[int, int], ...]  # (grid dim or LOOP, elements)

    @property
    def rest(self) -> int:
        """The extent of the last part."""
        return (self.extent - 1) % self.part + 1


Cuts = tuple[Cut | None, ...]  # for every dim of a tile; None where all its tiles have one extent


def part_extent(extent: int, count: int) -> int | None:
    """The extent of each of `count` parts but the last, which holds the rest; None where the last would be empty.

    Where `count` divides the extent, parts are equal. Else they are as equal as multiples of 16 allow, or as whole numbers do.
    """
    if extent % count == 0:
        return extent // count
    even = -(-extent // count)
    aligned = -(-even // _ALIGNED) * _ALIGNED
    return next((part for part in (aligned, even) if (count - 1) * part < extent), None)


def given_part(extent: int, part: int, splits: Sequence[tuple[int, int]]) -> int | None:
    """`part`, if parts of it hold a dim of `extent` and no block is empty; else None.

    A dim that nothing splits is one part, perhaps a short one. Iterations at the end of the last block may be empty.
    """
    count = prod(count for _, count in splits)
    before_last_block = count - prod(count for place, count in splits if place == LOOP)
    return part if part >= 1 and before_last_block * part < extent <= count * part else None


def result_cuts(op: str, operands: Sequence[tuple[Shape, Cuts]], result: Shape, attributes: Mapping[str, Any]) -> Cuts:
    """The cuts of an op's result. Raises GraphError: the op has no meaning on ragged dims cut so."""
    match OPS[op].kind:
        case Kind.ELEMENTWISE | Kind.GRAPH:  # a thread graph is elementwise
            return _broadcast(operands, len(result))
        case Kind.MATMUL:
            (left, right) = operands
            if left[1][-1] != right[1][-2]:
                raise GraphError(f"got contracted dims cut {_said(left[1][-1])} and {_said(right[1][-2])}; wanted the same cut")
            batch = [(shape[:-2], cuts[:-2]) for shape, cuts in operands]
            return (*_broadcast(batch, len(result) - 2), left[1][-2], right[1][-1])
        case Kind.REDUCTION | Kind.ACCUMULATOR:
            return _reduced(op, operands[0][1], attributes)
        case _ if op in VIEWS:
            return _shown(op, *operands[0], result, attributes)
        case Kind.DERIVED if op in SOFTMAXES:
            return operands[0][1]
        case Kind.DERIVED if not any(operands[0][1][-attributes["dims"] :]) and not any(map(any, (x for _, x in operands[1:]))):
            return operands[0][1]
        case _:
            raise GraphError(
                f"got a dim cut {_said(next(cut for _, cuts in operands for cut in cuts if cut))}; wanted equal parts"
            )


def _said(cut: Cut | None) -> str:
    return "in equal parts" if cut is None else f"into parts of {cut.part} with a rest of {cut.rest}"


def _broadcast(operands: Sequence[tuple[Shape, Cuts]], rank: int) -> Cuts:
    result: list[Cut | None] = []
    for back in range(rank, 0, -1):
        found = {cuts[-back] for shape, cuts in operands if len(shape) >= back and shape[-back] > 1}
        if len(found) > 1:
            raise GraphError(f"got dims cut {' and '.join(sorted(map(_said, found)))} side by side; wanted the same cut")
        result.append(found.pop() if found else None)
    return tuple(result)


def _reduced(op: str, cuts: Cuts, attributes: Mapping[str, Any]) -> Cuts:
    dim = attributes.get("dim")
    accumulates = OPS[op].kind is Kind.ACCUMULATOR
    cut = None if dim is None else cuts[dim]
    whole = cut is not None and accumulates and all(place == LOOP for place, _ in cut.steps)  # all of it, over the loop
    padded = (OPS[op].reduction or op) in ("sum", "max")  # what fills a rest adds nothing
    if cut is not None and ("columns" in attributes or not (padded or whole)):
        raise GraphError(f"got dim {dim} cut {_said(cut)}; wanted equal parts (or a sum, scaled)")
    left = tuple(None if place == dim else cut for place, cut in enumerate(cuts))
    if accumulates and any(place == LOOP for cut in left if cut for place, _ in cut.steps):
        raise GraphError("got a tile of other extents in the last iteration; reduce that dim before it is accumulated")
    return left


def _shown(op: str, shape: Shape, cuts: Cuts, result: Shape, attributes: Mapping[str, Any]) -> Cuts:
    [piece] = MOVES[op].index([shape], attributes)
    source = {after[0]: before[0] for before, after in piece.kept(result) if len(before) == len(after) == 1}
    lost = next((cut for dim, cut in enumerate(cuts) if cut and dim not in source.values()), None)
    if lost is not None:
        raise GraphError(f"got {text(shape)} to {text(result)}, which selects, merges or splits a dim cut {_said(lost)}")
    return tuple(cuts[source[dim]] if dim in source else None for dim in range(len(result)))


def check_empty_iterations(nodes: Sequence[Node], cuts: Mapping[int, Cuts], counts: Sequence[int]) -> None:
    """Whether the iterations of the last block after the end of a dim leave each accumulator as it is.

    Kernels run them, on tiles without elements: a sum over such a tile is 0, a maximum −∞. The evaluator ends there with the
    first dim that ends, so tiles of a dim that ends elsewhere may have elements. `counts`: grid and loop.

    Raises GraphError: an accumulator takes something else there.
    """
    ends: dict[Any, set[Cut]] = {}
    for cut in (cut for own in cuts.values() for cut in own if cut and any(place == LOOP for place, _ in cut.steps)):
        if _may_be_empty(cut, counts):
            ends.setdefault(_end(cut, counts), set()).add(cut)
    for empty in ends.values():
        _check_after_the_end(nodes, cuts, empty)


def _check_after_the_end(nodes: Sequence[Node], cuts: Mapping[int, Cuts], empty: Collection[Cut]) -> None:
    """The same for the iterations in which the dims of `empty` have no elements."""
    known: list[str] = []
    for item in nodes:
        read = [known[i] for i in item.operands]
        found = _after_the_end(item, read, [cuts.get(i, ()) for i in item.operands], empty)
        if OPS[item.op].kind is Kind.ACCUMULATOR and found != OPS[item.op].reduction:
            cut = next(iter(empty))
            raise GraphError(
                f"got {item.op} of a value that still counts in iterations after the end of a dim cut {_said(cut)}; wanted "
                f"{'a maximum' if OPS[item.op].reduction == 'max' else 'a sum'} over that dim, or fewer iterations"
            )
        has_it = any(cut in empty for cut in cuts.get(len(known), ()))
        if has_it:  # kernels take its padding for finite, where no operand is −∞ or 0 in these iterations alone
            found = "padded" if found in ("", "same") and {*read} <= {"same", "padded"} else ""
        known += [found] * result_count(item)


def _end(cut: Cut, counts: Sequence[int]) -> Any:
    """In which blocks and at which iteration a dim ends; of a dim of any size, what these follow from."""
    if isinstance(cut.extent, SizeExpression):
        return str(cut.extent), cut.part, cut.steps
    places = tuple(place for place, _ in cut.steps)
    return places, (cut.extent - cut.rest) // dict(cut.steps)[LOOP] % counts[LOOP]


def _may_be_empty(cut: Cut, counts: Sequence[int]) -> bool:
    """Whether the last iteration of the last block starts after the end of a dim; of a dim of any size, whether it does at one.

    Where the loop alone cuts a dim, its count follows from the size, and no iteration is empty.
    """
    sized = isinstance(cut.extent, SizeExpression) and len(cut.steps) > 1
    return sized or sum((counts[place] - 1) * step for place, step in cut.steps) >= cut.extent


def _after_the_end(item: Node, read: Sequence[str], cuts: Sequence[Cuts], empty: Collection[Cut]) -> str:
    """What a result is where tiles have no elements: the reduction to which it adds nothing, or "same".

    "same" is a value that the iterations before the end have, too, and "padded" one of "same" and tiles. All else is "".
    """
    op, kind = item.op, OPS[item.op].kind
    if op == "input":  # a tile of this iteration alone may hold 0, infinity or not-a-number, and 0 times or by these is no 0
        return "same" if item.get("fmap", REPLICATED) == REPLICATED else ""
    if kind in (Kind.REDUCTION, Kind.ACCUMULATOR):
        own, dim = OPS[op].reduction or op, item.get("dim")
        if read[0] == own or (read[0] == "padded" and dim is not None and cuts[0][dim] in empty):
            return own
    if kind is Kind.MATMUL and {*read} == {"padded"} and cuts[0][-1] in empty:
        return "sum"
    if kind is Kind.GRAPH:
        known, given = list[str](), iter(read)
        for inner in item["graph"].nodes:
            inside = [known[i] for i in inner.operands]
            known.append(next(given) if inner.op == "input" else _after_the_end(inner, inside, [()] * len(inside), empty))
        return known[-1]
    if {*read} <= {"same"}:
        return "same"
    if op in VIEWS or op in CASTS or op in ("scale", "mean", "shift", "output"):
        keeps = read[0] == "max" and (op != "scale" or item["factor"] > 0) and op != "mean"
        return read[0] if keeps or (read[0] == "sum" and op != "shift") else ""
    if op in TERMS or op in SQUARES:
        return "sum" if {*read} == {"sum"} else ""
    if op in QUOTIENTS:
        return "sum" if [*read] == ["sum", "same"] else ""
    return "sum" if (op in PRODUCTS or kind is Kind.MATMUL) and "sum" in read and {*read} <= {"sum", "same"} else ""
