"""The ops of a block graph as the cost model sees them at any tile shapes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mirage_eg.backends.cost.liveness import shows_tile
from mirage_eg.backends.cost.staged_operands import Staged, is_of_bytes, staged_operand
from mirage_eg.backends.triton.storage import product_dtype
from mirage_eg.backends.triton.viewed_loads import viewed_loads
from mirage_eg.ir.definitions import primitive_nodes
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.op.elementwise import EXPONENTIALS, record_of
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape

OF_A_BYTE = 7  # operations of such a conversion outside of products: the same columns times one row took 40 to 47 µs


def functions_of(op: str, attributes: Mapping[str, Any], by_torch: bool = False) -> float:
    """The exponentials in whose time an element of an op is computed; 0 for additions and the like.

    Of an op whose record has no number the most of those of its definition. `by_torch`: in torch's own kernel.
    """
    own = record_of(op)
    if by_torch and own is not None and own.torch_functions:
        return own.torch_functions
    if own is not None and own.functions:
        return own.functions_of(attributes)
    records = ((record_of(name), given) for name, given in primitive_nodes(op, attributes))
    return max((record.functions_of(given) for record, given in records if record is not None), default=0)


class TileOp(NamedTuple):
    """What an op of a block graph does at any tile shapes; `looped` where its operands are in the loop."""

    kind: Kind
    value: int
    size: int  # bytes of an element
    looped: bool
    operands: Sequence[int]
    functions: float = 0
    is_exponential: bool = False
    tensor: Shape = ()  # of an input
    product: DType = DType.float32  # the type in which a product is computed
    is_of_scores: bool = False  # whether exponentials of a product of the loop are part of an operand of a product
    staged: Sequence[Staged] = ()
    operations: int = 1  # of an element
    permutation: Sequence[int] = ()  # of a transpose of a computed tile
    is_reshape: bool = False  # of more than a load, which has its elements where they end up


@lru_cache(maxsize=1 << 12)
def tile_ops(block: Graph) -> tuple[TileOp, ...]:
    """The ops of a block graph of primitive ops but for its stores; a search asks for the work of few, at many tile shapes."""
    loaded = set[int]()  # values that are loads, or views of them
    scores, powers = set[int](), set[int]()  # values behind products of a loop, and behind exponentials of these
    at_once = {value for steps in viewed_loads(block).values() for _, value in steps}
    found = []
    for item, values in block.numbered():
        if item.op == "output":
            continue
        kind, value = item.kind, values[0]
        dtype = block.types[value].dtype
        looped = max((block.phases[i] for i in item.operands), default=block.phases[value]) is Phase.LOOP
        tile_op = TileOp(kind, value, dtype.itemsize, looped, item.operands)
        if item.op == "input" or (shows_tile(block, item, values) and item.operands[0] in loaded):
            loaded.add(value)
        if kind is Kind.BOUNDARY:
            tile_op = tile_op._replace(tensor=tuple(item["shape"]))
        elif item.op in TRANSPOSES and value not in loaded:
            tile_op = tile_op._replace(permutation=item["permutation"])
        elif item.op in RESHAPES and value not in at_once:
            tile_op = tile_op._replace(is_reshape=True)
        elif kind is Kind.MATMUL:
            product = product_dtype(block, item, dtype)
            staged = [staged_operand(block, operand, product, operand not in loaded) for operand in item.operands]
            tile_op = tile_op._replace(product=product, staged=staged, is_of_scores=not powers.isdisjoint(item.operands))
        elif kind is Kind.ELEMENTWISE:
            tile_op = tile_op._replace(functions=functions_of(item.op, item.mapping), is_exponential=item.op in EXPONENTIALS)
            if is_of_bytes(block, value):
                tile_op = tile_op._replace(operations=OF_A_BYTE)
        if looped and (kind is Kind.MATMUL or not scores.isdisjoint(item.operands)):
            scores.update(values)
            is_power = item.op in EXPONENTIALS or not powers.isdisjoint(item.operands)
            powers.update(values if is_power else ())
        found.append(tile_op)
    return tuple(found)
