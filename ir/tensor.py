"""Tensors of a graph that is being written, and the methods for the ops that kernel and block graphs share.

A builder checks each node as it appends it; `graph()` gives the frozen graph.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from numbers import Integral
from typing import Any, ClassVar

from mirage_eg.ir.arguments import AS_INPUT, Number, described, dtype_of, exact, whole
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType, node, result_count
from mirage_eg.ir.op.elementwise import PACKAGED
from mirage_eg.ir.ops import OPS, Level
from mirage_eg.ir.shapes import Shape, taken_by_slice, text
from mirage_eg.ir.sizes import SizeExpression


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value of a builder; `+ - * / @ **` and `abs` append ops, as do `// >>` of integers; numbers become exact constants."""

    __array_ufunc__: ClassVar[None] = None  # so that NumPy leaves `array + tensor` to the tensor, which refuses it

    builder: "Builder"
    position: int

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        return self.builder.checker.types[self.position]

    @property
    def shape(self) -> Shape:
        """Shape (of the tile, in a block graph)."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    def __add__(self, other: "Tensor | Number") -> "Tensor":
        return self.builder.add(self, other) if isinstance(other, Tensor) else self.builder.shift(self, other)

    def __sub__(self, other: "Tensor | Number") -> "Tensor":
        return self.builder.sub(self, other) if isinstance(other, Tensor) else self.builder.shift(self, -exact(other))

    def __mul__(self, other: "Tensor | Number") -> "Tensor":
        return self.builder.mul(self, other) if isinstance(other, Tensor) else self.builder.scale(self, other)

    def __truediv__(self, other: "Tensor | Number") -> "Tensor":
        if isinstance(other, Tensor):
            return self.builder.div(self, other)
        if isinstance(other, SizeExpression):
            return self.builder.mean_of(self, other)
        if exact(other) == 0:
            raise GraphError(f"div: got {other!r} as divisor of %{self.position}, wanted a number that is not 0")
        return self.builder.scale(self, 1 / exact(other))

    def __floordiv__(self, divisor: int) -> "Tensor":
        return self.builder.op("floor_divide", self, divisor=divisor)

    def __rshift__(self, bits: "Tensor | int") -> "Tensor":
        if isinstance(bits, Tensor):
            return self.builder.op("right_shift_by", self, bits)
        return self.builder.op("right_shift", self, bits=bits)

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return self.builder.matmul(self, other)

    def __neg__(self) -> "Tensor":
        return self.builder.scale(self, -1)

    def __pos__(self) -> "Tensor":
        return self

    def __abs__(self) -> "Tensor":
        return self.builder.abs(self)

    def __pow__(self, exponent: Number) -> "Tensor":
        named = _POWERS.get(exact(exponent))
        return self.builder.op(named, self) if named else self.builder.pow(self, exponent)

    def __rsub__(self, other: Number) -> "Tensor":
        return self.builder.shift(-self, other)

    def __rtruediv__(self, other: Number) -> "Tensor":
        reciprocal = self.builder.pow(self, -1)
        return reciprocal if exact(other) == 1 else self.builder.scale(reciprocal, other)

    def __rmatmul__(self, other: object) -> "Tensor":
        raise GraphError(f"matmul: got {described(other)} as operand 0, wanted a tensor of this graph; {AS_INPUT}")

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"Tensor(%{self.position}: {self.type})"


_POWERS = {Fraction(2): "square", Fraction(1, 2): "sqrt", Fraction(-1, 2): "rsqrt"}  # exponents that have an op of their own


class Builder:
    """The ops that kernel and block graphs share; each method appends a node and returns its value."""

    def __init__(self, level: Level, grid: tuple[int, ...] = (), loop: int = 1) -> None:
        self.nodes: list[Node] = []
        self.averaged: set[int] = set()  # sums that became means
        self.checker = Checker(level, grid, loop)

    def op(self, name: str, /, *operands: Tensor, **attributes: Any) -> Tensor:
        """Append an op of the op table that has one value; dims are counted from 0."""
        kinds = OPS[name].attributes if name in OPS else {}
        given = {
            key: exact(value) if kinds.get(key, "").startswith("rational") and value is not None else value
            for key, value in attributes.items()
        }
        return self._append(node(name, *self._positions(name, operands), **given))[0]

    def graph(self) -> Graph:
        """The graph, frozen."""
        raise NotImplementedError

    def mean_of(self, x: Tensor, size: SizeExpression) -> Tensor:
        """x / size where x is the sum over a dim of this size: the mean. Other constants are no sizes."""
        item = self.maker(x.position)
        if item.op == "sum" and str(self.checker.types[item.operands[0]].shape[item["dim"]]) == str(size):
            self.averaged.add(x.position)
            return self.op("mean", Tensor(self, item.operands[0]), dim=item["dim"])
        raise GraphError(f"div: got the size {size} as divisor of %{x.position}, wanted a number; x.sum / n of all n is mean")

    def maker(self, position: int) -> Node:
        """The node that has the value at a position."""
        return [item for item in self.nodes for _ in range(result_count(item))][position]

    def _positions(self, name: str, operands: Iterable[Tensor]) -> list[int]:
        positions = []
        for index, operand in enumerate(operands):
            if not isinstance(operand, Tensor):
                hint = f"; {AS_INPUT}" if hasattr(operand, "shape") else ""
                raise GraphError(f"{name}: got {described(operand)} as operand {index}, wanted a tensor of this graph{hint}")
            if operand.builder is not self:
                raise GraphError(f"{name}: operand {index} belongs to another graph, wanted a tensor of this one")
            positions.append(operand.position)
        return positions

    def _append(self, item: Node) -> list[Tensor]:
        values = self.checker.append(item)
        self.nodes.append(item)
        return [Tensor(self, position) for position in values]

    def _dim(self, name: str, x: Tensor, dim: int) -> int:
        self._positions(name, [x])
        rank = len(x.shape)
        if isinstance(dim, bool) or not isinstance(dim, Integral) or not -rank <= dim < rank:
            raise GraphError(f"{name}: got dim {dim!r} for shape {text(x.shape)}; wanted {-rank} ≤ dim < {rank}")
        return int(dim) % rank

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return self.op("add", x, y)

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        """x − y."""
        return self.op("sub", x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x · y, element by element."""
        return self.op("mul", x, y)

    def div(self, x: Tensor, y: Tensor) -> Tensor:
        """x / y, element by element."""
        return self.op("div", x, y)

    def maximum(self, x: "Tensor | Number", y: "Tensor | Number") -> Tensor:
        """The larger of x and y, element by element; one of them may be a number."""
        return self._extreme("maximum", x, y)

    def minimum(self, x: "Tensor | Number", y: "Tensor | Number") -> Tensor:
        """The smaller of x and y, element by element; one of them may be a number."""
        return self._extreme("minimum", x, y)

    def _extreme(self, name: str, x: "Tensor | Number", y: "Tensor | Number") -> Tensor:
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return self.op(name, x, y)
        tensor, number = (x, y) if isinstance(x, Tensor) else (y, x)
        if not isinstance(tensor, Tensor):
            raise GraphError(f"{name}: got {described(x)} and {described(y)}, wanted at least one tensor of this graph")
        constant = exact(number)  # type: ignore[arg-type]
        if constant == 0:
            return self.relu(tensor) if name == "maximum" else -self.relu(-tensor)
        return self.op(name, tensor, self.fill(tensor, constant))

    def abs(self, x: Tensor) -> Tensor:
        """The absolute value."""
        return self.op("abs", x)

    def where(self, condition: Tensor, x: "Tensor | Number", y: "Tensor | Number") -> Tensor:
        """x where `condition` is 1 and y where it is 0; undefined elsewhere. What is not chosen may be infinite or undefined.

        `condition` is an indicator: an input of dtype bool, or zeros and ones of any element type. x and y may be numbers; two
        numbers have the element type of the condition.
        """
        if any(isinstance(it, float) and it == -inf for it in (x, y)):
            raise GraphError("where: got −∞, wanted a finite number; a softmax masks its scores by softmax(x, dim, mask)")
        self._positions("where", [condition])
        like = next((it for it in (x, y) if isinstance(it, Tensor)), condition)
        return self.op("where", condition, *(it if isinstance(it, Tensor) else self.fill(like, it) for it in (x, y)))

    def fill(self, x: Tensor, value: Number) -> Tensor:
        """The number `value` in the shape and element type of x, whose entries do not matter."""
        return self.op("fill", x, value=exact(value))

    def less(self, x: Tensor, y: "Tensor | Number") -> Tensor:
        """The indicator of x < y: 1 where it holds, 0 elsewhere, in the element type of x and y."""
        return self._compared("less", x, y)

    def less_equal(self, x: Tensor, y: "Tensor | Number") -> Tensor:
        """The indicator of x ≤ y."""
        return self._compared("less_equal", x, y)

    def equal(self, x: Tensor, y: "Tensor | Number") -> Tensor:
        """The indicator of x = y."""
        return self._compared("equal", x, y)

    def _compared(self, name: str, x: Tensor, y: "Tensor | Number") -> Tensor:
        self._positions(name, [x])
        return self.op(name, x, y if isinstance(y, Tensor) else self.fill(x, y))

    def cast(self, x: Tensor, dtype: object) -> Tensor:
        """x in another element type: rounded to it, or computed with in it from here on."""
        wanted = DType(dtype_of(dtype))
        if DType(x.dtype).is_integer and wanted.is_float8:
            x = self.op("cast", x, dtype=str(DType.float32))
        if f"to_{wanted}" in PACKAGED and not DType(x.dtype).is_integer and x.dtype not in (wanted, DType.bool):
            return self.op(f"to_{wanted}", x)
        return self.op("cast", x, dtype=str(wanted))

    def low_bits(self, x: Tensor, bits: int) -> Tensor:
        """x mod 2^bits of integers, from 0 on."""
        return self.op("low_bits", x, bits=bits)

    def neg(self, x: Tensor) -> Tensor:
        """−x."""
        return self.scale(x, -1)

    def reciprocal(self, x: Tensor) -> Tensor:
        """1 / x."""
        return self.pow(x, -1)

    def exp(self, x: Tensor) -> Tensor:
        """e to the x."""
        return self.op("exp", x)

    def log(self, x: Tensor) -> Tensor:
        """Natural logarithm."""
        return self.op("log", x)

    def log2(self, x: Tensor) -> Tensor:
        """Logarithm to the base 2, exact for powers of 2."""
        return self.op("log2", x)

    def log10(self, x: Tensor) -> Tensor:
        """Logarithm to the base 10."""
        return self.op("log10", x)

    def log1p(self, x: Tensor) -> Tensor:
        """log(1 + x), with all digits for small x, too."""
        return self.op("log1p", x)

    def expm1(self, x: Tensor) -> Tensor:
        """exp(x) − 1, with all digits for small x, too."""
        return self.op("expm1", x)

    def square(self, x: Tensor) -> Tensor:
        """x · x."""
        return self.op("square", x)

    def sqrt(self, x: Tensor) -> Tensor:
        """Square root."""
        return self.op("sqrt", x)

    def rsqrt(self, x: Tensor) -> Tensor:
        """1 / √x."""
        return self.op("rsqrt", x)

    def pow(self, x: Tensor, exponent: Number) -> Tensor:
        """x to a constant power."""
        return self.op("pow", x, exponent=exact(exponent))

    def silu(self, x: Tensor) -> Tensor:
        """x · sigmoid(x)."""
        return self.op("silu", x)

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(−x))."""
        return self.op("sigmoid", x)

    def gelu(self, x: Tensor) -> Tensor:
        """x · Φ(x) with the normal distribution function Φ, exact form."""
        return self.op("gelu", x)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2, the approximate form of gelu."""
        return self.op("gelu_tanh", x)

    def erf(self, x: Tensor) -> Tensor:
        """The error function, (2/√π) ∫₀ˣ exp(−t²) dt."""
        return self.op("erf", x)

    def sin(self, x: Tensor) -> Tensor:
        """The sine of an angle in radians."""
        return self.op("sin", x)

    def cos(self, x: Tensor) -> Tensor:
        """The cosine of an angle in radians."""
        return self.op("cos", x)

    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x))."""
        return self.op("softplus", x)

    def mish(self, x: Tensor) -> Tensor:
        """x · tanh(softplus(x))."""
        return self.op("mish", x)

    def leaky_relu(self, x: Tensor, slope: Number = 0.01) -> Tensor:
        """x where it is positive, slope · x elsewhere."""
        return self.op("leaky_relu", x, slope=exact(slope))

    def elu(self, x: Tensor, alpha: Number = 1.0) -> Tensor:
        """x where it is positive, alpha · (exp(x) − 1) elsewhere."""
        return self.op("elu", x, alpha=exact(alpha))

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return self.op("relu", x)

    def tanh(self, x: Tensor) -> Tensor:
        """Hyperbolic tangent."""
        return self.op("tanh", x)

    def clamp(self, x: Tensor, low: Number, high: Number) -> Tensor:
        """min(max(x, low), high)."""
        return self.op("clamp", x, low=exact(low), high=exact(high))

    def scale(self, x: Tensor, c: Number) -> Tensor:
        """c · x for an exact constant c."""
        return self.op("scale", x, factor=exact(c))

    def shift(self, x: Tensor, c: Number) -> Tensor:
        """x + c for an exact constant c."""
        return self.op("shift", x, offset=exact(c))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """[…, m, k] @ […, k, n] → […, m, n]; leading dims broadcast."""
        return self.op("matmul", x, y)

    def reduction(self, x: Tensor, dim: int) -> Tensor:
        """Sum over `dim`, whose extent becomes 1."""
        return self.op("sum", x, dim=self._dim("reduction", x, dim))

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """Sum over `dim`, whose extent becomes 1."""
        return self.op("sum", x, dim=self._dim("sum", x, dim))

    def mean(self, x: Tensor, dim: int) -> Tensor:
        """Mean over `dim`, whose extent becomes 1."""
        return self.op("mean", x, dim=self._dim("mean", x, dim))

    def max(self, x: Tensor, dim: int) -> Tensor:
        """Maximum over `dim`, whose extent becomes 1."""
        return self.op("max", x, dim=self._dim("max", x, dim))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in row-major order under another shape."""
        return self.op("reshape", x, shape=whole("reshape", shape, "the shape"))

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """Result dim i is dim permutation[i] of x."""
        return self.op("transpose", x, permutation=tuple(self._dim("transpose", x, dim) for dim in permutation))

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """The tensors joined along `dim`, in order."""
        if not tensors:
            raise GraphError("concat: got no tensors, wanted at least one")
        return self.op("concat", *tensors, dim=self._dim("concat", tensors[0], dim))

    def slice(self, x: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
        """Every `step`-th element from `start` to before `stop` along `dim`, as in Python; `split` gives equal parts.

        Along a dim that is chosen later a bound below 0, and one that is the dim, count from its end at every size.
        """
        dim = self._dim("slice", x, dim)
        extent, bounds = x.shape[dim], whole("slice", (start, stop, step), "its bounds")
        taken = taken_by_slice(extent, *bounds)
        from_end = None
        if isinstance(extent, SizeExpression):
            from_end = tuple(int(it < 0 or (isinstance(it, SizeExpression) and str(it) == str(extent))) for it in bounds[:2])
        return self.op("slice", x, dim=dim, start=taken.start, stop=taken.stop, step=taken.step, from_end=from_end)

    def split(self, x: Tensor, parts: int, dim: int) -> list[Tensor]:
        """`parts` equal parts along `dim`; `slice` gives any part."""
        dim = self._dim("split", x, dim)
        return [self.op("split", x, dim=dim, parts=parts, index=index) for index in range(parts)]

    def broadcast(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x with extents of 1 repeated up to `shape`."""
        return self.op("broadcast", x, shape=whole("broadcast", shape, "the shape"))

    def repeat(self, x: Tensor, times: int, dim: int) -> Tensor:
        """Each slice along `dim` `times` times in a row (torch.repeat_interleave)."""
        return self.op("repeat", x, times=times, dim=self._dim("repeat", x, dim))

    def softmax(self, x: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
        """exp(x) / Σ exp(x) over `dim`; with a mask exp(x) · mask / Σ exp(x) · mask, as if x were −∞ where the mask is 0.

        The mask is of dtype bool. A row that is masked whole is undefined, as it is in torch.
        """
        operands = (x,) if mask is None else (x, mask)
        return self.op("softmax", *operands, dim=self._dim("softmax", x, dim))

    def rms_norm(
        self, x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: Number = 0.0
    ) -> Tensor:
        """x / √(mean(x²) + eps), times `weight`, over the last dims, whose extents are `normalized_shape`."""
        operands = [operand for operand in (x, weight) if operand is not None]
        dims = self._normalized_dims("rms_norm", x, normalized_shape)
        return self.op("rms_norm", *operands, dims=dims, eps=exact(eps) or None)

    def layer_norm(
        self,
        x: Tensor,
        normalized_shape: int | Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: Number = 0.0,
    ) -> Tensor:
        """(x − mean) / √(variance + eps), times `weight`, plus `bias`, over the last dims."""
        if bias is not None and weight is None:
            raise GraphError("layer_norm: got a bias without a weight; add the bias with add()")
        operands = [operand for operand in (x, weight, bias) if operand is not None]
        dims = self._normalized_dims("layer_norm", x, normalized_shape)
        return self.op("layer_norm", *operands, dims=dims, eps=exact(eps) or None)

    def _normalized_dims(self, name: str, x: Tensor, normalized_shape: int | Sequence[int]) -> int:
        self._positions(name, [x])
        wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if not wanted or x.shape[-len(wanted) :] != wanted:
            raise GraphError(f"{name}: got normalized_shape {text(wanted)} for {text(x.shape)}; wanted its last extents")
        return len(wanted)
