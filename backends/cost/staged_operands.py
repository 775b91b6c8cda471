"""Operands of tl.dot in registers: which of them a loop computes, and the time in which they pass through."""

from typing import NamedTuple

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.op.elementwise import CASTS, SHIFTS_BY_PLACES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph

OF_BYTES = 0.5  # numbers of 8 bits: 28,672 columns of 4,096 times 8 rows took 36 µs on an H200, of which their loads are 27
OF_FIELDS = 0.25  # weights of four bits times 16 rows, in registers: 22 µs on an H100, and 45 through shared memory


class Staged(NamedTuple):
    """An operand of a product: bytes of an element in registers, whether the loop moves it, whether it is computed, the share
    of the time of a computed one that it takes, and whether the loop computes it of loads, not by casts and moves alone."""

    value: int
    size: int
    looped: bool
    computed: bool
    share: float
    scaled: bool = False


class _Origins(NamedTuple):
    """Sets of values of a block graph: results of products, values that the loop computes of loads, loaded numbers of 8 bits
    after a cast, and values of fields of bytes, which stay in registers."""

    products: set[int]
    scaled: set[int]
    of_bytes: set[int]
    of_fields: set[int]


@once_per_graph
def _origins(block: Graph) -> _Origins:
    """Where the values of a block graph come from, in one pass: paths to a value may be as many as 2 to the number of ops."""
    found = products, scaled, of_bytes, of_fields = _Origins(set(), set(), set(), set())
    for item, values in block.numbered():
        of_product, of_scaled, of_byte, of_field = (not it.isdisjoint(item.operands) for it in found)
        if item.kind is Kind.MATMUL or of_product:
            products.update(values)
        elif of_scaled or (item.kind is Kind.ELEMENTWISE and item.op not in CASTS):
            scaled.update(value for value in values if block.phases[value] is Phase.LOOP)
        if item.op in CASTS:
            of_byte = block.types[item.operands[0]].dtype.itemsize == 1
            of_bytes.update(values if of_byte else ())
        elif item.kind is Kind.REARRANGEMENT and of_byte:
            of_bytes.update(values)
        if item.op in SHIFTS_BY_PLACES:
            of_fields.update(value for value in values if block.types[value].dtype is DType.uint8)
        elif item.kind in (Kind.ELEMENTWISE, Kind.REARRANGEMENT) and of_field:
            of_fields.update(values)
    return found


def staged_operand(block: Graph, value: int, product: DType, computed: bool) -> Staged:
    """An operand of a product in this type; `computed` if it is no load."""
    size, origins = min(block.types[value].dtype.itemsize, product.itemsize), _origins(block)
    share = OF_FIELDS if value in origins.of_fields else OF_BYTES if is_of_bytes(block, value) else 1.0
    return Staged(value, size, block.phases[value] is Phase.LOOP, computed, share, share == 1 and value in origins.scaled)


def is_of_bytes(block: Graph, value: int) -> bool:
    """Whether a value is loaded numbers of 8 bits in another type."""
    return value in _origins(block).of_bytes
