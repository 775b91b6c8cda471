"""Counterexamples: random whole numbers at random shapes of an equation's type."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_eg.egraph.tensor.ops import constant, op
from mirage_eg.egraph.tensor.term import Equation
from mirage_eg.egraph.tensor.typing import Dim, TypedEquation, TypedTerm, typed

TRIALS = 12
_EXTENTS = (1, 2, 3)
_PLANES = (1, 2, 4, 5)
_KERNELS = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class TensorCounterexample:
    """Shapes of the variables, and the first place where the sides differ."""

    shapes: dict[str, tuple[int, ...]]
    place: tuple[int, ...]
    left: int
    right: int

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} of {'×'.join(map(str, shape)) or 'rank 0'}" for name, shape in self.shapes.items())
        return f"{shapes}: {self.left} against {self.right} at {self.place}"


def counterexample(equation: Equation, seed: int = 0) -> TensorCounterexample | None:
    """Values at which the sides of an equation differ, with stride 1 and one group; None if TRIALS random ones have none.

    Averages are sums here, which hides no difference of equations in one pooling; the normal form has the factor.

    Raises IllTyped: no shapes fit.
    """
    known = typed(equation)
    draw = np.random.default_rng(seed)
    for _ in range(TRIALS):
        extents = chosen_extents(known, draw)
        values = {
            name: draw.integers(-5, 6, (1, 1, *(_size(dim, known, extents) for dim in dims)))
            for name, dims in known.variables.items()
        }
        left, right = (_value(side, values, known, extents) for side in (known.left, known.right))
        if not np.array_equal(left, right):
            place = tuple(int(it) for it in np.argwhere(left != right)[0])
            shapes = {name: value.shape[2:] for name, value in values.items()}
            return TensorCounterexample(shapes, place[2:], int(left[place]), int(right[place]))
    return None


def chosen_extents(known: TypedEquation, draw: np.random.Generator) -> dict[int, int]:
    """An extent for each segment: kernels are odd and grow where they are enlarged."""
    extents = {segment: int(draw.choice(_EXTENTS)) for segment in range(len(known.shapes.bound))}
    kernels: set[int] = set()

    def visit(term: TypedTerm) -> None:
        if term.op.startswith(("Conv2d", "AvgPool", "MaxPool")):
            planes = [it for dim in term.operands[0].dims[2:] for it in known.shapes.word(dim)]
            extents.update({it: int(draw.choice(_PLANES)) for it in planes if it not in kernels})
        if term.op.startswith("Conv2d"):
            kernels.update(it for dim in term.operands[1].dims[2:] for it in known.shapes.word(dim))
        if term.op in ("Iconv", "Cpool", "Enlarge"):
            kernels.update(
                it for dim in (*term.dims[2:], *(d for o in term.operands for d in o.dims[2:])) for it in known.shapes.word(dim)
            )
        for operand in term.operands:
            visit(operand)

    visit(known.left)
    visit(known.right)
    kernels.update(it for dim in known.shapes.kernels for it in known.shapes.word(dim))
    extents.update({it: int(draw.choice(_KERNELS)) for it in sorted(kernels)})
    for _ in known.shapes.smaller:
        for before, after in known.shapes.smaller:
            [small], [large] = known.shapes.word(before), known.shapes.word(after)
            extents[large] = max(extents[large], extents[small])
    return extents


def _size(dim: Dim, known: TypedEquation, extents: dict[int, int]) -> int:
    return sum(extents[it] for it in known.shapes.word(dim))


def _value(term: TypedTerm, values: dict[str, Any], known: TypedEquation, extents: dict[int, int]) -> Any:
    if isinstance(term.term, str):
        return values[term.term]
    row = op(term.op)
    if row.arity == 0:
        return constant(row.base, tuple(_size(dim, known, extents) for dim in term.dims))[None, None]
    operands = [_value(it, values, known, extents) for it in term.operands]
    return row.apply(*operands, *(_size(dim, known, extents) for dim in term.slots))
