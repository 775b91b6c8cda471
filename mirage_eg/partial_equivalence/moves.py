"""Moves of layout: a digit of one dim becomes a digit of another one, as batch into height; and the general search's alphabet.

x[…, (a, b), …, (c), …]  →  x[…, (a), …, (c, b), …]        for the inner digit b of the source, as the inner one of the target
"""

from dataclasses import dataclass
from typing import Any

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.shapes import Shape


@dataclass(frozen=True, slots=True)
class LayoutMove:
    """A digit of `factor` leaves the outer or inner end of dim `source` for the outer or inner end of dim `target`.

    With `in_order` the elements stay in row-major order: a reshape alone, whose blocks need not fit. With `exchanges`
    the two dims change places (factor 1). Where source and target are one dim, its digit moves from one end to the other.
    """

    source: int
    target: int
    factor: int
    from_outer: bool = False
    to_outer: bool = True
    in_order: bool = False
    exchanges: bool = False

    @property
    def inverse(self) -> "LayoutMove":
        """The move back."""
        if self.exchanges:
            return self
        return LayoutMove(self.target, self.source, self.factor, self.to_outer, self.from_outer, self.in_order)

    def fits(self, shape: Shape) -> bool:
        """Whether the source has such a digit."""
        return shape[self.source] % self.factor == 0

    def shape(self, shape: Shape) -> Shape:
        """The shape of the result."""
        result = list(shape)
        if self.exchanges:
            result[self.source], result[self.target] = result[self.target], result[self.source]
            return tuple(result)
        result[self.source] //= self.factor
        result[self.target] *= self.factor
        return tuple(result)

    def steps(self, shape: Shape) -> tuple[Shape, tuple[int, ...], Shape]:
        """Reshape, permutation, reshape."""
        if self.exchanges:
            return shape, self.shape(tuple(range(len(shape)))), self.shape(shape)
        if self.in_order:
            return shape, tuple(range(len(shape))), self.shape(shape)
        digits: list[int] = []
        places: dict[int, int] = {}  # of each dim what stays of it
        for dim, extent in enumerate(shape):
            if dim != self.source:
                places[dim] = len(digits)
                digits.append(extent)
                continue
            pair = (self.factor, extent // self.factor)
            moved, places[dim] = (len(digits), len(digits) + 1) if self.from_outer else (len(digits) + 1, len(digits))
            digits += pair if self.from_outer else pair[::-1]
        order: list[int] = []
        for dim in range(len(shape)):
            own = [places[dim]]
            order += ([moved, *own] if self.to_outer else [*own, moved]) if dim == self.target else own
        return tuple(digits), tuple(order), self.shape(shape)

    def show(self, names: str) -> str:
        """The move in words; `names` has a letter for each dim, and dims beyond them are numbers."""
        source, target = (names[dim] if len(names) > dim else str(dim) for dim in (self.source, self.target))
        if self.exchanges:
            return f"{source}↔{target}"
        ends = (
            "in order" if self.in_order else " to ".join("outer" if it else "inner" for it in (self.from_outer, self.to_outer))
        )
        return f"{source}→{target} ({self.factor if self.factor > 0 else 'all'}, {ends})"

    def write(self, builder: KernelGraph, x: Tensor) -> Tensor:
        """The moved tensor, without ops that change nothing."""
        digits, order, shape = self.steps(x.shape)
        if order != tuple(range(len(order))):
            x = builder.transpose(x if digits == x.shape else builder.reshape(x, digits), order)
        return x if x.shape == shape else builder.reshape(x, shape)

    def apply(self, array: Any) -> Any:
        """The moved array."""
        digits, order, shape = self.steps(array.shape)
        return array.reshape(digits).transpose(order).reshape(shape)


WHOLE = {0: -1, 2: -2, 3: -3}  # factors for all of the batch, the height and the width of a program's first input
EXCHANGED_SIDES = LayoutMove(2, 3, 1, exchanges=True)  # height and width of images or filters


def moves_of(shape: Shape, factors: tuple[int, ...]) -> list[LayoutMove]:
    """All moves of a digit of these factors between two dims."""
    found = []
    for factor in factors:
        for source in range(len(shape)):
            for target in range(len(shape)):
                if source == target or shape[source] % factor:
                    continue
                found += [LayoutMove(source, target, factor, out, to) for out in (False, True) for to in (True, False)]
                if abs(source - target) > 1:  # between neighbours it is one of those above
                    found.append(LayoutMove(source, target, factor, in_order=True))
    return found
