"""Products of matrices whose rows fill multiples of 16 bytes: cuBLAS takes 3 to 8 times as long for others in half precision.

Rows elsewhere do not help: the extents count. A large product of the library therefore reads copies of its operands with zeros
behind their rows, and its result is a part of what the kernel writes, with gaps between rows. Readers take it with its strides.
So they take the first columns of a product whose operand a program pads itself, as Inductor does before it calls a backend.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

from mirage_eg.backends.launches.views import reshaped_strides, strides_behind
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.biased_product import BiasedProduct, biased_products, products_of_matrices
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import prepared_values

ALIGNED = 16  # bytes
ALIGNED_HALVES = ALIGNED // 2  # elements in half precision: also channels of cuDNN's convolutions
_WORTH_COPYING = 32  # operations for each byte of a copied weight: 32 rows took 116 µs on an H200, padded 27 and a copy
_WORTH_COPYING_ROWS = 165  # likewise where the rows of both operands are unaligned, and copied by single elements


@dataclass(frozen=True, slots=True)
class UnalignedProduct:
    """A product in half precision whose rows fill no multiples of 16 bytes.

    `copied`: the operands that are copied where it `is_padded`, which products of two matrices may be. `result`: the value that
    its kernel writes, behind a bias if there is one; `has_gaps`: between the rows of a padded one. `is_odd`: an extent is odd.
    """

    copied: tuple[int, ...]
    result: int
    has_gaps: bool
    is_padded: bool
    is_odd: bool


@once_per_graph
def unaligned_products(graph: Graph) -> Mapping[int, UnalignedProduct]:
    """The products of the library in which cuBLAS finds unaligned rows, by their values."""
    if graph.depends_on_sizes or dims_of(graph):
        return {}
    prepared = prepared_values(graph)
    biased = {it.values[0]: it for it in biased_products(graph)}
    matrices = {*products_of_matrices(graph)}
    products = [values[0] for item, values in graph.numbered() if item.kind is Kind.MATMUL and values[0] not in prepared]
    half = [value for value in products if graph.types[value].dtype in (DType.float16, DType.bfloat16)]
    found = {value: _unaligned(graph, value, biased.get(value), value in matrices) for value in half}
    return {value: it for value, it in found.items() if it.copied}


def _unaligned(graph: Graph, value: int, biased: BiasedProduct | None, may_pad: bool) -> UnalignedProduct:
    left, right = graph.node_of[value].operands
    kind, terms = graph.types[value], graph.types[left].shape[-1]
    step = ALIGNED // kind.dtype.itemsize
    has_gaps = kind.shape[-1] % step > 0
    copied = (left, right) if terms % step else (right,) if has_gaps else ()
    result, flops = biased.values[-1] if biased else value, 2 * prod(kind.shape) * terms
    least = (_WORTH_COPYING_ROWS if terms % step else _WORTH_COPYING) * sum(graph.types[operand].nbytes for operand in copied)
    if has_gaps and result in row_major_results(graph):
        least += _WORTH_COPYING_ROWS * kind.nbytes
    is_odd = bool(terms % 2 or kind.shape[-1] % 2)
    return UnalignedProduct(copied, result, has_gaps, may_pad and min(kind.shape) > 1 and flops >= least, is_odd)


@once_per_graph
def row_major_results(graph: Graph) -> frozenset[int]:
    """The values that are results in row-major order, directly or reshaped."""
    found = {item.operands[0] for item in graph.outputs if item.get("strides") is None}
    for item, values in reversed(graph.numbered()):
        if item.op in RESHAPES and not found.isdisjoint(values):
            found.update(item.operands)
    return frozenset(found)


def narrowed_rows(graph: Graph) -> frozenset[int]:
    """The slices that cut off the columns which pad the rows of a product, or of a kernel's result, to 16 bytes."""
    biased = {it.values[-1] for it in biased_products(graph)}
    return frozenset(
        values[0]
        for item, values in graph.numbered()
        if item.op == "slice" and fills_rows(graph, item)
        if graph.node_of[source := item.operands[0]].kind in (Kind.MATMUL, Kind.GRAPH) or source in biased
    )


def fills_rows(graph: Graph, item: Node) -> bool:
    """Whether a slice leaves out the columns alone that fill its rows to a multiple of 16 bytes."""
    source = graph.types[item.operands[0]]
    *rows, columns = source.shape
    taken = (item["dim"], item["start"], item["step"]) == (len(rows), 0, 1) and item["stop"] < columns
    return taken and with_gaps(replace(source, shape=(*rows, item["stop"]))) == row_major(source.shape)


def strides_with_gaps(graph: Graph, fixed: Collection[int]) -> dict[int, Shape]:
    """The strides of the values with gaps between their rows: results of padded products, and their reshapes, but for those
    that are `fixed`; and results that are wanted so, where a generated kernel writes them or they are part of wider rows."""
    found: dict[int, Shape] = {}
    for product in unaligned_products(graph).values():
        if product.is_padded and product.has_gaps and product.result not in fixed:
            found |= _with_reshapes(graph, product.result, with_gaps(graph.types[product.result]))
    for item in graph.outputs:
        [value] = item.operands
        wanted = item.get("strides")
        if wanted and wanted == with_gaps(graph.types[value]) and wanted != row_major(graph.types[value].shape):
            written = _written_so(graph, value, wanted, fixed)
            agrees = all(value not in fixed and found.get(value, seen) == seen for value, seen in written.items())
            found |= written if agrees else {}
    return {value: strides for value, strides in found.items() if value not in fixed}


def with_gaps(kind: TensorType) -> Shape:
    """The strides of a value whose rows are aligned."""
    if not kind.shape:
        return ()
    *rows, columns = kind.shape
    step = max(1, ALIGNED // kind.dtype.itemsize)
    return tuple(stride // columns * (-(-columns // step) * step) for stride in row_major((*rows, columns))[:-1]) + (1,)


def _written_so(graph: Graph, value: int, strides: Shape, fixed: Collection[int]) -> dict[int, Shape]:
    """The strides of a value, and of what it reshapes, that a generated kernel writes so, or that shows wider rows."""
    found = strides_behind(graph, value, strides)
    last = next(reversed(found))
    item = graph.node_of[last]
    if item.op == "block":
        return found
    is_wide = last in narrowed_rows(graph) and item.operands[0] not in fixed
    return found if is_wide and found[last] == with_gaps(graph.types[last]) else {}


def _with_reshapes(graph: Graph, value: int, strides: Shape) -> dict[int, Shape]:
    """The strides of a value, and of those of its reshapes that show its memory."""
    found = {value: strides}
    for shown, item in enumerate(graph.node_of):
        if item.op in RESHAPES and item.operands[0] in found:
            source = item.operands[0]
            seen = reshaped_strides(graph.types[source].shape, found[source], graph.types[shown].shape)
            found |= {} if seen is None else {shown: seen}
    return found
