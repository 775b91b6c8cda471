"""Products of matrices whose kernel adds a bias to each column: x w + bias, one kernel of cuBLAS."""

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import SUMS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.weights import prepared_values


@dataclass(frozen=True, slots=True)
class BiasedProduct:
    """The product, the bias, and the values of all nodes: the product, its reshapes, the sum, and its `activation`, if any."""

    product: Node
    bias: int
    values: tuple[int, ...]  # the result's last
    activation: str = ""  # an op (`backends.launches.activated_product`)

    @property
    def read(self) -> tuple[int, ...]:
        """The values that the kernel reads."""
        return (*self.product.operands, self.bias)


def biased_products(graph: Graph) -> Iterator[BiasedProduct]:
    """The products of a kernel graph that the library computes with the bias behind them, each sum by one kernel."""
    if dims_of(graph):
        return
    fixed, sums = prepared_values(graph), set[int]()
    for value in products_of_matrices(graph):
        found = None if value in fixed else _with_bias(graph, value)
        if found is not None and found.values[-1] not in sums:  # the bias may be a product, too
            sums.add(found.values[-1])
            yield found


def products_of_matrices(graph: Graph) -> Iterator[int]:
    """The products that one kernel of the library computes: of two matrices in one type of floats."""
    for item, values in graph.numbered():
        if item.kind is Kind.MATMUL and _is_of_matrices(graph, item, values[0]):
            yield values[0]


_TYPES = (DType.float16, DType.bfloat16, DType.float32)  # those of the library's kernels


def _is_of_matrices(graph: Graph, item: Node, value: int) -> bool:
    kinds = [graph.types[each] for each in (*item.operands, value)]
    return all(len(kind.shape) == 2 and kind.dtype is kinds[0].dtype for kind in kinds) and kinds[0].dtype in _TYPES


def _with_bias(graph: Graph, product: int) -> BiasedProduct | None:
    """A product with its bias; None where the sum is another one, or not the only reader."""
    values, given = [product], graph.types[product]
    while len(graph.readers[values[-1]]) == 1:
        reader, results = graph.numbered()[graph.readers[values[-1]][0]]
        if reader.op not in SUMS | RESHAPES:
            return None
        others, kind = [it for it in reader.operands if it != values[-1]], graph.types[results[0]]
        values.append(results[0])
        if (kind.shape[-1:], kind.dtype) != (given.shape[-1:], given.dtype):
            return None
        if reader.op in SUMS:
            bias = [graph.types[it] for it in others]
            is_bias = [it.dtype for it in bias] == [given.dtype] and bias[0].shape in ((kind.shape[-1],), (1, kind.shape[-1]))
            return BiasedProduct(graph.node_of[product], others[0], tuple(values)) if is_bias else None
    return None
