"""Ops that only move elements. A record says where each element comes from, and what kind of view that is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_eg.ir import shapes
from mirage_eg.ir.op.index_map import Group, IndexMap, IndexRule, Piece, Span, moved, plain, row_major
from mirage_eg.ir.op.literals import number
from mirage_eg.ir.op.record import OpOnShapes
from mirage_eg.ir.patch import patch_shape, written_ranges, written_spans
from mirage_eg.ir.shapes import Attributes, Shape, reshape_groups

Rearrange = Callable[[Any, Sequence[Any], int, Attributes], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOp(OpOnShapes):
    """An op that moves elements: its index map, and its properties at all shapes and attributes.

    A property test compares the properties, and `numpy`, with the map. `numpy(xp, arrays, lead, attributes)` is the same move
    on arrays whose first `lead` dims are not the op's business, where there is a faster form than the map's own. `expand` is of
    an op that is written in other moves before everything else.
    """

    index: IndexRule
    arity: tuple[int, int] = (1, 1)
    numpy: Rearrange | None = None
    in_blocks: bool = False  # block graphs may have it, and the search knows it; else it is a kernel of the library
    is_view: bool = False  # shows the memory of its operand at other strides, none of them negative: nothing is copied
    in_order: bool = True  # elements come first in the row-major order in which they are in their operand
    repeats: bool = False  # an element of an operand may be in the result more than once
    omits: bool = False  # an element of an operand may be missing in the result
    reverses: bool = False  # the elements along its `dims`
    keeps_order: bool = False  # torch's kernel writes in the order of memory that it reads

    def on_arrays(self, xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
        """The result on arrays whose first `lead` dims go together."""
        if self.numpy is not None:
            return self.numpy(xp, arrays, lead, attributes)
        own = [array.shape[lead:] for array in arrays]
        return moved(xp, arrays, lead, self.index(own, attributes), self.shape(own, attributes), attributes.get("value", 0))


def _along(shape: Shape, dim: int, group: Group) -> IndexMap:
    """The map that changes one dim only."""
    groups = plain(shape)
    return (Piece(0, (*groups[:dim], group, *groups[dim + 1 :]), (None,) * len(shape)),)


def _reshape(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [before], after = operands, attributes["shape"]
    groups = [Group(((dim, extent),), ()) for dim, extent in enumerate(before) if extent == 1]
    for sources, targets in reshape_groups(before, after):
        terms = row_major(targets, [after[dim] for dim in targets])
        groups.append(Group(tuple((dim, before[dim]) for dim in sources), terms))
    return (Piece(0, tuple(groups), (None,) * len(after)),)


def _transpose(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape] = operands
    groups = (Group(((source, shape[source]),), ((dim, 1),)) for dim, source in enumerate(attributes["permutation"]))
    return (Piece(0, tuple(groups), (None,) * len(shape)),)


def _broadcast(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape], wide = operands, attributes["shape"]
    lead = len(wide) - len(shape)
    groups = (
        Group(((dim, extent),), ((lead + dim, 1),) if extent == wide[lead + dim] else ()) for dim, extent in enumerate(shape)
    )
    return (Piece(0, tuple(groups), (None,) * len(wide)),)


def _slice(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape], dim = operands, attributes["dim"]
    return _along(shape, dim, Group(((dim, shape[dim]),), ((dim, attributes["step"]),), attributes["start"], cuts=True))


def _split(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape], dim = operands, attributes["dim"]
    start = shape[dim] // attributes["parts"] * attributes["index"]
    return _along(shape, dim, Group(((dim, shape[dim]),), ((dim, 1),), start, cuts=True))


def _repeat(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape], dim = operands, attributes["dim"]
    return _along(shape, dim, Group(((dim, shape[dim]), (None, attributes["times"])), ((dim, 1),)))


def _flip(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape] = operands
    groups = (
        Group(((dim, extent),), ((dim, -1),), extent - 1) if dim in attributes["dims"] else Group(((dim, extent),), ((dim, 1),))
        for dim, extent in enumerate(shape)
    )
    return (Piece(0, tuple(groups), (None,) * len(shape)),)


def _concat(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    dim, start, pieces = attributes["dim"], 0, list[Piece]()
    for operand, shape in enumerate(operands):
        box = tuple(Span(start, extent) if other == dim else None for other, extent in enumerate(shape))
        pieces.append(Piece(operand, plain(shape), box))
        start += shape[dim]
    return tuple(pieces)


def _pad(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    [shape] = operands
    widths = zip(shape, attributes["before"], attributes["after"], strict=True)
    return (Piece(0, plain(shape), tuple(Span(first, extent) if first or last else None for extent, first, last in widths)),)


def _patch(operands: Sequence[Shape], attributes: Attributes) -> IndexMap:
    y, *blocks = operands
    boxes = written_spans(len(y), blocks, attributes)
    pieces = [Piece(operand, plain(shape), box) for operand, (shape, box) in enumerate(zip(blocks, boxes, strict=True), 1)]
    return (*pieces, Piece(0, plain(y), (None,) * len(y)))


def _concatenated(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    leading = shapes.broadcast([array.shape[:lead] for array in arrays], {}) if lead else ()
    return xp.concatenate(
        [xp.broadcast_to(array, leading + array.shape[lead:]) for array in arrays], axis=lead + attributes["dim"]
    )


def _sliced(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    taken = slice(attributes["start"], attributes["stop"], attributes["step"])
    return arrays[0][(slice(None),) * (lead + attributes["dim"]) + (taken,)]


def _broadcasted(xp: Any, arrays: Sequence[Any], lead: int, attributes: Attributes) -> Any:
    shape = tuple(attributes["shape"])
    array = arrays[0]
    padded = array.reshape(array.shape[:lead] + (1,) * (len(shape) - (array.ndim - lead)) + array.shape[lead:])
    return xp.broadcast_to(padded, array.shape[:lead] + shape)


def _split_by_slice(apply: Any, x: Sequence[Any], operands: Sequence[Shape], attributes: Attributes) -> Any:
    dim, parts, index = attributes["dim"], attributes["parts"], attributes["index"]
    size = operands[0][dim] // parts
    return apply("slice", x[0], dim=dim, start=size * index, stop=size * (index + 1), step=1)


def _slice_call(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    taken = f"{attributes['start']}:{attributes['stop']}"
    step = f":{attributes['step']}" if attributes["step"] > 1 else ""
    return f"{x[0]}[{':, ' * attributes['dim']}{taken}{step}]"


def _split_call(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    size = operands[0][attributes["dim"]] // attributes["parts"]
    return f"{x[0]}.narrow({attributes['dim']}, {size * attributes['index']}, {size})"


def _pad_call(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    pairs = [*zip(attributes["before"], attributes["after"], strict=True)]
    widths = tuple(width for pair in reversed(pairs) for width in pair)
    return f"torch.nn.functional.pad({x[0]}, {widths}, value={number(attributes['value'])})"


def _patch_call(x: Sequence[str], attributes: Attributes, operands: Sequence[Shape]) -> str:
    patched = x[0]
    for block, ranges in zip(x[1:], written_ranges(len(operands[0]), operands[1:], attributes), strict=True):
        places = ", ".join(
            f"torch.arange({it.start}, {it.stop}, {it.step}, device={x[0]}.device)[:{', None' * (len(ranges) - dim)}]"
            for dim, it in enumerate(ranges, 1)
        )
        patched = f"{patched}.index_put(({places},), {block})"
    return patched


def _extents(numbers: Sequence[Any]) -> str:
    """Numbers as arguments: torch takes twice as long for a tuple."""
    return ", ".join(map(repr, numbers)) or "()"


def swaps_matrices(permutation: Sequence[int]) -> bool:
    """Whether the last two dims alone change places."""
    rank = len(permutation)
    return rank > 1 and tuple(permutation) == (*range(rank - 2), rank - 1, rank - 2)


def _permuted(x: Sequence[str], attributes: Attributes, _: Sequence[Shape]) -> str:
    order = attributes["permutation"]
    return f"{x[0]}.mT" if swaps_matrices(order) else f"{x[0]}.permute({_extents(order)})"


RESHAPE = MoveOp(
    name="reshape",
    attributes={"shape": "ints"},
    shape=shapes.reshape,
    index=_reshape,
    numpy=lambda xp, arrays, lead, attributes: arrays[0].reshape(arrays[0].shape[:lead] + tuple(attributes["shape"])),
    call=lambda x, a, _: f"{x[0]}.reshape({_extents(a['shape'])})",
    noun="view",
    in_blocks=True,
    is_view=True,
)
TRANSPOSE = MoveOp(
    name="transpose",
    attributes={"permutation": "ints"},
    shape=shapes.transpose,
    index=_transpose,
    numpy=lambda xp, arrays, lead, a: arrays[0].transpose(*range(lead), *(lead + dim for dim in a["permutation"])),
    call=_permuted,
    noun="transposed",
    in_blocks=True,
    is_view=True,
    in_order=False,
)
CONCAT = MoveOp(
    name="concat",
    attributes={"dim": "int"},
    arity=(1, 64),
    shape=shapes.concat,
    index=_concat,
    numpy=_concatenated,
    call=lambda x, a, _: f"torch.cat([{', '.join(x)}], dim={a['dim']})",
    noun="joined",
    in_blocks=True,
    keeps_order=True,
)
SLICE = MoveOp(
    name="slice",
    attributes={"dim": "int", "start": "int", "stop": "int", "step": "int", "from_end": "ints?"},
    shape=shapes.slice_dim,
    index=_slice,
    numpy=_sliced,
    call=_slice_call,
    noun="part",
    in_blocks=True,
    is_view=True,
    omits=True,
)
BROADCAST = MoveOp(
    name="broadcast",
    attributes={"shape": "ints"},
    shape=shapes.broadcast_to,
    index=_broadcast,
    numpy=_broadcasted,
    call=lambda x, a, _: f"{x[0]}.expand({tuple(a['shape'])})",
    noun="wide",
    in_blocks=True,
    is_view=True,
    repeats=True,
)
REPEAT = MoveOp(
    name="repeat",
    attributes={"dim": "int", "times": "int"},
    shape=shapes.repeat,
    index=_repeat,
    numpy=lambda xp, arrays, lead, attributes: arrays[0].repeat(attributes["times"], axis=lead + attributes["dim"]),
    call=lambda x, a, _: f"torch.repeat_interleave({x[0]}, {a['times']}, dim={a['dim']})",
    noun="repeated",
    in_blocks=True,
    repeats=True,
)
SPLIT = MoveOp(
    name="split",
    attributes={"dim": "int", "parts": "int", "index": "int"},
    shape=shapes.split,
    index=_split,
    call=_split_call,
    noun="part",
    in_blocks=True,
    is_view=True,
    omits=True,
    expand=_split_by_slice,
)
PATCH = MoveOp(
    name="patch",
    attributes={"starts": "ints", "steps": "ints?"},
    arity=(2, 256),
    shape=patch_shape,
    index=_patch,
    call=_patch_call,
    noun="patched",
    omits=True,
)
PAD = MoveOp(
    name="pad",
    attributes={"before": "ints", "after": "ints", "value": "rational"},
    shape=shapes.pad,
    index=_pad,
    call=_pad_call,
    noun="padded",
    keeps_order=True,
)
FLIP = MoveOp(
    name="flip",
    attributes={"dims": "ints"},
    shape=shapes.flip,
    index=_flip,
    numpy=lambda xp, arrays, lead, attributes: xp.flip(arrays[0], tuple(lead + dim for dim in attributes["dims"])),
    call=lambda x, a, _: f"torch.flip({x[0]}, {tuple(a['dims'])})",
    noun="reversed",
    in_order=False,
    reverses=True,
)

MOVES: Mapping[str, MoveOp] = {
    op.name: op for op in (RESHAPE, TRANSPOSE, CONCAT, SLICE, BROADCAST, REPEAT, SPLIT, PATCH, PAD, FLIP)
}


VIEWS = frozenset(name for name, op in MOVES.items() if op.is_view)
VIEWS_IN_ORDER = frozenset(name for name in VIEWS if MOVES[name].in_order)  # not launched, and read as they are by the library
VIEWS_ONCE = frozenset(name for name in VIEWS if not MOVES[name].repeats)  # as large as what they show, or smaller
VIEWS_OF_ALL = frozenset(name for name in VIEWS if not MOVES[name].omits)
BROADCASTS = VIEWS - VIEWS_ONCE
VIEWS_OF_A_PART = VIEWS - VIEWS_OF_ALL
PLAIN_VIEWS = VIEWS_IN_ORDER & VIEWS_ONCE  # between kernels in any plan
WHOLE_VIEWS = VIEWS_ONCE & VIEWS_OF_ALL
RESHAPES = WHOLE_VIEWS & VIEWS_IN_ORDER  # the same memory under another shape
TRANSPOSES = WHOLE_VIEWS - VIEWS_IN_ORDER
REVERSALS = frozenset(name for name, op in MOVES.items() if op.reverses)
REPEATS = frozenset(name for name, op in MOVES.items() if op.repeats)
JOINS = frozenset(name for name, op in MOVES.items() if op.arity[1] > 1 and not op.omits)  # along their attribute `dim`
CUTS_AND_JOINS = JOINS | {name for name in VIEWS_OF_A_PART if MOVES[name].expand is None}
