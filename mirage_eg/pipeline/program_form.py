"""The form of a program: what is left of it without sizes. Programs of one form share the structures of one search."""

from collections.abc import Collection
from hashlib import sha256
from itertools import zip_longest
from math import prod

from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape

_MOVES = WHOLE_VIEWS  # at extents of 1 a transposition is a reshape
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
        ordered = item.op == "input" and item.get("strides") is not None  # tiled in the order of memory
        lines.append(repr((*(("move", item.operands) if item.op in _MOVES else outline(item)), ranks, fixed, ordered)))
    return sha256("\n".join(lines).encode()).hexdigest()


def vector_products(program: Graph) -> tuple[tuple[bool, ...], ...]:
    """Of each product the extents that are 1 (rows, columns, summed), and of each reduction, whether it has one term.

    A product with a vector has nothing to tile: its structures are others than those of matrices, which serve it badly.
    """
    expanded = expand(program)
    found: list[tuple[bool, ...]] = []
    for item in expanded.nodes:
        if item.kind is Kind.MATMUL:
            left, right = (expanded.types[operand].shape for operand in item.operands)
            found.append((_count(left, right) == 1, _count(right[:-2] + right[:-3:-1], left) == 1, left[-1] == 1))
        elif item.kind is Kind.REDUCTION:
            found.append((expanded.types[item.operands[0]].shape[item["dim"]] == 1,))
    return tuple(found)


def _count(left: Shape, right: Shape) -> int:
    """The rows of a product: those of each matrix, and of the matrices that share one right factor."""
    batch = zip_longest(left[-3::-1], right[-3::-1], fillvalue=1)
    return left[-2] * prod(extent for extent, other in batch if other == 1)


def outline(item: Node) -> tuple[object, ...]:
    """A node of a program without extents."""
    attributes = [(name, str(value)) for name, value in item.attributes if name not in _EXTENTS]
    return item.op, item.operands, sorted(attributes)


def is_alike(one: Node, other: Node, shape: Shape) -> bool:
    """Whether a node is another one at other sizes, with an operand of this shape: a transposition may be a reshape."""
    if one.op in TRANSPOSES and other.op in RESHAPES and one.operands == other.operands:
        moved = [dim for dim in one["permutation"] if shape[dim] > 1]
        return moved == sorted(moved)
    return outline(one) == outline(other)
