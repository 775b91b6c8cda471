"""The records of ops: what an elementwise one computes in each algebra, how it is written, what the search may know of it.

The tables of the algebras (`backends/`), of the emitter and of the rules are functions of these records. Everything here is
trusted but the expressions: emitted kernels are checked against float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any

from mirage_eg.ir.shapes import Attributes, Shape

OPERANDS = ("x", "y", "z")
"""The names of the operands in expressions and rules, as many as an op may have."""

SAME, NEXT, FIRST = 0, 1, None
"""The component of an operand that a component of the result reads: the same, the next (of an exponent), or the first."""

Helper = tuple[str, str]
"""A function that Triton expressions call: name and source."""

Append = Callable[..., str]
Constant = Callable[[Any], str]


class Sign(IntEnum):
    """Whether the elements of a value are known to be at least 0, or above."""

    ANY, NOT_NEGATIVE, POSITIVE = 0, 1, 2


Range = tuple[int, int]  # the least and the largest


@dataclass(frozen=True, slots=True)
class FieldMeaning:
    """`compute(f, *components, **attributes)` in the arithmetic f of `backends.evaluator.field_semantics`, and in words.

    `reads` lists pairs of an operand and SAME, NEXT or FIRST; where not given, SAME of each operand. `unfaithful`: the op
    satisfies other laws than on numbers, for all attributes or for those for which the function is true.
    """

    compute: Callable[..., Any]
    words: str = "exact"
    reads: tuple[tuple[int, int | None], ...] = ()
    unfaithful: bool | Callable[..., bool] = False


KEYED = FieldMeaning(lambda f, *x, **given: f.keyed(*x, **given), "a random function", unfaithful=True)
MONOTONE = FieldMeaning(
    lambda f, x, **given: f.monotone(x, **given), "a random function, monotone in the random order", unfaithful=True
)
IDEMPOTENT = FieldMeaning(lambda f, x, **given: f.monotone(x, idempotent=True, **given), MONOTONE.words, unfaithful=True)


Apply = Callable[..., Any]
"""Appends an op: `apply(name, *operands, **attributes)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpOnShapes:
    """What the records of ops that are not elementwise have in common: shape rule, attributes and the call of torch.

    `call(operands, attributes, shapes)` is torch's expression; `noun` names the result. `words` say what the op does, where no
    method of a builder does. `expand(apply, operands, shapes, attributes)` writes it in other ops.
    """

    name: str
    shape: Callable[[Sequence[Shape], Attributes], Shape]
    attributes: Mapping[str, str]
    call: Callable[[Sequence[str], Attributes, Sequence[Shape]], str]
    noun: str
    words: str = ""
    expand: Callable[[Apply, Sequence[Any], Sequence[Shape], Attributes], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseOp:
    """An op of the package or of a user (`register_op`); an attribute is a rational number, `dtype` an element type.

    `words` say what the op computes, and are the docstring of its method.
    The meaning is `definition(builder, *operands, **attributes)` in other ops (`ir.definitions`), or these:
    `numbers(xp, *operands, **attributes)` on arrays; `exactly(mp, *operands, **attributes)` on mpmath's numbers, and with
    `rational` also on fractions; `field` in the finite field; `degree(*operands, **attributes)`, None of no rational function.
    `whole`: of integers the op gives integers, by `numbers` or by the function `whole`, whose attributes are integers, too;
    `of_integers_alone`: other numbers are refused. `dtype`: the element type of results, where it is not that of the operands.
    `sign(*signs, **attributes)`, and of integers `range(*ranges, **attributes)`, say where results are for operands that are no
    conditions; without them anywhere.

    `triton` and `torch` are expressions in `{x}`, `{y}`, `{z}` and `{ATTRIBUTE}`, or functions of these texts and of the
    attributes; an op with a definition may lack them. Operands are names, calls or subscripts, so that none needs parentheses.
    `helpers` are the functions that the Triton expression calls. `noun` names the result in emitted kernels. `aten` are ATen's
    ops of one operand that are this op. `onnx` is ONNX's operator on the same operands, or `onnx(append, number, x,
    **attributes)` by functions that append an operator and a constant, and return their names.

    commutative   f(x, y) = f(y, x)
    conditions    so many first operands are indicators, which do not count for the element type
    indicator     a comparison: 1 where it holds, 0 elsewhere
    extreme       of two operands 1: the larger, −1: the smaller
    periodic      any rounding of a large operand decides
    behind_convolution  the library's convolutions apply it to what they compute
    use_gelu      of an op that its products with a bias apply: the flag that chooses it (torch._addmm_activation); else None
    selects       the result may be defined where an operand other than a condition is undefined
    constant      the value is the same for all operands
    keeps_zero    zero in gives zero out (of binary ops: zero in all operands); None: computed from the definition
    bounded       finite in gives finite out, overflow aside
    pole          infinite at a number
    power         p with f(c · x) = c^p · f(x) for all c > 0, where there is one and kernels use it
    functions     exponentials, of 21 instructions, that take as long, or a function of the attributes; 0: as an addition
    torch_functions  the same of torch's kernel, where that takes longer
    of_sums       f(x + y) = f(x) · f(y): an exponential, of which kernels subtract a maximum first
    logarithm     of an exponential it is as large as its argument
    signs         of a sum or difference: those of the operands
    powers        of a product or quotient: those of the operands
    taken_bits    of a shift or mask by constants: the place of the lowest bit that it takes, and how many (0: all above)
    """

    name: str
    arity: int = 1
    attributes: tuple[str, ...] = ()
    words: str = ""
    definition: Callable[..., Any] | None = None
    numbers: Callable[..., Any] | None = None
    exactly: Callable[..., Any] | None = None
    rational: bool = False
    field: FieldMeaning = KEYED
    degree: Callable[..., Any] | None = None
    whole: bool | Callable[..., Any] = False
    of_integers_alone: bool = False
    dtype: str = ""
    sign: Callable[..., Sign] | None = None
    range: Callable[..., Range] | None = None
    triton: str | Callable[..., str] | None = None
    torch: str | Callable[..., str] | None = None
    helpers: tuple[Helper, ...] = ()
    noun: str = ""
    aten: tuple[str, ...] = ()
    onnx: str | Callable[..., str] | None = None
    commutative: bool = False
    conditions: int = 0
    indicator: bool = False
    extreme: int = 0
    periodic: bool = False
    behind_convolution: bool = False
    use_gelu: bool | None = None
    selects: bool = False
    constant: bool = False
    keeps_zero: bool | Callable[..., bool] | None = False
    bounded: bool = False
    pole: bool = False
    power: Fraction | Callable[..., Fraction] | None = None
    functions: float | Callable[..., float] = 0
    torch_functions: float = 0
    of_sums: bool = False
    logarithm: bool = False
    signs: tuple[int, ...] = ()
    powers: tuple[int, ...] = ()
    taken_bits: Callable[..., tuple[int, int]] | None = None

    def functions_of(self, attributes: Mapping[str, Any]) -> float:
        """The exponentials in whose time an element is computed."""
        return self.functions(**attributes) if callable(self.functions) else self.functions

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands."""
        return OPERANDS[: self.arity]


def of_one_name(name: str, **given: Any) -> ElementwiseOp:
    """A function that NumPy, mpmath, Triton, PyTorch, ATen and ONNX have under one name, but for what is given."""
    common: dict[str, Any] = {
        "numbers": lambda xp, x: getattr(xp, name)(x),
        "exactly": lambda mp, x: real(mp, getattr(mp, name)(x)),
        "triton": f"tl.{name}({{x}})",
        "torch": f"torch.{name}({{x}})",
        "aten": (name,),
        "onnx": name.capitalize(),
    }
    return ElementwiseOp(name=name, **common | given)


@dataclass(frozen=True, slots=True)
class OnNumbers:
    """A function of mpmath's numbers alone as `exactly` of a record."""

    function: Callable[..., Any]

    def __call__(self, mp: Any, *operands: Any, **attributes: Any) -> Any:
        return self.function(*operands, **attributes)


def like(x: Any, value: Fraction | int) -> Any:
    """An exact constant as a number of the type of x: mpmath's, or a fraction."""
    return type(x)(value.numerator) / value.denominator


def real(mp: Any, value: Any) -> Any:
    """Not-a-number where the result has left the real line."""
    return value if isinstance(value, mp.mpf) else mp.nan


def larger(mp: Any, x: Any, y: Any) -> Any:
    """Not-a-number if one is."""
    return max(x, y) if x == x and y == y else mp.nan


def smaller(mp: Any, x: Any, y: Any) -> Any:
    """Not-a-number if one is."""
    return -larger(mp, -x, -y)


def hull(*ranges: Range) -> Range:
    """The smallest range that has all of these."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def of_products(x: Range, y: Range) -> Range:
    """The range of the products of two numbers."""
    ends = [one * other for one in x for other in y]
    return min(ends), max(ends)


def holds(attributes: Mapping[str, Any], value: bool | Callable[..., bool]) -> bool:
    """A property that may depend on the attributes."""
    return value if isinstance(value, bool) else bool(value(**attributes))
