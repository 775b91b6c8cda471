"""Rows at multiples of 16 bytes: cuBLAS takes several times as long where those of an operand or of a result begin elsewhere.

A large product of the library therefore writes its result with gaps between rows, and reads aligned copies of its operands.
Readers of such a result take it with its strides.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.launches.views import reshaped_strides
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.biased_product import BiasedProduct, biased_products, products_of_matrices
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import prepared_values

ALIGNED = 16  # bytes
_WORTH_COPYING = 200  # operations for each byte of aligned copies: about what an H200 computes while it moves a byte


@dataclass(frozen=True, slots=True)
class UnalignedProduct:
    """A product of matrices with rows at other multiples than of 16 bytes.

    `copied`: the operands that are copied where it `is_padded`, which is computed with aligned rows: those that have such rows,
    and a weight that gets more columns. `result`: the value that its kernel writes, behind a bias if there is one; `has_gaps`:
    between the rows of a padded one.
    """

    copied: tuple[int, ...]
    result: int
    has_gaps: bool
    is_padded: bool


@once_per_graph
def unaligned_products(graph: Graph) -> Mapping[int, UnalignedProduct]:
    """The products of the library that read or write unaligned rows, by their values."""
    if graph.depends_on_sizes or dims_of(graph):
        return {}
    prepared = prepared_values(graph)
    biased = {it.values[0]: it for it in biased_products(graph)}
    found = {
        value: _unaligned(graph, value, biased.get(value)) for value in products_of_matrices(graph) if value not in prepared
    }
    return {value: it for value, it in found.items() if it.copied or it.has_gaps}


def _unaligned(graph: Graph, value: int, biased: BiasedProduct | None) -> UnalignedProduct:
    operands = graph.node_of[value].operands
    unaligned = tuple(operand for operand in operands if not _has_aligned_rows(graph, operand))
    kind = graph.types[value]
    has_gaps = kind.shape[-1] * kind.dtype.itemsize % ALIGNED > 0
    copied = [*unaligned, *([operands[1]] if biased and has_gaps and operands[1] not in unaligned else [])]
    flops = 2 * prod(kind.shape) * graph.types[operands[0]].shape[-1]
    worth = flops >= _WORTH_COPYING * sum(graph.types[operand].nbytes for operand in copied)
    result = biased.values[-1] if biased else value
    return UnalignedProduct(tuple(copied), result, has_gaps, worth and min(kind.shape) > 1)


def _has_aligned_rows(graph: Graph, value: int) -> bool:
    """Whether the rows of a matrix, or its columns where these lie in memory one after another, begin at aligned bytes."""
    item, kind = graph.node_of[value], graph.types[value]
    if item.op in TRANSPOSES:
        return _has_aligned_rows(graph, item.operands[0])
    strides = sorted((item.get("strides") if item.op == "input" else None) or row_major(kind.shape))
    return all(stride * kind.dtype.itemsize % ALIGNED == 0 for stride in strides[1:])


def strides_with_gaps(graph: Graph, fixed: Collection[int]) -> dict[int, Shape]:
    """The strides of the values with gaps between their rows: results of padded products, and their reshapes, but for those
    that are `fixed`; and results that are wanted so, where a generated kernel writes them."""
    found: dict[int, Shape] = {}
    for product in unaligned_products(graph).values():
        if product.is_padded and product.has_gaps and product.result not in fixed:
            found |= _with_reshapes(graph, product.result, with_gaps(graph.types[product.result]))
    for item in graph.outputs:
        [value] = item.operands
        if item.get("strides") == with_gaps(graph.types[value]) and item["strides"] != row_major(graph.types[value].shape):
            found |= _written_by_kernel(graph, value, item["strides"])
    return {value: strides for value, strides in found.items() if value not in fixed}


def with_gaps(kind: TensorType) -> Shape:
    """The strides of a value whose rows are aligned."""
    *rows, columns = kind.shape
    step = max(1, ALIGNED // kind.dtype.itemsize)
    return tuple(stride // columns * (-(-columns // step) * step) for stride in row_major((*rows, columns))[:-1]) + (1,)


def _written_by_kernel(graph: Graph, value: int, strides: Shape) -> dict[int, Shape]:
    """The strides of a value, and of what it reshapes, that a generated kernel writes so."""
    found = {value: strides}
    while (item := graph.node_of[value]).op in RESHAPES:
        [source] = item.operands
        seen = reshaped_strides(graph.types[value].shape, found[value], graph.types[source].shape)
        if seen is None:
            return {}
        found[source], value = seen, source
    return found if item.op == "block" else {}


def _with_reshapes(graph: Graph, value: int, strides: Shape) -> dict[int, Shape]:
    """The strides of a value, and of those of its reshapes that show its memory."""
    found = {value: strides}
    for shown, item in enumerate(graph.node_of):
        if item.op in RESHAPES and item.operands[0] in found:
            source = item.operands[0]
            seen = reshaped_strides(graph.types[source].shape, found[source], graph.types[shown].shape)
            found |= {} if seen is None else {shown: seen}
    return found
