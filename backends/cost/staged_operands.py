"""Operands of tl.dot in registers: which of them a loop computes, and the time in which they pass through."""

from typing import NamedTuple

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.op.elementwise import CASTS, SHIFTS_BY_PLACES
from mirage_eg.ir.ops import Kind

OF_BYTES = 0.5  # numbers of 8 bits: 28,672 columns of 4,096 times 8 rows took 36 µs on an H200, of which their loads are 27
OF_FIELDS = 0.25  # weights of four bits times 16 rows, in registers: 22 µs on an H100, and 45 through shared memory


class Staged(NamedTuple):
    """An operand of a product: bytes of an element in registers, whether the loop moves it, whether it is computed, and the
    share of the time of a computed one that it takes."""

    value: int
    size: int
    looped: bool
    computed: bool
    share: float
    scaled: bool = False


def staged_operand(block: Graph, value: int, product: DType, computed: bool) -> Staged:
    size = min(block.types[value].dtype.itemsize, product.itemsize)
    share = OF_FIELDS if _is_of_fields(block, value) else OF_BYTES if is_of_bytes(block, value) else 1.0
    looped = block.phases[value] is Phase.LOOP
    return Staged(value, size, looped, computed, share, share == 1 and _is_computed(block, value))


def _is_computed(block: Graph, value: int) -> bool:
    """Whether an operand is computed in the loop, but for casts and moves, and of no product."""
    item = block.node_of[value]
    if item.kind is Kind.MATMUL or block.phases[value] is not Phase.LOOP:
        return False
    if item.kind is Kind.ELEMENTWISE and item.op not in CASTS:
        return not _reaches_product(block, value)
    return any(_is_computed(block, operand) for operand in item.operands)


def _reaches_product(block: Graph, value: int) -> bool:
    """Whether a value is computed of a product."""
    item = block.node_of[value]
    return item.kind is Kind.MATMUL or any(_reaches_product(block, operand) for operand in item.operands)


def is_of_bytes(block: Graph, value: int) -> bool:
    """Whether an operand is loaded numbers of 8 bits in another type."""
    item = block.node_of[value]
    if item.op in CASTS:
        return block.types[item.operands[0]].dtype.itemsize == 1
    return item.kind is Kind.REARRANGEMENT and is_of_bytes(block, item.operands[0])


def _is_of_fields(block: Graph, value: int) -> bool:
    """Whether an operand is computed from fields of bytes, which stay in registers."""
    item = block.node_of[value]
    if item.op in SHIFTS_BY_PLACES:
        return block.types[value].dtype is DType.uint8
    moves = item.kind in (Kind.ELEMENTWISE, Kind.REARRANGEMENT)
    return moves and any(_is_of_fields(block, operand) for operand in item.operands)
