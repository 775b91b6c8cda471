"""Programs as terms of a rule domain, for one split of the reduced axes into parts (docs/explanation/expression.md).

A split names the reduced axis of a block graph's loop, and the reduced axis of split-K: the grid of a first kernel divides that
axis, and a second kernel reduces the partial results. A reduced axis has up to three parts, `grid`, `loop` and `tile`. The
indexed domain names the parts (`"k.g"`, `"k.l"`, `"k.t"`), the abstract domain gives each a prime size.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import count
from math import isqrt, prod
from typing import Any

from mirage_eg.ir.axes import Axes, Dim
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import CUTS_AND_JOINS
from mirage_eg.ir.ops import OPS, Kind

Constant = int | str | Fraction


def primes() -> Iterator[int]:
    """All primes, for programs of any number of axes."""
    return (number for number in count(2) if all(number % divisor for divisor in range(2, isqrt(number) + 1)))


@dataclass(frozen=True, slots=True)
class Split:
    """The reduced axis of the loop and the one that is split over the grid, if any; one axis may be both."""

    looped: int | None = None
    grid_axis: int | None = None

    def label(self, axes: Axes) -> str:
        """The split as a phrase with the names of its axes."""
        loop = "no loop" if self.looped is None else f"loop over {axes.names[self.looped]}"
        return loop if self.grid_axis is None else f"{loop}, {axes.names[self.grid_axis]} split over the grid"


def splits(axes: Axes) -> tuple[Split, ...]:
    """Every split of a program for kernels with one loop: none, or one of the reduced axes."""
    return (Split(), *(Split(axis) for axis in sorted(axes.reduced)))


def grid_splits(axes: Axes) -> tuple[Split, ...]:
    """Every split that divides a reduced axis over the grid (split-K)."""
    return tuple(Split(split.looped, axis) for axis in sorted(axes.reduced) for split in splits(axes))


@dataclass(frozen=True, slots=True)
class Parts:
    """The constants of reductions over parts of an axis, innermost first.

    `block` reduces the part of the axis that one block reads, `whole` the whole axis.
    """

    tile: tuple[Constant, ...]
    loop: tuple[Constant, ...]
    grid: tuple[Constant, ...]
    block: tuple[Constant, ...]
    whole: tuple[Constant, ...]


def parts_of(axes: Axes, split: Split, domain: str) -> dict[int, Parts]:
    """For every reduced axis the constants of its reductions under `split`."""
    fresh = primes()
    result = {}
    for axis in sorted(axes.reduced):
        present = (True, axis == split.looped, axis == split.grid_axis)
        if domain == "indexed":
            tile, loop, grid = (
                (f"{axes.names[axis]}.{part}",) if used else () for part, used in zip("tlg", present, strict=True)
            )
            result[axis] = Parts(tile, loop, grid, tile + loop, tile + loop + grid)
        else:
            sizes = [next(fresh) if used else 1 for used in present]
            tile_, loop_, grid_ = ((size,) if size > 1 else () for size in sizes)
            result[axis] = Parts(tile_, loop_, grid_, (sizes[0] * sizes[1],), (prod(sizes),))
    return result


@dataclass(frozen=True, slots=True)
class Term:
    """One e-node: constructor, constants, and children as positions in its Expression."""

    constructor: str
    constants: tuple[Constant, ...] = ()
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expression:
    """A DAG of terms; `inputs` and `outputs` are those of the program, `free` the parts of axes that each input has.

    With slices and concatenations among the terms, `extents` are the sizes of all parts.
    """

    terms: tuple[Term, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    free: tuple[frozenset[str], ...]
    extents: tuple[tuple[str, int], ...] = ()


Tree = tuple[Any, ...]  # ("Var", "x"), ("Sum", constant, tree), ("Mul", tree, tree)


def flatten(trees: Sequence[Tree], free: Mapping[str, frozenset[str]]) -> Expression:
    """One expression whose outputs are `trees`; every name in `free` is an input."""
    numbers = {Term("Var", (name,)): number for number, name in enumerate(free)}
    known: dict[int, int] = {}  # by identity: shared subterms are one object

    def number(tree: Tree) -> int:
        if id(tree) not in known:
            children = tuple(number(part) for part in tree[1:] if isinstance(part, tuple))
            term = Term(tree[0], tuple(part for part in tree[1:] if not isinstance(part, tuple)), children)
            known[id(tree)] = numbers.setdefault(term, len(numbers))
        return known[id(tree)]

    outputs = tuple(map(number, trees))
    return Expression(tuple(numbers), tuple(range(len(free))), outputs, tuple(free.values()))


def needed_for(expression: Expression, outputs: tuple[int, ...]) -> Expression:
    """The subexpression of `outputs`, with all inputs."""
    needed = {*outputs, *expression.inputs}
    for position in range(max(needed), -1, -1):
        if position in needed:
            needed.update(expression.terms[position].children)
    new = {old: position for position, old in enumerate(sorted(needed))}
    terms = tuple(
        replace(expression.terms[old], children=tuple(new[child] for child in expression.terms[old].children)) for old in new
    )
    return Expression(
        terms, tuple(new[x] for x in expression.inputs), tuple(new[x] for x in outputs), expression.free, expression.extents
    )


def constructor(op: str) -> str:
    """The constructor of an op: rms_norm is RmsNorm."""
    return "".join(word.capitalize() for word in op.split("_"))


INDEX_TERMS = frozenset({"Slice", "Concat", "SumOver", "MaxOver"})  # of rules/indexed/35_slices.egg: they change the index


def index_name(parts: Iterable[str]) -> str:
    """The name of an index of several parts, the slowest first; "" is the index with one value."""
    return "·".join(parts)


def parts_in(index: str) -> tuple[str, ...]:
    """The parts of an index by its name."""
    return tuple(index.split("·")) if index else ()


CONSTANT = "Const"  # the constructor of a constant expression, which only laws write
REDUCTIONS = {constructor(op): op for op in ("sum", "mean", "max")}  # by constructor


def op_of(name: str) -> str | None:
    """The op of a constructor, or None for a constructor that is no op."""
    row = OPS.get(_op_name(name))
    return row.name if row is not None and row.kind in (Kind.ELEMENTWISE, Kind.REDUCTION) else None


@cache
def _op_name(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()


_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def express(program: Graph, axes: Axes, split: Split, domain: str) -> Expression:
    """The program's outputs as terms, without dead code. `program` holds primitive ops, concatenations of two; `axes` are its
    axes, with those of slices if it has any, which no split divides."""
    parts = parts_of(axes, split, domain)
    terms: list[Term] = []
    memo: dict[Term, int] = {}
    position: list[int] = []  # of each value of the program, its term
    inputs: list[int] = []
    outputs: list[int] = []
    free: list[frozenset[str]] = []

    def term(name: str, constants: tuple[Constant, ...], children: tuple[int, ...]) -> int:
        new = Term(name, constants, children)
        if new not in memo:
            memo[new] = len(terms)
            terms.append(new)
        return memo[new]

    def reduce(name: str, x: int, reduced: Iterator[int]) -> int:
        for axis in reduced:
            for constant in parts[axis].whole:
                x = term(name, (constant,), (x,))
        return x

    for item, values in program.numbered():
        row = OPS[item.op]
        operands = tuple(position[i] for i in item.operands)
        match row.kind:
            case Kind.BOUNDARY if item.op == "output":
                outputs.append(operands[0])
                continue
            case Kind.BOUNDARY:
                inputs.append(term("Var", (f"x{len(inputs)}",), ()))
                free.append(_free(axes, axes.of(values[0]), parts))
                result = inputs[-1]
            case Kind.ELEMENTWISE:
                result = term(constructor(item.op), tuple(item[name] for name in row.attributes), operands)
            case Kind.REDUCTION:
                result = reduce(constructor(item.op), operands[0], iter(axes.dims[item.operands[0]][item["dim"]]))
            case Kind.MATMUL:
                product = term("Mul", (), operands)
                result = reduce("Sum", product, iter(axes.dims[item.operands[0]][-1]))
            case Kind.REARRANGEMENT if item.op in CUTS_AND_JOINS:
                indices = [_index(axes, axes.dims[value][item["dim"]], parts) for value in (*item.operands, values[0])]
                if item.op == "slice":
                    step = item["step"] if indices[1] else 1
                    result = term("Slice", (*indices, item["start"], step), operands)
                else:
                    first, second, whole = indices
                    place = program.types[item.operands[0]].shape[item["dim"]]
                    result = term("Concat", (whole, first, second, place), operands)
            case Kind.REARRANGEMENT:
                result = operands[0]
            case _:
                raise AssertionError(f"{item.op} is not primitive")
        position.append(result)
    cuts = any(item.constructor in INDEX_TERMS for item in terms)
    extents = tuple((_index(axes, (axis,), parts), size) for axis, size in enumerate(axes.sizes)) if cuts else ()
    return needed_for(Expression(tuple(terms), tuple(inputs), tuple(outputs), tuple(free), extents), tuple(outputs))


def _index(axes: Axes, dim: Dim, parts: dict[int, Parts]) -> str:
    return index_name(str(name) for axis in dim for name in (parts[axis].whole if axis in parts else [axes.names[axis]]))


def _free(axes: Axes, of: frozenset[int], parts: dict[int, Parts]) -> frozenset[str]:
    names: set[str] = set()
    for axis in of:
        names.update(map(str, parts[axis].whole) if axis in parts else [axes.names[axis]])
    return frozenset(names)
