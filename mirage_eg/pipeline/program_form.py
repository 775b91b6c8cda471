"""The form of a program: what is left of it without sizes. Programs of one form share the structures of one search."""

from collections.abc import Collection
from hashlib import sha256

from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.shapes import Shape

_MOVES = ("reshape", "transpose")  # at extents of 1 a transposition is a reshape
_EXTENTS = ("dims", "extent", "name", "shape", "strides")  # attributes that follow from sizes, or are names


def form_of(program: Graph, weights: Collection[int]) -> str:
    """A hash of a program without its sizes; the inputs numbered `weights` keep theirs.

    Programs that differ in reshapes and transpositions alone have one form.
    """
    expanded = expand(program)
    lines, inputs = [], 0
    for item, values in expanded.numbered():
        kinds = [expanded.types[value] for value in values]
        ranks = [(len(kind.shape), str(kind.dtype)) for kind in kinds]
        fixed = [kind.shape for kind in kinds] if item.op == "input" and inputs in weights else []
        inputs += item.op == "input"
        lines.append(repr((*(("move", item.operands) if item.op in _MOVES else outline(item)), ranks, fixed)))
    return sha256("\n".join(lines).encode()).hexdigest()


def outline(item: Node) -> tuple[object, ...]:
    """A node of a program without extents."""
    attributes = [(name, str(value)) for name, value in item.attributes if name not in _EXTENTS]
    return item.op, item.operands, sorted(attributes)


def is_alike(one: Node, other: Node, shape: Shape) -> bool:
    """Whether a node is another one at other sizes, with an operand of this shape: a transposition may be a reshape."""
    if one.op == "transpose" and other.op == "reshape" and one.operands == other.operands:
        moved = [dim for dim in one["permutation"] if shape[dim] > 1]
        return moved == sorted(moved)
    return outline(one) == outline(other)


__all__ = ["form_of", "is_alike", "outline"]
