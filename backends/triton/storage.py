"""How a kernel holds a value, by its readers: in the element type of memory, in float32, or only in an accumulator."""

from collections.abc import Iterator, Sequence
from math import prod

from mirage_eg.backends.triton.tiles import MatmulForm, is_skinny, matmul_form, power_of_two
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, Phase, adds_tiles
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.ops import Kind

WGMMA_ROWS = 64  # of a product, at least


def accumulates(graph: Graph, value: int, consumers: Sequence[Node]) -> bool:
    """Is this product only summed over the loop, so that tl.dot can add to the accumulator itself?"""
    if graph.phases[value] is not Phase.LOOP or len(consumers) != 1:
        return False
    [consumer] = consumers
    return adds_tiles(consumer) and is_dot(graph, graph.node_of[value])


LATE = 1 << 14  # elements of a tile that is loaded behind a loop of products, which needs the registers


def late_loads(graph: Graph) -> frozenset[int]:
    """The large tiles that are loaded once and that only elementwise ops behind a loop of products read: loaded there.

    On an H200 products of 77 GFLOP with a residual of such tiles took 114 to 165 µs, and 118 to 182 where it was loaded first.
    """
    if not any(item.kind is Kind.MATMUL and graph.phases[values[0]] is Phase.LOOP for item, values in graph.numbered()):
        return frozenset()
    readers: dict[int, list[bool]] = {}  # of each value: whether it is such an op
    for item, values in graph.numbered():
        is_late = item.kind in (Kind.ELEMENTWISE, Kind.GRAPH) and all(graph.phases[it] is Phase.EPILOGUE for it in values)
        for operand in item.operands:
            readers.setdefault(operand, []).append(is_late)
    return frozenset(
        value
        for value in graph.input_values
        if graph.phases[value] is Phase.PROLOGUE and prod(graph.types[value].shape) >= LATE and all(readers.get(value, [False]))
    )


def reads_stored(graph: Graph, consumer: Node, value: int) -> bool:
    """Does this op take a value in the element type of memory?"""
    match consumer.kind:
        case Kind.MATMUL:
            return is_dot(graph, consumer)
        case Kind.REARRANGEMENT | Kind.BOUNDARY:
            return True
        case _:
            products = [it for it in _readers(graph, value) if it.kind is Kind.MATMUL and is_dot(graph, it)]
            return consumer.op in CASTS and any(is_narrow(product_dtype(graph, it, DType.float32)) for it in products)


def product_dtype(graph: Graph, product: Node, result: DType) -> DType:
    """The type of the operands of a matmul: that of the result, or a half that has all their numbers before they were widened.

    Products of halves are exact in float32, in which matrix units add them; those of integers of 8 bits have 32.
    """
    if result.is_integer:
        return graph.types[product.operands[0]].dtype
    stored = {_before_cast(graph, operand) for operand in product.operands}
    halves = (half for half in (DType.float16, DType.bfloat16) if all(map(half.keeps, stored)))
    return result if is_narrow(result) else next(halves, result)


def is_narrow(dtype: DType) -> bool:
    """Whether a type is one of the halves, whose products are exact in float32."""
    return dtype in (DType.float16, DType.bfloat16)


def _before_cast(graph: Graph, value: int) -> DType:
    """The type of a value before it was widened, whether its elements were moved since or not."""
    maker = graph.node_of[value]
    if (maker.kind is Kind.REARRANGEMENT and len(maker.operands) == 1) or is_widening(graph, maker):
        return _before_cast(graph, maker.operands[0])
    return graph.types[value].dtype


def is_widening(graph: Graph, item: Node) -> bool:
    """Whether an op casts to a floating-point type that has every number of the operand's type, of which bits 0 are 0."""
    if item.op not in CASTS or (wanted := DType(item["dtype"])).is_integer:
        return False
    have = graph.types[item.operands[0]].dtype
    if have is DType.bool or not have.has_zero or wanted is DType.float64:
        return False
    return have is not wanted and wanted.keeps(have)


def needs_copy(graph: Graph, value: int, swapped: bool) -> bool:
    """Whether both a product on wgmma and registers read the tile of this load of the loop.

    Triton fetches such a tile into one buffer too few (`miscompilations`), so that wgmma must read a copy.
    """
    if graph.phases[value] is not Phase.LOOP or graph.types[value].dtype.itemsize != 2:
        return False
    readers = list(_readers(graph, value))
    alone = [reader.kind is Kind.MATMUL and is_dot(graph, reader) for reader in readers]
    return not all(alone) and any(
        _may_be_wgmma(graph, reader, swapped) for reader, one in zip(readers, alone, strict=True) if one
    )


def _readers(graph: Graph, value: int) -> Iterator[Node]:
    """The readers of a value, or of its elements moved or in float32."""
    for item, values in graph.numbered():
        if value in item.operands:
            if item.kind is Kind.REARRANGEMENT or is_widening(graph, item):
                yield from _readers(graph, values[0])
            else:
                yield item


def _may_be_wgmma(graph: Graph, product: Node, swapped: bool) -> bool:
    """Whether a tl.dot has enough rows for wgmma, and no dims before its last two."""
    left, right = (graph.types[operand].shape for operand in product.operands)
    if prod(right[:-2]) > 1:
        return False
    rows = right[-1] if swapped and is_skinny(left, right) else prod(left[:-1])
    return power_of_two(rows) >= WGMMA_ROWS


def is_dot(graph: Graph, product: Node) -> bool:
    """Whether a matmul is written as a tl.dot."""
    left, right = product.operands
    return matmul_form(graph.types[left].shape, graph.types[right].shape) is MatmulForm.DOT
