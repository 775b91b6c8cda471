"""Values for the variables of a law: how they are drawn, and how a counterexample that Hypothesis has shrunk gets smaller."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mirage_eg.claims import Plan

PARTS = ("i", "j", "k")
MAX_SIZE = 3  # of a part

Sizes = dict[str, int]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A variable's value: exact rationals, flat, over those parts that the flags say; `declared` is what axes says of it."""

    varies: tuple[bool, ...]
    declared: tuple[bool, ...]
    entries: tuple[Fraction, ...]


_RATIONALS = st.one_of(
    st.integers(1, 6).map(Fraction),
    st.integers(-6, 6).map(Fraction),
    st.integers(-9, 9).map(lambda n: Fraction(n, 4)),
    st.integers(1, 7).map(lambda n: Fraction(n, 8)),  # logarithms, roots and powers turn at 1
)
_CONSTANTS = st.one_of(st.integers(1, 4).map(Fraction), st.builds(Fraction, st.integers(-4, 4), st.integers(1, 3)))


@st.composite
def assignments(draw: st.DrawFn, plan: Plan, domain: str) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes of the parts, and a value for each variable that a law draws."""
    parts = PARTS if domain == "indexed" else ()
    sizes = {part: draw(st.integers(1, MAX_SIZE)) for part in parts}
    values: dict[str, Any] = {}
    names = 0
    for name, sort in plan.drawn.items():
        match sort:
            case "String":
                values[name] = parts[(names + draw(st.integers(0, 2))) % 3] if parts else "x"
                names += 1
            case "i64":
                values[name] = draw(st.integers(1, 12))
            case "BigRat":
                values[name] = draw(_CONSTANTS)
            case _:
                varies = tuple(draw(st.booleans()) for _ in parts)
                declared = tuple(flag or draw(st.integers(0, 3)) == 3 for flag in varies)
                count = 1
                for part, flag in zip(parts, varies, strict=True):
                    count *= sizes[part] if flag else 1
                values[name] = Tensor(varies, declared, tuple(draw(_RATIONALS) for _ in range(count)))
    return sizes, values


def smallest(sizes: Sizes, values: Values, refutes: Callable[[Sizes, Values], bool]) -> tuple[Sizes, Values]:
    """An assignment that still refutes and has fewer entries: Hypothesis cannot cut a part and every tensor over it at once."""
    while (smaller := next((it for it in _smaller(sizes, values) if refutes(*it)), None)) is not None:
        sizes, values = smaller
    return sizes, values


def _smaller(sizes: Sizes, values: Values) -> Iterator[tuple[Sizes, Values]]:
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():  # one tensor that varies with a part no longer
        for dim, varies in enumerate(tensor.varies):
            flags, declared = (flags[:dim] + (False,) + flags[dim + 1 :] for flags in (tensor.varies, tensor.declared))
            for kept in range(sizes[PARTS[dim]] if varies else 0):
                cut = _cut(tensor, sizes, dim, [kept])
                yield sizes, values | {name: replace(cut, varies=flags, declared=declared)}
    for dim, part in enumerate(sizes):  # a part of fewer values
        for gone in range(sizes[part] if sizes[part] > 1 else 0):
            left = [index for index in range(sizes[part]) if index != gone]
            cuts = {name: _cut(tensor, sizes, dim, left) for name, tensor in tensors.items() if tensor.varies[dim]}
            yield sizes | {part: len(left)}, values | cuts


def _cut(tensor: Tensor, sizes: Sizes, dim: int, left: list[int]) -> Tensor:
    shape = [size if varies else 1 for size, varies in zip(sizes.values(), tensor.varies, strict=True)]
    entries = np.array(tensor.entries, dtype=object).reshape(shape).take(left, axis=dim)
    return replace(tensor, entries=tuple(entries.ravel()))
