"""Sizes that are chosen later: named dims of a program, and extents that depend on them.

An extent that depends on sizes is an int at one choice of them and carries its text, so that all shape rules hold as they are.
Products and sums keep the text; quotients and remainders are plain ints.
"""

import ast
from binascii import crc32
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any, NamedTuple, Self

from mirage_eg.ir.errors import GraphError

_HINTS = (  # primes: by accident no extent agrees with them, and seldom two names
    *(67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 149, 151),
    *(157, 163, 173, 179, 181, 191, 199, 211, 223, 227, 229, 233, 239, 241, 251),
)
LEAST_HINT = min(_HINTS)  # of which a multiple is one of the dim, too
_SMALL_HINTS = (61, 59, 53, 47, 43, 41, 37, 31, 29, 23, 19, 17, 13, 11)  # of dims below those: largest sizes are extents, too
_LARGEST = 1 << 20  # of a dim without a `max`


class SizeExpression(int):
    """An extent as an expression of sizes: an int at one choice, `text` in Python and Triton, `most` at the largest sizes.

    `divisor` divides it at all sizes.
    """

    text: str
    most: int
    divisor: int

    def __new__(cls, value: int, text: str, most: int, divisor: int = 1) -> Self:
        size = super().__new__(cls, value)
        size.text, size.most, size.divisor = text, most, divisor
        return size

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        product = int(self) * int(other)
        if other == 1 and not isinstance(other, SizeExpression):
            return self
        if not product:
            return 0
        return SizeExpression(product, f"{self.text} * {other}", self.most * most(other), self.divisor * divisor(other))

    def __rmul__(self, other: Any) -> Any:
        return self * other

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        if not other:
            return self
        common = gcd(self.divisor, divisor(other))
        return SizeExpression(int(self) + int(other), f"({self.text} + {other})", self.most + most(other), common)

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return SizeExpression, (int(self), self.text, self.most, self.divisor)


class Ratio(Fraction):
    """A constant that depends on sizes: a fraction at one choice of them, and its `text`."""

    text: str

    def __new__(cls, numerator: int, denominator: int) -> "Ratio":
        ratio = super().__new__(cls, int(numerator), int(denominator))
        ratio.text = f"({numerator} / ({denominator}))"
        return ratio


def ratio(numerator: int, denominator: int) -> Fraction:
    """The quotient of two extents, as a constant."""
    symbolic = isinstance(numerator, SizeExpression) or isinstance(denominator, SizeExpression)
    return Ratio(numerator, denominator) if symbolic else Fraction(numerator, denominator)


def most(extent: int) -> int:
    """An extent at the largest sizes."""
    return extent.most if isinstance(extent, SizeExpression) else extent


def divisor(extent: int) -> int:
    """A number that divides an extent at all sizes."""
    return extent.divisor if isinstance(extent, SizeExpression) else int(extent)


def value_of(extent: int, sizes: Mapping[str, Any]) -> Any:
    """An extent at these sizes, which may be symbolic ones of torch."""
    if not isinstance(extent, SizeExpression):
        return extent

    def value(part: ast.expr) -> Any:
        match part:
            case ast.Constant(value=number):
                return number
            case ast.Name(id=name):
                return sizes[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return value(left) * value(right)
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return value(left) // value(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case _:
                raise GraphError(f"got the extent {extent.text}, wanted sums, products and quotients of sizes")

    return value(ast.parse(extent.text, mode="eval").body)


def names_in(extents: Iterable[object]) -> set[str]:
    """The names of the sizes on which some of the extents depend."""
    trees = (ast.walk(ast.parse(extent.text, mode="eval")) for extent in extents if isinstance(extent, SizeExpression))
    return {part.id for tree in trees for part in tree if isinstance(part, ast.Name)}


def parts_of(extent: int, part: int) -> int:
    """The number of parts of `part` elements, the last one perhaps with fewer."""
    count = -(-int(extent) // part)
    if not isinstance(extent, SizeExpression) or part == 1:
        return extent if part == 1 else count
    return SizeExpression(count, f"(({extent} + {part - 1}) // {part})", -(-extent.most // part))


class Dim(SizeExpression):
    """A named extent of a program that is chosen when the program is called, as in `new_input((Dim("n", max=8192), 4096))`.

    It stands for all multiples of `multiple_of` from `min` to `max` (2²⁰ if not given), both included. Inputs whose dims have
    one name have one extent there.

    Raises GraphError: a name that is no identifier, or bounds without a multiple between them.
    """

    name: str
    min: int
    max: int
    multiple_of: int

    def __new__(cls, name: str, *, min: int = 2, max: int | None = None, multiple_of: int = 1) -> "Dim":
        largest = _LARGEST if max is None else max
        if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
            raise GraphError(f"Dim: got name {name!r}, wanted an identifier, such as n")
        for bound, value in (("min", min), ("max", largest), ("multiple_of", multiple_of)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise GraphError(f"Dim {name}: got {bound} {value!r}, wanted an int of at least 1")
        if min > largest:
            raise GraphError(f"Dim {name}: got min {min} above max {largest}, wanted min ≤ max")
        low, high = -(-min // multiple_of), largest // multiple_of
        if low > high:
            raise GraphError(f"Dim {name}: got no multiple of {multiple_of} from {min} to {largest}; wanted one at least")
        usual, small = ([it for it in hints if low <= it <= high] for hints in (_HINTS, _SMALL_HINTS))
        fitting = usual or small[:3] or [high]  # few, so that small dims are near their largest size
        hint = fitting[crc32(name.encode()) % len(fitting)] * multiple_of
        dim = SizeExpression.__new__(cls, hint, name, largest, multiple_of)
        dim.name, dim.min, dim.max, dim.multiple_of = name, low * multiple_of, high * multiple_of, multiple_of
        return dim

    @property
    def hint(self) -> int:
        """The size at which programs are written."""
        return int(self)

    @property
    def declaration(self) -> str:
        """As it is written in graphs and on the command line: n=2:8192, or n=16:8192:16 for multiples of 16."""
        return f"{self.name}={self.min}:{self.max}" + (f":{self.multiple_of}" if self.multiple_of > 1 else "")

    def check(self, value: int) -> int:
        """The value, which must be one of the dim's. Raises GraphError: it is not."""
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not self.min <= value <= self.max or value % self.multiple_of:
            multiple = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
            raise GraphError(f"size {self.name}: got {value!r}, wanted an int from {self.min} to {self.max}{multiple}")
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return read_dim, (self.declaration,)


def read_dim(declaration: str) -> Dim:
    """The dim of a declaration: n=2:8192 or n=16:8192:16. Raises GraphError: not of this form, or no such dim."""
    name, sign, bounds = declaration.partition("=")
    numbers = bounds.split(":")
    if not sign or len(numbers) not in (2, 3) or not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise GraphError(f"got dim {declaration!r}, wanted NAME=MIN:MAX or NAME=MIN:MAX:MULTIPLE, such as n=2:8192")
    least, largest, *multiple = map(int, numbers)
    return Dim(name, min=least, max=largest, multiple_of=multiple[0] if multiple else 1)


def dims_text(shape: Sequence[int]) -> str | None:
    """The declarations of a shape's dims, each at its place between commas; None if no dim has one."""
    declared = [extent.declaration if isinstance(extent, Dim) else "" for extent in shape]
    return ",".join(declared) if any(declared) else None


def read_dims(text: str | None, rank: int) -> tuple[Dim | None, ...]:
    """The dims of a shape of this rank. Raises GraphError: not written by `dims_text`, or for another rank."""
    if text is None:
        return (None,) * rank
    declared = text.split(",")
    if len(declared) != rank:
        raise GraphError(f"got dims {text!r} for a shape of {rank} dims, wanted one entry for each, perhaps empty")
    return tuple(read_dim(each) if each else None for each in declared)


def as_numbers(attributes: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The attributes of a node with a number for each size: those of a frozen program, whose inputs have declarations."""
    plain = [(key, tuple(map(int, value)) if isinstance(value, tuple) else value) for key, value in attributes]
    return tuple((key, int(value) if isinstance(value, SizeExpression) else value) for key, value in plain)


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The sizes of one dim from `least` to `largest` that are multiples of `multiple_of`."""

    least: int
    largest: int
    multiple_of: int = 1


class SizeArgument(NamedTuple):
    """A size that a program reads off an input: its position, the dim, and the sizes that it may have."""

    input: int
    dim: int
    values: SizeRange
