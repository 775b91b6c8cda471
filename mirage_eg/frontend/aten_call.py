"""One call of an ATen op as its handler reads it: arguments by the names of the op's schema, each of them honoured or refused.

A handler takes every argument that it honours by name. `finish` refuses the call if an argument that was not taken differs from
its default, so that an unknown attribute leaves the node outside. Arguments that choose the shape, type or place of the result
need not be taken: what a handler gives is compared with the type in torch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import isfinite, prod
from typing import Any

from mirage_eg.ir.arguments import Number, exact
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import SizeExpression

SAME_ELEMENTS = frozenset(
    f"aten.{name}.default" for name in ("alias", "clone", "detach", "reshape", "unsqueeze", "view", "_unsafe_view")
)
"""Ops whose result has the elements of their operand in the same order."""


@dataclass(frozen=True, slots=True)
class TorchType:
    """Shape and element type (torch's name without `torch.`) of a value of the FX graph."""

    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{text(self.shape)} {self.dtype}"


Lazy = Callable[[], Tensor]
Handled = Tensor | Sequence["Lazy | str"]
"""The result of a handler: a tensor, or for each of several results how to compute it or why it is not supported."""


Handler = Callable[["Call"], Handled]
Lift = Callable[[str, Shape, str, Callable[[], Any]], Tensor]


def named(overloads: str, handler: Handler) -> dict[str, Handler]:
    """The rows of one handler in a table: "add.Tensor add.Scalar" are two overloads of ATen."""
    return {f"aten.{name}": handler for name in overloads.split()}


@dataclass(slots=True)
class Call:
    """One call; `types`: of its tensor arguments in torch; `results`: the types of its results in torch.

    A tensor among the arguments is a node of the FX graph: `tensor_of` returns its tensor, and makes it an input if need be;
    `known` returns its NumPy array if it is a constant, else None. `lift` makes an input of kind constant from a function that
    returns its NumPy array, `causal_mask` one of so many rows and columns. `values`: torch's values of the tensor arguments,
    which have strides, but need not have elements. `has`: whether a node of the FX graph is in this graph already, `is_fixed`
    whether its value depends on no argument, weight or buffer.
    """

    graph: KernelGraph
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any]
    types: Mapping[str, TorchType]
    results: Sequence[TorchType]
    tensor_of: Callable[[Any], Tensor]
    lift: Lift
    causal_mask: Callable[[int, int], Tensor]
    known: Callable[[Any], Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    has: Callable[[Any], bool] = lambda node: False
    is_fixed: Callable[[Any], bool] = lambda node: False
    taken: set[str] = field(default_factory=set)

    @property
    def result(self) -> TorchType:
        """The type of the first result."""
        return self.results[0]

    @property
    def has_dims(self) -> bool:
        """Whether an argument chooses dims, which a tensor without dims has, too: 0 and −1."""
        return not _DIMS.isdisjoint(self.arguments)

    def take(self, name: str) -> Any:
        """An argument as it is; `name` counts as honoured."""
        self.taken.add(name)
        return self.arguments.get(name)

    def ignore(self, *names: str) -> None:
        """Arguments without influence on the values."""
        self.taken.update(names)

    def tensor(self, name: str) -> Tensor:
        """A tensor argument of a floating-point type."""
        return self._of_types(name, FLOATING)

    def any_tensor(self, name: str) -> Tensor:
        """A tensor argument of any type of the IR, for ops that only move elements."""
        return self._of_types(name, tuple(DType))

    def indicator(self, name: str) -> Tensor:
        """A tensor argument of torch's type bool: an input of dtype bool, or zeros and ones of a floating-point type."""
        return self._of_types(name, ("bool",))

    def integers(self, name: str) -> Tensor:
        """A tensor argument of indices."""
        return self._of_types(name, ("int32", "int64"))

    def any_tensors(self, name: str) -> list[Tensor]:
        """A list of tensors of one type, for ops that only move elements; floating-point types become that of the result."""
        names = [f"{name}.{index}" for index in range(len(self.take(name)))]
        kinds = {self.types[one].dtype for one in names}
        if len(kinds) > 1 and kinds <= {*FLOATING}:
            return [cast(self._of_types(one, FLOATING), self.result.dtype) for one in names]
        if len(kinds) > 1:
            raise UnsupportedError(f"{name} has the element types {', '.join(sorted(kinds))}, wanted one")
        return [self._of_types(one, tuple(DType)) for one in names]

    def known_array(self, name: str) -> Any:
        """The NumPy array of a tensor argument that is a constant, or None."""
        place, _, index = name.partition(".")
        value = self.take(place)
        return self.known(value[int(index)] if index else value)

    def is_indicator(self, name: str) -> bool:
        """Whether an argument is a tensor of torch's type bool."""
        return name in self.types and self.types[name].dtype == "bool"

    def optional(self, name: str) -> Tensor | None:
        """A tensor argument that may be absent."""
        return None if self.take(name) is None else self.tensor(name)

    def tensor_or_literal(self, name: str) -> Tensor | Fraction:
        """A tensor; or the number of a constant without dims, kept exact."""
        array = self.known_array(name)
        is_number = array is not None and array.ndim == 0 and array.dtype.kind == "f" and isfinite(array)
        return _number(name, float(array)) if is_number else self.tensor(name)

    def operand(self, name: str) -> Tensor | Fraction:
        """A tensor, or a number: kept exact, or as a constant where it is infinite or not-a-number."""
        value = self.take(name)
        if self.is_indicator(name) and self.result.dtype in FLOATING:  # as a number
            x = self.indicator(name)
            return x if x.dtype == self.result.dtype else x.builder.cast(x, self.result.dtype)
        if name in self.types:
            return self.tensor(name)
        if not isinstance(value, float) or isfinite(value):
            return _number(name, value)
        return self.constant(value, next((it.dtype for it in self.types.values() if it.dtype in FLOATING), self.result.dtype))

    def constant(self, value: float, dtype: str) -> Tensor:
        """A number as an input of kind constant.

        The IR's own constants are finite and depend on a tensor in form, so that the search takes longer and fuses less.
        """
        import numpy as np

        shape = (1,) if self.result.shape else ()  # of the smallest rank: the result of two scalars is one
        return self.lift(f"number_{spelled(value)}_{dtype}_{len(shape)}", shape, dtype, lambda: np.full(shape, value))

    def number(self, name: str) -> Fraction:
        """A finite number, kept exact."""
        return _number(name, self.take(name))

    def whole(self, name: str) -> int:
        """A whole number that is known at import."""
        value = self.take(name)
        if isinstance(value, bool | SizeExpression) or not isinstance(value, int):
            raise UnsupportedError(f"{name} = {value!r}, wanted a whole number that is known at import")
        return value

    def dim(self, name: str, rank: int) -> int:
        """A dim, counted from 0."""
        return _dim(name, self.whole(name), rank)

    def dims(self, name: str, rank: int) -> list[int]:
        """Dims in the order of the argument, counted from 0; all dims if the argument is absent or empty."""
        value = self.take(name)
        given = [value] if isinstance(value, int) else value
        return [_dim(name, one, rank) for one in given] if given else list(range(rank))

    def along(self) -> tuple[Tensor, int]:
        """The operand `self`, of any type, and its dim `dim`; without one all its elements as one dim."""
        x = self.any_tensor("self")
        return (reshaped(x, (prod(x.shape),)), 0) if self.take("dim") is None else (x, self.dim("dim", len(x.shape)))

    def require(self, name: str, *wanted: Any) -> None:
        """Refuse every value of an argument but these."""
        value = self.take(name)
        if not any(_is_same(value, one) for one in wanted):
            raise UnsupportedError(f"{name} = {value!r} is not supported")

    def finish(self) -> None:
        """Refuse the call if an argument was neither taken nor at its default, nor one that the result or its kernel shows."""
        honoured = self.taken | _SEEN_IN_RESULT | _WITHOUT_INFLUENCE
        for name, value in self.arguments.items():
            if name not in honoured and not _is_same(value, self.defaults.get(name, _NO_DEFAULT)):
                raise UnsupportedError(f"{name} = {value!r} is not supported")

    def _of_types(self, name: str, wanted: Sequence[str]) -> Tensor:
        place, _, index = name.partition(".")
        value = self.take(place)
        if name not in self.types:
            raise UnsupportedError(f"{name} = {value!r}, wanted a tensor")
        if self.types[name].dtype not in wanted:
            raise UnsupportedError(f"{name} has element type {self.types[name].dtype}, wanted one of {', '.join(wanted)}")
        return self.tensor_of(value[int(index)] if index else value)


FLOATING = ("float16", "bfloat16", "float32", "float64")
FLOAT8 = tuple(str(dtype) for dtype in DType if dtype.is_float8)
_NO_DEFAULT = object()
_SEEN_IN_RESULT = frozenset(
    ("ceil_mode", "copy", "device", "dtype", "half_to_float", "implicit", "keepdim", "layout", "memory_format")
    + ("non_blocking", "out_dtype", "output_size", "pin_memory")
)
"""Arguments that choose the type, shape or place of the result, which is compared with torch's."""
_WITHOUT_INFLUENCE = frozenset(
    ["cudnn_enable", "cudnn_enabled", "scale_grad_by_freq", "sparse", "sparse_grad", "use_fast_accum"]
)
"""Arguments that choose a kernel, or are for the backward pass."""
_DIMS = frozenset(("dim", "dims", "dim0", "dim1", "dim2", "axis0", "axis1", "source", "destination", "dimension"))


def _is_same(value: object, other: object) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


def of_scalars(handler: Handler) -> Handler:
    """The handler, for which tensors without dims are vectors of one element."""

    def handle(call: Call) -> Handled:
        if all(kind.shape for kind in call.types.values()):
            return handler(call)

        def vector(node: Any) -> Tensor:
            x = call.tensor_of(node)
            return x if x.shape else reshaped(x, (1,))

        types = {name: _vector(kind) for name, kind in call.types.items()}
        handled = handler(replace(call, types=types, results=list(map(_vector, call.results)), tensor_of=vector))
        if isinstance(handled, Tensor):
            return reshaped(handled, call.result.shape)
        return [
            one if isinstance(one, str) else partial(_lazily_in_shape, one, kind.shape)
            for one, kind in zip(handled, [*call.results, *[call.result] * len(handled)], strict=False)
        ]

    return handle


def _lazily_in_shape(result: Callable[[], Tensor], shape: Shape) -> Tensor:
    return reshaped(result(), shape)


def _vector(kind: TorchType) -> TorchType:
    return kind if kind.shape else replace(kind, shape=(1,))


def behind(node: Any, targets: Collection[str]) -> Any:
    """The FX node to whose value ops of these names were applied."""
    while str(node.target) in targets:
        node = node.args[0]
    return node


def first_of(handler: Handler, *others: str) -> Handler:
    """A handler of several results, of which `handler` gives the first; `others`: why the further ones are not supported."""

    def handle(call: Call) -> list[Lazy | str]:
        x = handler(call)
        assert isinstance(x, Tensor)
        return [lambda: x, *others]

    return handle


def cast(x: Tensor, dtype: str) -> Tensor:
    """x in an element type; x itself if it has that type."""
    return x if x.dtype == dtype else x.builder.cast(x, dtype)


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x under another shape; x itself if it has that shape."""
    return x if x.shape == tuple(shape) else x.builder.reshape(x, tuple(shape))


def expanded(x: Tensor, shape: Shape) -> Tensor:
    """x broadcast to a shape; x itself if it has that shape."""
    return x if x.shape == shape else x.builder.broadcast(x, shape)


def over(op: str, x: Tensor, dims: Iterable[int]) -> Tensor:
    """A reduction of x over some dims, sequentially."""
    for dim in dims:
        x = x.builder.op(op, x, dim=dim)
    return x


def reduction(op: str, of: Callable[[Call], Tensor], call: Call, flip: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """A reduction over the dims of a call; of an operand that `flip` changes, which is its own inverse."""
    x = flip(of(call))
    return reshaped(flip(over(op, x, call.dims("dim", len(x.shape)))), call.result.shape)


def spelled(value: float) -> str:
    """A number in the letters of an identifier, with all its digits."""
    return repr(value).replace("-", "minus_").replace(".", "_").replace("+", "")


def _number(name: str, value: Any) -> Fraction:
    number: Number = value
    try:
        return exact(number)
    except ValueError as error:
        raise UnsupportedError(f"{name}: {error}") from None


def _dim(name: str, dim: Any, rank: int) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
        raise UnsupportedError(f"{name} = {dim!r}, wanted a dim of {rank}")
    return dim % max(rank, 1)
