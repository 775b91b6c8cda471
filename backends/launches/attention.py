"""Attention as one call of the library: softmax(scale · q k + mask) v, the two products and all ops between them.

PyTorch chooses the kernel: cuDNN's, FlashAttention's, or another one. Groups of heads may share keys and values. The softmax is
one op or written out, with an indicator of the scores that count or an addend; casts within it are dropped. Batch and heads may
be one dim of the products: the library reads what has two, without a copy.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import CASTS, QUOTIENTS, SUMS
from mirage_eg.ir.op.moves import JOINS, PLAIN_VIEWS, RESHAPES, TRANSPOSES, VIEWS_OF_ALL
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.reached import reached
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.weights import marked_weights, prepared_values
from mirage_eg.ir.written_softmax import written_softmax

ROWS_OF_FLASH = 64  # at most: FlashAttention comes before cuDNN's kernel
_WIDEST, _ALIGNED = 256, 8  # heads: what FlashAttention takes
HALVES = frozenset({DType.float16, DType.bfloat16})  # types of the library's kernels


@dataclass(frozen=True, slots=True)
class LibraryAttention:
    """The operands of an attention, as values and in the four dims in which they are passed, and the values that it makes.

    The keys are the last dim of `keys`. A `constant` mask is an indicator among the weights, such as a causal one.
    """

    queries: int
    keys: int
    v: int
    mask: int | None
    scale: Fraction
    constant: bool
    shapes: tuple[Shape, ...]  # of queries, keys, v, and the mask
    values: tuple[int, ...]  # the result's last
    views: tuple[int, ...]  # values that show others in the order of the operands, and that nothing else reads
    order: tuple[int, ...] = ()  # of the result's dims: the library has the heads of a position side by side in memory

    @property
    def read(self) -> tuple[int, ...]:
        return (self.queries, self.keys, self.v, *(() if self.mask is None else (self.mask,)))

    @property
    def side_by_side(self) -> Shape:
        """The strides of queries that have the heads of a position side by side, as cuDNN's result has then."""
        _, heads, rows, width = self.shapes[0]
        return (heads * rows * width, width, heads * width, 1)


def library_attentions(graph: Graph, kinds: Set[DType] = HALVES) -> tuple[LibraryAttention, ...]:
    """The attentions of a kernel graph in these types, in the order of their results; no value is made in two of them."""
    ops = {item.op for item in graph.nodes}
    if not (ops & SOFTMAXES or ({"exp", "sum"} <= ops and ops & QUOTIENTS)) or dims_of(graph):
        return ()
    taken, found = set(prepared_values(graph)), list[LibraryAttention]()
    for item, values in graph.numbered():
        if item.kind is Kind.MATMUL:
            attention = _Match(graph, kinds).attention(item, values[0])
            if attention is not None and taken.isdisjoint(attention.values):
                found.append(attention)
                taken.update(attention.values)
    return tuple(found)


def query_layouts(graph: Graph, fixed: Set[int]) -> dict[int, Shape]:
    """The strides of queries that generated kernels write for a library's attention alone, whose result is asked for with the
    heads of a position side by side; none of the values `fixed`."""
    return {
        it.queries: it.side_by_side
        for it in library_attentions(graph)
        if it.order and it.queries not in fixed and graph.node_of[it.queries].op in ("block", *JOINS)
        if graph.types[it.queries].shape == it.shapes[0]
        if {graph.makers[value] for value in (*it.values, *it.views)}.issuperset(graph.readers[it.queries])
    }


_VIEWS = VIEWS_OF_ALL | PLAIN_VIEWS
_BETWEEN = frozenset({"scale", *SUMS, *CASTS, *RESHAPES})  # a product and its softmax


class _Match:
    """Matches an attention from its second product backwards; `inner` collects the values between the products, last first."""

    def __init__(self, graph: Graph, kinds: Set[DType]) -> None:
        self.graph, self.kinds = graph, kinds
        self.inner: list[int] = []

    def attention(self, product: Node, result: int) -> LibraryAttention | None:
        """The attention with this result, if it is one and all that is inside is read inside only."""
        softmax = self._softmax(product.operands[0])
        if softmax is None:
            return None
        scores, mask = softmax
        scale, is_added, batch = Fraction(1), False, self.graph.types[scores].shape[:-2]
        while (item := self.graph.node_of[scores]).op in _BETWEEN:
            self.inner.append(scores)
            whole, scores = self.graph.types[scores].shape, item.operands[0]
            if item.op == "scale":
                scale *= item["factor"]
            elif item.op in RESHAPES and self.graph.types[scores].shape[-2:] != whole[-2:]:
                return None
            elif item.op in SUMS:
                if mask is not None or scale != 1:
                    return None
                scores, mask = sorted(item.operands, key=lambda value: not self._is_product(self.graph.node_of[value]))
                is_added, batch = True, whole[:-2]
        if item.kind is not Kind.MATMUL or scale <= 0:
            return None
        self.inner.append(scores)
        made = (*reversed(self.inner), result)
        nodes = {self.graph.makers[value] for value in made}
        if any(not nodes.issuperset(self.graph.readers[value]) for value in self.inner):
            return None
        if self.graph.types[scores].shape != self.graph.types[product.operands[0]].shape:
            return None  # the mask has more rows or heads
        read = (*item.operands, product.operands[1], *(() if mask is None else (mask,)))
        order, shown = self._reordered(result)
        if len(shown) > 1 and (mask is None or len(self.graph.types[mask].shape) == 2):
            batch = self.graph.types[shown[0]].shape[:-2]
        shapes = _in_four_dims(_of_batch(batch, [self.graph.types[value].shape for value in read]))
        kinds = {self.graph.types[value].dtype for value in (*read[:3], result, *(read[3:] if is_added else ()))}
        if shapes is None or len(kinds) > 1 or not kinds <= self.kinds:
            return None
        weights = marked_weights(self.graph) | prepared_values(self.graph)
        constant = mask in weights and not is_added and shapes[3][:2] == (1, 1) and min(shapes[3][2:]) > 1
        behind = [self._with_shape(value, shape) for value, shape in zip(read, shapes, strict=True)]
        queries, keys, v, *masks = (chain[-1] for chain in behind)
        merged = (value for chain in behind for value in chain[:-1] if nodes.issuperset(self.graph.readers[value]))
        values = (*made[:-1], *merged, result, *shown)
        views = self._views(read, nodes)
        return LibraryAttention(queries, keys, v, next(iter(masks), None), scale, constant, shapes, values, views, order)

    def _with_shape(self, value: int, shape: Shape) -> list[int]:
        """The value and what its reshapes read, up to a value of this shape: of two dims before they are merged. Without such
        reshapes the value alone."""
        chain = [value]
        while self.graph.types[chain[-1]].shape != shape:
            item = self.graph.node_of[chain[-1]]
            if item.op not in RESHAPES:
                return [value]
            chain.append(item.operands[0])
        return chain

    def _reordered(self, result: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The order of a transpose that alone reads the result and swaps heads and rows, with its value, and that of a reshape
        before it; else no order."""
        shown: tuple[int, ...] = ()
        while len(self.graph.readers[result]) == 1:
            [reader] = self.graph.readers[result]
            item, rank = self.graph.nodes[reader], len(self.graph.types[result].shape)
            if item.op in TRANSPOSES and item["permutation"] == (*range(rank - 3), rank - 2, rank - 3, rank - 1):
                return tuple(item["permutation"]), (*shown, self.graph.makers.index(reader))
            if shown or item.op not in RESHAPES or item["shape"][-2:] != self.graph.types[result].shape[-2:]:
                break
            shown = (result := self.graph.makers.index(reader),)
        return (), ()

    def _is_product(self, item: Node) -> bool:
        while item.op in RESHAPES:
            item = self.graph.node_of[item.operands[0]]
        return item.kind is Kind.MATMUL or item.op in _BETWEEN - SUMS

    def _softmax(self, value: int) -> tuple[int, int | None] | None:
        """The scores and the indicator of a softmax over the last dim, which is one op or e / sum e."""
        value = self._softmax_behind(value)
        item = self.graph.node_of[value]
        self.inner.append(value)
        last = len(self.graph.types[value].shape) - 1
        if item.op in SOFTMAXES and item["dim"] == last:
            return item.operands[0], next(iter(item.operands[1:]), None)
        found = written_softmax(self.graph, value)
        if found is None:
            return None
        self.inner += (*found.between, found.exponential)
        return self.graph.node_of[found.exponential].operands[0], found.indicator

    def _views(self, values: Sequence[int], readers: set[int]) -> tuple[int, ...]:
        """The views behind these values that only such nodes, or other such views, read; cuts of them, too."""
        makers = self.graph.node_of
        behind = reached(values, lambda value: makers[value].operands if makers[value].op in _VIEWS else ())
        shown = {value for value in behind if makers[value].op in _VIEWS}
        while True:
            nodes = readers.union(self.graph.makers[value] for value in shown)
            own = {value for value in shown if nodes.issuperset(self.graph.readers[value])}
            if own == shown:
                return tuple(sorted(shown))
            shown = own

    def _softmax_behind(self, value: int) -> int:
        """The value behind casts and reshapes of the batch."""
        ends = self.graph.types[value].shape[-2:]
        while (item := self.graph.node_of[value]).op in CASTS or item.op in RESHAPES:
            if self.graph.types[item.operands[0]].shape[-2:] != ends:
                break
            self.inner.append(value)
            value = item.operands[0]
        return value


def _of_batch(batch: Shape, shapes: list[Shape]) -> list[Shape]:
    """The shapes of queries, keys, v and a mask, with both dims of the batch where the products have one for them."""
    own = {shape[:-2] for shape in shapes[:3]}
    if own == {(prod(batch),)} and len(batch) == 2:
        return [*((*batch, *shape[-2:]) for shape in shapes[:3]), *shapes[3:]]
    return shapes


def _in_four_dims(shapes: list[Shape]) -> tuple[Shape, ...] | None:
    """Queries, keys, v and the mask as batch, heads, rows and columns, if the library takes them; v is as wide as queries."""
    (*batch, rows, width), (*shared, _, columns), v = shapes[:3]
    shared = [*[1] * (len(batch) - len(shared)), *shared]
    grouped = len(batch) > 1 and shared == [*batch[:-1], 1]
    if (shared != batch and not grouped) or [*[1] * (len(shared) + 2 - len(v)), *v] != [*shared, columns, width]:
        return None
    if width > _WIDEST or width % _ALIGNED:
        return None
    heads = 2 if grouped else min(1, len(batch))  # the last dims of the batch

    def split(dims: list[int]) -> tuple[int, int]:
        return prod(dims[: len(dims) - heads]), prod(dims[len(dims) - heads :])

    found: list[Shape] = [(*split(batch), rows, width), (*split(shared), width, columns), (*split(shared), columns, width)]
    for mask in shapes[3:]:
        padded = [*[1] * (len(batch) + 2 - len(mask)), *mask]
        *its, high, wide = padded
        whole = split(its)
        if len(padded) > len(batch) + 2 or high not in (1, rows) or wide != columns:
            return None
        if any(count not in (1, full) for count, full in zip(whole, split(batch), strict=True)):
            return None
        found.append((*whole, high, wide))
    return tuple(found)
