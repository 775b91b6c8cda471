"""Tiles of a Triton kernel: their dims, their padded extents, and the values of the padding.

Triton's extents are powers of two, and at least 16 in a `tl.dot`. So a *logical* tile of the µGraph becomes a *physical* one:
unit dims are squeezed, the others padded. Dims that an op ties together are padded alike: a union over (value, dim), decided
before any text is written. Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain, count
from math import prod

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand_custom, lowered_by
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import MOVES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.reached import reached
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.shapes import matmul as matmul_shape

DOT_EXTENT = 16  # smallest extent of each dim of a tl.dot
_SKINNY_ROWS = 32  # products of at most so many rows, and at least so many columns, may have their operands swapped
WIDE_COLUMNS = 64
SMALL_PRODUCT = 1024  # a matmul of so few multiplications is written as multiply-and-sum, without padding to DOT_EXTENT


def real_dims(shape: Shape) -> list[int]:
    """The dims of more than one element."""
    return [dim for dim, extent in enumerate(shape) if extent > 1]


@dataclass(frozen=True, slots=True)
class Tile:
    """A value of the block graph as the kernel holds it.

    `padded` has an extent for every logical dim (1 where the dim is squeezed). `ends` has, for each dim that is cut into parts
    of unequal extents, the number of its elements from the start of this block's tile, as an expression; the elements after
    them are padding too. At every position whose index in a dim of `zero` is in the padding, the value is exactly 0.
    `finite`: the padding has no NaN or infinity unless the values themselves overflow.
    """

    name: str
    dtype: DType  # of the variable
    shape: Shape
    padded: Shape
    zero: frozenset[int] = frozenset()
    finite: bool = False
    ends: Mapping[int, str] = field(default_factory=dict)

    @property
    def dims(self) -> tuple[int, ...]:
        """The logical dims that the variable has."""
        return tuple(real_dims(self.shape))

    @property
    def physical(self) -> Shape:
        """Shape of the variable."""
        return tuple(self.padded[dim] for dim in self.dims)

    @property
    def ragged(self) -> frozenset[int]:
        """The dims that may have padding."""
        return frozenset(dim for dim in self.dims if self.padded[dim] != self.shape[dim] or dim in self.ends)

    @property
    def axis(self) -> dict[int, int]:
        """From logical dim to axis of the variable."""
        return {dim: axis for axis, dim in enumerate(self.dims)}


class MatmulForm(Enum):
    """How a matmul on tiles is written."""

    OUTER = "outer product"  # k = 1: a broadcast multiplication
    SUM = "multiply and sum"  # a vector, or very small
    DOT = "tl.dot"


@lru_cache(maxsize=1 << 16)
def power_of_two(extent: int) -> int:
    """The smallest power of two of at least `extent`."""
    return 1 << (extent - 1).bit_length()


@lru_cache(maxsize=1 << 16)
def padded_elements(shape: Shape) -> int:
    """The elements of a tile that is padded to powers of two; a search asks for few shapes, millions of times."""
    return prod(map(power_of_two, shape))


@lru_cache(maxsize=1 << 16)
def matmul_form(left: Shape, right: Shape) -> MatmulForm:
    """The form that fits the operands' shapes."""
    m, k, n = left[-2], left[-1], right[-1]
    if k == 1:
        return MatmulForm.OUTER
    batch = matmul_shape([left, right], {})[:-2]
    work = padded_elements((*batch, m, k, n))
    return MatmulForm.SUM if m == 1 or n == 1 or work <= SMALL_PRODUCT else MatmulForm.DOT


def is_skinny(left: Shape, right: Shape) -> bool:
    """Has this product few rows and many columns, so that (Bᵀ Aᵀ)ᵀ lets the weight be the wide operand?"""
    plain = all(extent == 1 for extent in (*left[:-2], *right[:-2]))
    return plain and left[-2] <= _SKINNY_ROWS and right[-1] >= WIDE_COLUMNS and matmul_form(left, right) is MatmulForm.DOT


def expanded(block: Graph) -> Graph:
    """The block graph without derived ops, definitions and thread graphs, as it is lowered."""
    plain = all(
        item.kind is not Kind.GRAPH and OPS[item.op].expand is None and lowered_by(item.op, item.mapping) is None
        for item in block.nodes
    )
    return block if plain else flatten(expand_custom(block))


def flatten(graph: Graph) -> Graph:
    """The block graph with thread graphs written out, dead values left out, and no op twice."""
    checker = Checker(graph.level, graph.grid, graph.loop)
    alive = _alive(graph)
    new_value: dict[int, int] = {}
    seen: dict[Node, list[int]] = {}

    def append(item: Node) -> list[int]:
        if item in seen:
            return seen[item]
        values = list(checker.append(item))
        if item.kind is not Kind.BOUNDARY:  # equal inputs may read different tensors
            seen[item] = values
        return values

    for number, (item, values) in enumerate(graph.numbered()):
        if number not in alive:
            continue
        operands = [new_value[i] for i in item.operands]
        if item.op == "thread":
            inner: Graph = item["graph"]
            results: dict[int, int] = {}
            arguments = iter(operands)
            for step, defined in inner.numbered():
                if step.op == "output":
                    new_value[values[0]] = results[step.operands[0]]
                elif step.op == "input":
                    results[defined[0]] = next(arguments)
                else:
                    [results[defined[0]]] = append(step.moved(results))
        else:
            new_value.update(zip(values, append(Node(item.op, tuple(operands), item.attributes)), strict=True))
    return Graph.of_checked(checker, graph.threads, graph.cluster)


def _alive(graph: Graph) -> set[int]:
    """Numbers of the nodes that an output needs, and of all inputs: they are the operands of the kernel."""
    ends = [number for number, item in enumerate(graph.nodes) if item.op in ("input", "output")]
    return {*reached(ends, lambda number: [graph.makers[operand] for operand in graph.nodes[number].operands])}


Dim = tuple[int, int]  # value, logical dim


def padding(graph: Graph) -> list[Shape]:
    """The padded extents of every value of a flattened, expanded block graph."""
    shapes = [type_.shape for type_ in graph.types]
    parent: dict[Dim, Dim] = {(value, dim): (value, dim) for value, shape in enumerate(shapes) for dim in range(len(shape))}

    def find(x: Dim) -> Dim:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    dots: list[Dim] = []
    for item, values in graph.numbered():
        if item.op in ("input", "output"):
            continue
        for x, y in _tied_dims(item, values[0], shapes):
            parent[find(x)] = find(y)
        if item.kind is Kind.MATMUL:
            left, right = (shapes[i] for i in item.operands)
            if matmul_form(left, right) is MatmulForm.DOT:
                result = values[0]
                last = len(shapes[result]) - 1
                dots += [(result, last - 1), (result, last), (item.operands[0], len(left) - 1)]
    smallest = {find(dim): DOT_EXTENT for dim in dots}
    return [
        tuple(
            1 if extent == 1 else max(power_of_two(extent), smallest.get(find((value, dim)), 1))
            for dim, extent in enumerate(shape)
        )
        for value, shape in enumerate(shapes)
    ]


def _tied_dims(item: Node, result: int, shapes: Sequence[Shape]) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dims that an op ties together, so that both have the same padding."""
    result_shape = shapes[result]

    def aligned(operand: int, last: int = 0) -> Iterator[tuple[Dim, Dim]]:
        """Dims of an operand against those of the result, counted from the end, leaving out the last `last`."""
        rank = len(shapes[operand])
        for back in range(1 + last, min(rank, len(result_shape)) + 1):
            if shapes[operand][-back] == result_shape[-back] != 1:
                yield (operand, rank - back), (result, len(result_shape) - back)

    match item.kind:
        case Kind.ELEMENTWISE:
            for operand in item.operands:
                yield from aligned(operand)
        case Kind.REDUCTION | Kind.ACCUMULATOR:
            for dim in range(len(result_shape)):
                if dim != item.get("dim") or shapes[item.operands[0]][dim] == result_shape[dim]:
                    yield (item.operands[0], dim), (result, dim)
        case Kind.MATMUL:
            left, right = item.operands
            yield from aligned(left, last=2)
            yield from aligned(right, last=2)
            ranks = len(shapes[left]), len(shapes[right]), len(result_shape)
            yield (left, ranks[0] - 2), (result, ranks[2] - 2)
            yield (right, ranks[1] - 1), (result, ranks[2] - 1)
            yield (left, ranks[0] - 1), (right, ranks[1] - 2)
        case Kind.REARRANGEMENT:
            for piece in MOVES[item.op].index([shapes[operand] for operand in item.operands], item.mapping):
                operand = item.operands[piece.operand]
                for group in piece.groups:
                    match [dim for dim, _ in group.digits if dim is not None], group.terms:
                        case [source], [(dim, _)] if shapes[operand][source] == result_shape[dim]:
                            yield (operand, source), (result, dim)
        case kind:
            raise AssertionError(f"{item.op} ({kind}) is not an op of a flattened block graph")


def zero_dims(tiles: Sequence[Tile], rank: int) -> tuple[frozenset[int], frozenset[int]]:
    """Dims of a broadcast result in which every operand's padding is zero, and those in which some operand's is."""
    claims = [frozenset(dim + rank - len(tile.shape) for dim in tile.zero) for tile in tiles]
    return frozenset.intersection(*claims), frozenset.union(*claims)


def new_name(taken: set[str], wanted: str) -> str:
    """`wanted`, with the smallest number as a suffix that makes it unused if it is taken; it is taken from now on."""
    name = next(name for name in chain([wanted], (f"{wanted}_{number}" for number in count(2))) if name not in taken)
    taken.add(name)
    return name
