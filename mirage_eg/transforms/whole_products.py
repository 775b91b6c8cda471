"""Which products with a weight are computed whole though only slices of them are read.

A product with the joined weights of queries, keys and values is one kernel, and others read slices of its result. Where all
slices meet in elementwise ops (the halves of a rotary embedding, gate and value of a gated unit), the product is divided
instead: one kernel computes the parts, and what becomes of them. It stays whole if the columns of a part do not follow each
other, as those of the halves of several heads: slices of the weight would be copied. The sum of a whole product and a bias is
whole, too: one kernel of the library computes both. The product of queries and keys that are joined is one sum where the
library has a kernel of the attention: by parts it is the sum of several products. A product in half precision of which only
the columns that fill its rows to 16 bytes are not read is computed with them: the library is several times faster so.
"""

from mirage_eg.backends.launches.aligned_rows import narrowed_rows
from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.biased_product import biased_products
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind

_MANY_ROWS = 512  # of queries: for 128, embeddings in the kernel of the attention were predicted to save 2.0 µs of 6.1
_WHOLE = -1  # the part of a product that is read without a slice


def whole_products(program: Graph) -> frozenset[int]:
    """The products of a program in primitive ops that stay whole, and their sums with a bias (`ir.dissolve.dissolve`)."""
    products = (
        values[0]
        for item, values in program.numbered()
        if item.kind is Kind.MATMUL and any(len(program.types[i].shape) == 2 for i in item.operands)
    )
    whole = frozenset(product for product in products if not _parts_meet(program, product))
    return whole.union(it.values[-1] for it in biased_products(program) if it.values[0] in whole)


def scores_of_attentions(program: Graph) -> frozenset[int]:
    """The products of queries and keys in the attentions of the library; of few rows rotary embeddings may be part of one
    generated kernel, by their halves."""
    return frozenset(it.values[0] for it in library_attentions(program) if it.shapes[0][-2] >= _MANY_ROWS)


def filled_products(program: Graph) -> frozenset[int]:
    """The products in half precision, with their bias, of which the columns that fill the rows to multiples of 16 bytes alone
    are not read."""
    sources = {program.node_of[value].operands[0] for value in narrowed_rows(program)}
    return frozenset(it for it in sources if program.types[it].dtype.itemsize == 2 and len(program.readers[it]) == 1)


def _parts_meet(program: Graph, product: int) -> bool:
    """Whether a product is read in parts, all of which elementwise ops and concatenations combine."""
    parts: dict[int, frozenset[int]] = {}  # of each value that follows from the product by such ops, the parts in it
    groups: list[frozenset[int]] = []
    views, columns = {product}, program.types[product].shape[-1]
    for item, values in program.numbered():
        if item.op == "output":
            if item.operands[0] in views:
                return False
        elif views.intersection(item.operands) and item.op == "slice":
            shape = program.types[item.operands[0]].shape
            if item["dim"] != len(shape) - 1 or shape[-1] != columns or item["step"] != 1:
                return False
            parts[values[0]] = frozenset(values)
            groups.append(parts[values[0]])
        elif views.intersection(item.operands) and item.op in RESHAPES:
            views.update(values)
        elif item.kind not in (Kind.ELEMENTWISE, Kind.REARRANGEMENT):
            if views.intersection(item.operands):
                return False
        else:
            own = [parts.get(i, frozenset({_WHOLE} if i in views else ())) for i in item.operands]
            joined = frozenset[int]().union(*own)
            if joined:
                parts.update(dict.fromkeys(values, joined))
                groups.append(joined)
    return any(len(group) > 1 for group in groups) and len(_merged(groups)) == 1


def _merged(groups: list[frozenset[int]]) -> list[frozenset[int]]:
    """The groups, with those joined that have a part in common."""
    merged: list[frozenset[int]] = []
    for group in groups:
        apart = [other for other in merged if other.isdisjoint(group)]
        merged = [*apart, group.union(*(other for other in merged if other not in apart))]
    return merged
