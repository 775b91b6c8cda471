"""The parts of a graph: nodes, and for each value its type and, in a block graph, the phase in which it is computed.

A node is `(op, operands, attributes)`. Operands are positions of *values*: every node has one value but `output` (none)
and `block` (one for each output of its graph).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.moves import VIEWS_IN_ORDER
from mirage_eg.ir.ops import KINDS, OPS, Kind
from mirage_eg.ir.shapes import Shape, text

REPLICATED = -1  # in imap, fmap, omap: this grid dim (or the loop) maps to no data dim
NEW_DIM = -2  # in omap: this grid dim becomes a new leading dim of the output


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; a tile's shape where the value lives in a block graph."""

    shape: Shape
    dtype: DType

    def __reduce__(self) -> tuple[Any, ...]:  # processes exchange thousands: half the time of a dataclass with slots
        return TensorType, (self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{text(self.shape)} {self.dtype}"

    @property
    def nbytes(self) -> int:
        """Size in bytes when stored densely."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One op; `attributes` are sorted by name, absent ones are left out."""

    op: str
    operands: tuple[int, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:  # as that of a type
        return Node, (self.op, self.operands, self.attributes)

    def __getitem__(self, name: str) -> Any:
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` where it is absent."""
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    def moved(self, position: Mapping[int, int] | Sequence[int]) -> "Node":
        """The same op on operands at other positions."""
        return Node(self.op, tuple(position[operand] for operand in self.operands), self.attributes)

    @property
    def kind(self) -> Kind:
        """What the op is to the evaluator, the search and the lowering."""
        return KINDS.get(self.op) or OPS[self.op].kind

    @property
    def mapping(self) -> dict[str, Any]:
        """The attributes as a dictionary."""
        return dict(self.attributes)


def node(op: str, /, *operands: int, **attributes: Any) -> Node:
    """A node with its attributes in normal form: sorted, lists as tuples, None left out."""
    given = sorted((key, value) for key, value in attributes.items() if value is not None)
    return Node(op, operands, tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in given))


class Phase(IntEnum):
    """When a value of a block graph is computed."""

    PROLOGUE = 0  # varies with nothing of the loop: once, before it
    LOOP = 1
    EPILOGUE = 2  # after an accumulator: once, after the loop


class NestedGraph:
    """What a node holds as its graph: a `Graph`, whose file imports this one."""


def is_op(item: Node) -> bool:
    """Whether a node of a kernel graph is an op: inputs, outputs and views are none. `backends.launches` knows the kernels."""
    return item.kind is not Kind.BOUNDARY and item.op not in VIEWS_IN_ORDER


def is_zero(item: Node) -> bool:
    """Whether a node makes a constant of 0."""
    return item.op == "fill" and not item["value"]


def adds_tiles(item: Node) -> bool:
    """Whether an op of a block graph adds tiles over the loop, element by element."""
    return item.kind is Kind.ACCUMULATOR and OPS[item.op].reduction in ("sum", "mean") and item.get("dim") is None


def result_count(item: Node) -> int:
    """The number of values of a node."""
    if item.op == "output":
        return 0
    return len(item["graph"].outputs) if item.op == "block" else 1
