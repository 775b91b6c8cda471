"""Where concatenations have joined values, dim by dim: there they are computed in pieces (`ir/dissolve`)."""

from collections.abc import Sequence
from math import prod

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType
from mirage_eg.ir.op.moves import BROADCASTS, JOINS, RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.selections import CutPattern, Selection, cuts_of_slice, everything, pieces
from mirage_eg.ir.shapes import Shape, reshape_groups

MOST_PIECES = 4  # of one value; a concatenation of more stays


def few_pieces(extent: int, cuts: CutPattern) -> list[Selection]:
    """The pieces of a dim; all of it where there would be many."""
    found = pieces(extent, cuts)
    return found if len(found) <= MOST_PIECES else [everything(extent)]


NONE: CutPattern = frozenset()


class CutFinder:
    """Finds the cuts of every dim of every value: `found`.

    A cut ends at a product with a weight, at a product of which no slice ends there, and at an elementwise op with an operand
    that would be computed in parts for it alone; not so `everywhere`. The parts of values in `kept` are slices of the whole.
    """

    def __init__(self, program: Graph, kept: frozenset[int], everywhere: bool) -> None:
        self.everywhere = everywhere
        self.makers = program.node_of
        self.types = program.types
        self.views = set[int]()  # of inputs and of values in `kept`
        self.sliced: dict[int, set[tuple[int, int]]] = {}  # of every value, the dims and places of the ends of its slices
        for value, item in enumerate(self.makers):
            if (
                item.op == "input"
                or value in kept
                or (item.kind is Kind.REARRANGEMENT and self.views.issuperset(item.operands))
            ):
                self.views.add(value)
            if item.op == "slice":
                self.sliced.setdefault(item.operands[0], set()).update((item["dim"], item[end]) for end in ("start", "stop"))
        self.found: list[tuple[CutPattern, ...]] = []
        for value, item in enumerate(self.makers):
            shape = self.types[value].shape
            own = _cuts_of(item, self.types[value], [(self.types[i], self.found[i]) for i in item.operands])
            if not everywhere:
                own = self.worthwhile(value, item, shape, own)
            number = prod(len(few_pieces(extent, cuts)) for extent, cuts in zip(shape, own, strict=True))
            self.found.append((NONE,) * len(shape) if value in kept or number > MOST_PIECES else own)

    def worthwhile(self, value: int, item: Node, shape: Shape, own: tuple[CutPattern, ...]) -> tuple[CutPattern, ...]:
        match item.kind:
            case Kind.MATMUL if any(len(self.types[i].shape) == 2 for i in item.operands):
                return (NONE,) * len(shape)
            case Kind.MATMUL:
                rows, columns = (
                    frozenset(cut for cut in own[dim] if self.is_sliced(value, len(shape) + dim, cut)) for dim in (-2, -1)
                )
                return (*own[:-2], rows, columns)
            case Kind.ELEMENTWISE:
                return tuple(
                    frozenset(cut for cut in cuts if all(self.is_free(i, len(shape) - dim, cut) for i in item.operands))
                    for dim, cuts in enumerate(own)
                )
            case _:
                return own

    def of_contraction(self, left: int, right: int) -> CutPattern:
        """The cuts of the dim over which a product sums: those at which neither operand is computed in parts for it alone."""
        cuts = self.found[left][-1] | self.found[right][-2]
        return frozenset(cut for cut in cuts if self.everywhere or (self.is_free(left, 1, cut) and self.is_free(right, 2, cut)))

    def is_sliced(self, value: int, dim: int, cut: tuple[int, int]) -> bool:
        """Whether a slice of a value ends at a cut."""
        return cut[0] == self.types[value].shape[dim] and (dim, cut[1]) in self.sliced.get(value, ())

    def is_free(self, value: int, back: int, cut: tuple[int, int]) -> bool:
        """Whether a value has parts anyway at a cut of a dim, counted from the last.

        It has the cut, or a slice ends there, or it is a view of an input or a kept value, or an elementwise op of such values.
        """
        stack = [value]
        while stack:
            value = stack.pop()
            shape = self.types[value].shape
            dim = len(shape) - back
            if dim < 0 or shape[dim] == 1 or value in self.views or cut in self.found[value][dim]:
                continue
            if self.is_sliced(value, dim, cut):
                continue
            if OPS[self.makers[value].op].kind is not Kind.ELEMENTWISE:
                return False
            stack += self.makers[value].operands
        return True


def _cuts_of(
    item: Node, kind: TensorType, given: Sequence[tuple[TensorType, tuple[CutPattern, ...]]]
) -> tuple[CutPattern, ...]:
    shape = kind.shape
    operands = [(other.shape, cuts) for other, cuts in given]
    match item.kind, item.op:
        case each, op if each is Kind.ELEMENTWISE or op in BROADCASTS:
            return _merged(shape, operands)
        case Kind.MATMUL, _:
            batch = _merged(shape[:-2], [(other[:-2], cuts[:-2]) for other, cuts in operands])
            return (*batch, operands[0][1][-2], operands[1][1][-1])
        case Kind.REDUCTION, _:
            return tuple(NONE if dim == item["dim"] else cuts for dim, cuts in enumerate(operands[0][1]))
        case Kind.REARRANGEMENT, op if op in TRANSPOSES:
            return tuple(operands[0][1][dim] for dim in item["permutation"])
        case Kind.REARRANGEMENT, op if op in RESHAPES:
            return _of_reshape(*operands[0], shape)
        case Kind.REARRANGEMENT, "slice":
            taken = range(item["start"], item["stop"], item["step"])
            cuts, dim = operands[0][1], item["dim"]
            own = frozenset(cuts_of_slice(cuts[dim], taken))
            return (*cuts[:dim], own, *cuts[dim + 1 :])
        case Kind.REARRANGEMENT, op if op in JOINS and all(other.dtype is kind.dtype for other, _ in given):
            return _of_concat(item["dim"], shape, operands)
        case _:
            return (NONE,) * len(shape)


def _merged(shape: Shape, operands: Sequence[tuple[Shape, tuple[CutPattern, ...]]]) -> tuple[CutPattern, ...]:
    result = [NONE] * len(shape)
    for other, cuts in operands:
        for back in range(1, len(other) + 1):
            if other[-back] == shape[-back]:
                result[-back] |= cuts[-back]
    return tuple(result)


def _of_reshape(before: Shape, cuts: tuple[CutPattern, ...], after: Shape) -> tuple[CutPattern, ...]:
    result = [NONE] * len(after)
    for dims, results in reshape_groups(before, after):
        inner = 1
        for dim in reversed(dims):
            for period, offset in cuts[dim]:
                if (place := _place(period * inner, offset * inner, results, after)) is not None:
                    result[place[0]] |= {place[1:]}
            inner *= before[dim]
    return tuple(result)


def _place(period: int, offset: int, dims: Sequence[int], shape: Shape) -> tuple[int, int, int] | None:
    """The dim of merged dims to which a cut belongs, with its period and offset there."""
    inner = 1
    for dim in reversed(dims):
        if period % inner == 0 and offset % inner == 0 and shape[dim] % (period // inner) == 0:
            return dim, period // inner, offset // inner
        inner *= shape[dim]
    return None


def _of_concat(dim: int, shape: Shape, operands: Sequence[tuple[Shape, tuple[CutPattern, ...]]]) -> tuple[CutPattern, ...]:
    result = list(_merged(shape, [(shape, tuple(NONE if d == dim else c for d, c in enumerate(cuts))) for _, cuts in operands]))
    own: set[tuple[int, int]] = set()
    start = 0
    for before, cuts in operands:
        own |= {(shape[dim], start + offset) for period, offset in cuts[dim] if period == before[dim]}
        own |= {(shape[dim], start)} if start else set()
        start += before[dim]
    result[dim] = frozenset(own)
    return tuple(result)
