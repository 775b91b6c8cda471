"""The library kernels of an emitted program on CuPy: what its `launch` calls of torch, so that torch need not be there.

Values are computed as torch computes them on a GPU: products by the library in their own type with float32 sums, all else in
float32 (float64 for float64) and rounded to the type of the value. On NumPy arrays the same functions run on the CPU.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

from mirage_eg.ir.errors import UnsupportedError


class Tensor:
    """An array with the methods of torch tensors that emitted programs use."""

    def __init__(self, xp: Any, data: Any) -> None:
        self.xp, self.data = xp, data

    @property
    def device(self) -> None:
        """The current one, always."""

    def reshape(self, shape: Sequence[int]) -> "Tensor":
        """A view where it can be one."""
        return Tensor(self.xp, self.data.reshape(shape))

    def permute(self, order: Sequence[int]) -> "Tensor":
        """A view."""
        return Tensor(self.xp, self.data.transpose(order))

    def narrow(self, dim: int, start: int, length: int) -> "Tensor":
        """A view."""
        return Tensor(self.xp, self.data[(slice(None),) * dim + (slice(start, start + length),)])

    def expand(self, shape: Sequence[int]) -> "Tensor":
        """A view."""
        return Tensor(self.xp, self.xp.broadcast_to(self.data, shape))

    def to(self, dtype: str) -> "Tensor":
        """In another element type."""
        return Tensor(self.xp, self.data.astype(dtype, copy=False))

    def contiguous(self) -> "Tensor":
        """Row-major."""
        return Tensor(self.xp, self.xp.ascontiguousarray(self.data))

    def copy_(self, source: "Tensor") -> "Tensor":
        """Written in place."""
        self.data[...] = source.data
        return self

    def __add__(self, other: Any) -> "Tensor":
        return _compute(lambda x, y: x + y, self, other)

    def __sub__(self, other: Any) -> "Tensor":
        return _compute(lambda x, y: x - y, self, other)

    def __mul__(self, other: Any) -> "Tensor":
        return _compute(lambda x, y: x * y, self, other)

    def __truediv__(self, other: Any) -> "Tensor":
        return _compute(lambda x, y: x / y, self, other)


class CupyTorch:
    """The functions of torch that emitted programs call, on arrays of `xp` (CuPy, or NumPy on the CPU)."""

    float16, float32, float64 = "float16", "float32", "float64"

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.nn = SimpleNamespace(
            functional=SimpleNamespace(
                silu=lambda x: _compute(lambda y: y / (1 + xp.exp(-y)), x),
                gelu=lambda x: _compute(lambda y: 0.5 * y * (1 + _erf(xp)(y * 0.5**0.5)), x),
                rms_norm=self._rms_norm,
                layer_norm=self._layer_norm,
            )
        )
        for name in ("exp", "log", "square", "sqrt", "tanh", "abs"):
            setattr(self, name, _elementwise(getattr(xp, name)))
        for name in ("maximum", "minimum"):
            setattr(self, name, partial(_compute, getattr(xp, name)))
        self.rsqrt = _elementwise(lambda x: 1 / xp.sqrt(x))
        self.sigmoid = _elementwise(lambda x: 1 / (1 + xp.exp(-x)))
        self.relu = _elementwise(lambda x: xp.maximum(x, 0))

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(
            f"a library kernel calls torch.{name}, for which CuPy has no counterpart here; pip install torch"
        )

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """cuBLAS, with sums in float32."""
        if self.xp.__name__ == "numpy":
            return _compute(self.xp.matmul, x, y)
        return Tensor(self.xp, self.xp.matmul(x.data, y.data))

    def pow(self, x: Tensor, exponent: float) -> Tensor:
        """By a constant."""
        return _compute(lambda y: y**exponent, x)

    def clamp(self, x: Tensor, low: float, high: float) -> Tensor:
        """Between two constants."""
        return _compute(lambda y: self.xp.clip(y, low, high), x)

    def sum(self, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Over one dim."""
        return _compute(lambda y: y.sum(axis=dim, keepdims=keepdim), x)

    def mean(self, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Over one dim."""
        return _compute(lambda y: y.mean(axis=dim, keepdims=keepdim), x)

    def amax(self, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Over one dim."""
        return _compute(lambda y: y.max(axis=dim, keepdims=keepdim), x)

    def softmax(self, x: Tensor, dim: int) -> Tensor:
        """With the maximum subtracted."""

        def normalized(y: Any) -> Any:
            shifted = self.xp.exp(y - y.max(axis=dim, keepdims=True))
            return shifted / shifted.sum(axis=dim, keepdims=True)

        return _compute(normalized, x)

    def cat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """Concatenation."""
        return Tensor(self.xp, self.xp.concatenate([tensor.data for tensor in tensors], axis=dim))

    def repeat_interleave(self, x: Tensor, times: int, dim: int) -> Tensor:
        """Each slice so many times in a row."""
        return Tensor(self.xp, self.xp.repeat(x.data, times, axis=dim))

    def empty_strided(self, shape: Sequence[int], strides: Sequence[int], dtype: str, device: None) -> Tensor:
        """On the current device, like everything here."""
        count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        memory = self.xp.empty(count, dtype=dtype)
        places = [stride * memory.itemsize for stride in strides]
        return Tensor(self.xp, self.xp.lib.stride_tricks.as_strided(memory, tuple(shape), tuple(places)))

    def empty(self, shape: Sequence[int], dtype: str, device: None) -> Tensor:
        """Row-major."""
        return Tensor(self.xp, self.xp.empty(shape, dtype=dtype))

    def _rms_norm(self, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float = 0.0) -> Tensor:
        return self._normalized(x, shape, weight, None, eps, centred=False)

    def _layer_norm(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.0
    ) -> Tensor:
        return self._normalized(x, shape, weight, bias, eps, centred=True)

    def _normalized(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Tensor:
        axes = tuple(range(-len(shape), 0))

        def normalized(y: Any, *affine: Any) -> Any:
            if centred:
                y = y - y.mean(axis=axes, keepdims=True)
            y = y / self.xp.sqrt((y * y).sum(axis=axes, keepdims=True) / prod(shape) + eps)
            for place, operand in enumerate(affine):
                y = y * operand if place == 0 else y + operand
            return y

        return _compute(normalized, x, *(operand for operand in (weight, bias) if operand is not None))


def _elementwise(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: _compute(function, x)


def _compute(function: Callable[..., Any], x: Tensor, *others: Any) -> Tensor:
    """In at least float32, rounded to the type of x."""
    wide = "float64" if x.data.dtype == "float64" else "float32"
    operands = [other.data.astype(wide, copy=False) if isinstance(other, Tensor) else other for other in (x, *others)]
    return Tensor(x.xp, function(*operands).astype(x.data.dtype, copy=False))


def _erf(xp: Any) -> Callable[[Any], Any]:
    if xp.__name__ == "numpy":
        from math import erf

        vectorized: Callable[[Any], Any] = xp.vectorize(erf, otypes=[float])
        return vectorized
    from cupyx.scipy.special import erf as special  # type: ignore[import-not-found]

    function: Callable[[Any], Any] = special
    return function


__all__ = ["CupyTorch", "Tensor"]
