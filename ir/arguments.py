"""Arguments of the graph builders: constants, element types and whole numbers of Python, NumPy, torch and CuPy, checked."""

from collections.abc import Iterable
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.sizes import SizeExpression

Number = int | float | Fraction  # and NumPy's scalars, which are registered as `numbers.Real`
AS_INPUT = "make it an input: new_input(shape)"  # the hint for an array


def exact(value: Number) -> Fraction:
    """The constant as it is written: 0.1 is 1/10, not the float nearest to it.

    Raises GraphError: not a number (an array is an input), or not finite.
    """
    if isinstance(value, SizeExpression):
        raise GraphError(
            f"got the size {value} as a constant, whose value is not known yet; wanted a number (x.sum / n is mean)"
        )
    if isinstance(value, bool) or not isinstance(value, Real):
        hint = f"; {AS_INPUT}" if hasattr(value, "shape") else ""
        raise GraphError(f"got constant {described(value)}, wanted a finite number{hint}")
    if isinstance(value, Integral):
        constant = Fraction(int(value))
    elif isinstance(value, Fraction):
        constant = value
    else:
        digits = str(value)  # the shortest decimal that is this float, also for NumPy's scalars
        if not digits.lstrip("-")[:1].isdigit():
            raise GraphError(f"got constant {digits}, wanted a finite number")
        constant = Fraction(digits)
    return constant


def dtype_of(value: object) -> str:
    """The name of an element type: a DType, a name, or a type of NumPy's, torch's or CuPy's.

    Raises GraphError: another type.
    """
    names = (str(value).removeprefix("torch."), getattr(value, "name", None), getattr(value, "__name__", None))
    for name in names:
        if name in DType.__members__:
            return str(name)
    raise GraphError(f"got dtype {described(value)}, wanted one of {', '.join(DType)}")


def whole(name: str, values: Iterable[Any], argument: str) -> tuple[int, ...]:
    """The values as ints, sizes as they are; `argument` is for the message.

    Raises GraphError: not whole numbers (Python's or NumPy's).
    """
    given = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in given:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise GraphError(f"{name}: got {described(value)} in {argument}, wanted whole numbers")
    return tuple(value if isinstance(value, SizeExpression) else int(value) for value in given)


def described(value: object) -> str:
    """A value in a few characters: arrays by type and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and not type(value).__module__.startswith("mirage_eg."):
        return f"an array ({type(value).__module__}.{type(value).__qualname__} of shape {tuple(shape)})"
    representation = repr(value)
    return representation if len(representation) <= 60 else f"{representation[:57]}…"
