"""Writing a program by hand: tensors, the methods for ops, inputs and outputs; the names are those of mirage-project/mirage.

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
from mirage_eg.ir.graph_copy import without_values
from mirage_eg.ir.node import Node, TensorType, node, result_count
from mirage_eg.ir.ops import OPS, Level
from mirage_eg.ir.shapes import Shape, taken_by_slice, text
from mirage_eg.ir.sizes import SizeExpression, as_numbers, dims_text


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value of a builder; `+ - * / @ **` and `abs` append ops, and numbers become exact constants."""

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
        item = [item for item in self.nodes for _ in range(result_count(item))][x.position]
        if item.op == "sum" and str(self.checker.types[item.operands[0]].shape[item["dim"]]) == str(size):
            self.averaged.add(x.position)
            return self.op("mean", Tensor(self, item.operands[0]), dim=item["dim"])
        raise GraphError(f"div: got the size {size} as divisor of %{x.position}, wanted a number; x.sum / n of all n is mean")

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
        return self.op(name, tensor, self._constant(tensor, constant))

    def abs(self, x: Tensor) -> Tensor:
        """The absolute value."""
        return self.op("abs", x)

    def where(self, condition: Tensor, x: "Tensor | Number", y: "Tensor | Number") -> Tensor:
        """x where `condition` is 1 and y where it is 0; undefined elsewhere. At most one of x and y may be a number.

        `condition` is an indicator: an input of dtype bool, or zeros and ones of any element type.
        """
        if any(isinstance(it, float) and it == -inf for it in (x, y)):
            raise GraphError("where: got −∞, wanted a finite number; a softmax masks its scores by softmax(x, dim, mask)")
        tensor = x if isinstance(x, Tensor) else y
        if not isinstance(tensor, Tensor):
            raise GraphError(f"where: got {described(x)} and {described(y)}, wanted at least one tensor of this graph")
        self._positions("where", [condition])
        return self.op("where", condition, *(it if isinstance(it, Tensor) else self._constant(tensor, it) for it in (x, y)))

    def _constant(self, like: Tensor, value: Number) -> Tensor:
        """A constant in the shape and element type of a tensor."""
        zero = self.scale(like, 0)
        return zero if exact(value) == 0 else self.shift(zero, value)

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
        return self.op(name, x, y if isinstance(y, Tensor) else self._constant(x, y))

    def cast(self, x: Tensor, dtype: object) -> Tensor:
        """x in another element type: rounded to it, or computed with in it from here on."""
        return self.op("cast", x, dtype=dtype_of(dtype))

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
        """Every `step`-th element from `start` to before `stop` along `dim`, as in Python; `split` gives equal parts."""
        dim = self._dim("slice", x, dim)
        taken = taken_by_slice(x.shape[dim], *whole("slice", (start, stop, step), "its bounds"))
        return self.op("slice", x, dim=dim, start=taken.start, stop=taken.stop, step=taken.step)

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


class KernelGraph(Builder):
    """A tensor program being written; if no value is marked as an output, all values without a use are outputs."""

    def __init__(self) -> None:
        super().__init__(Level.KERNEL)
        self._outputs: dict[int, str | None] = {}

    def new_input(
        self,
        dims: Sequence[int],
        dtype: object = DType.float16,
        name: str | None = None,
        strides: Sequence[int] | None = None,
    ) -> Tensor:
        """A tensor that the program takes; `strides` count elements, row-major where not given.

        A dim may be a `Dim`. `dtype` is a DType, its name, or NumPy's, torch's or CuPy's type of that name.
        """
        shape, dense = whole("new_input", dims, "dims"), None if strides is None else whole("new_input", strides, "strides")
        return self.op("input", shape=shape, dtype=dtype_of(dtype), name=name, strides=dense, dims=dims_text(shape))

    def gather(self, x: Tensor, indices: Tensor, dim: int = 0) -> Tensor:
        """The slices of x at `indices` (int32 or int64) along `dim`: an embedding, torch.index_select."""
        return self.op("gather", x, indices, dim=self._dim("gather", x, dim))

    def take_along_dim(self, x: Tensor, indices: Tensor, dim: int) -> Tensor:
        """The elements of x at `indices` along `dim`, other dims in step (torch.gather)."""
        return self.op("take_along_dim", x, indices, dim=self._dim("take_along_dim", x, dim))

    def index_write(self, x: Tensor, indices: Tensor, values: Tensor, dim: int = 0) -> Tensor:
        """x with the slices at `indices` (one dim) along `dim` replaced by those of `values` (torch.index_copy)."""
        return self.op("index_write", x, indices, values, dim=self._dim("index_write", x, dim))

    def scatter(self, x: Tensor, indices: Tensor, values: Tensor, dim: int) -> Tensor:
        """x with the elements at `indices` along `dim` replaced by `values`, other dims in step (torch.scatter)."""
        return self.op("scatter", x, indices, values, dim=self._dim("scatter", x, dim))

    def cumsum(self, x: Tensor, dim: int) -> Tensor:
        """The sums of the first 1, 2, … elements along `dim`."""
        return self.op("cumsum", x, dim=self._dim("cumsum", x, dim))

    def argsort(self, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
        """The places of the elements along `dim` in order (int64); equal elements stay in theirs."""
        return self.op("argsort", x, dim=self._dim("argsort", x, dim), descending=int(descending))

    def sort(self, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
        """The elements along `dim` in order, and their places."""
        places = self.argsort(x, dim, descending)
        return self.take_along_dim(x, places, dim), places

    def topk(self, x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
        """The k largest (or smallest) elements along `dim` in order, and their places."""
        places = self.op("argsort", x, dim=self._dim("topk", x, dim), descending=int(largest), count=k)
        return self.take_along_dim(x, places, dim), places

    def iota(self, extent: int) -> Tensor:
        """0, 1, …, extent − 1, of int64."""
        return self.op("iota", extent=extent)

    def mark_output(self, x: Tensor, name: str | None = None) -> None:
        """Make x an output; outputs are in the order of the calls.

        Raises:
            GraphError: x is already an output with another name.
        """
        [position] = self._positions("mark_output", [x])
        earlier = self._outputs.get(position)
        if earlier is not None and name is not None and name != earlier:
            raise GraphError(
                f"mark_output: %{position} is already the output {earlier!r}, got the name {name!r}; one value, one name"
            )
        self._outputs[position] = name if name is not None else earlier

    def customized(self, inputs: Sequence[Tensor], block_graph: Builder) -> list[Tensor]:
        """Run a `ThreadblockGraph` as one kernel; the result is one tensor for each of its outputs."""
        graph = block_graph.graph()
        return self._append(node("block", *self._positions("customized", inputs), graph=graph))

    def graph(self) -> Graph:
        """The program, frozen."""
        used = {operand for item in self.nodes for operand in item.operands}
        sinks: dict[int, str | None] = dict.fromkeys(i for i in range(len(self.checker.types)) if i not in used | self.averaged)
        outputs = [node("output", position, name=name) for position, name in (self._outputs or sinks).items()]
        nodes = [Node(item.op, item.operands, as_numbers(item.attributes)) for item in (*self.nodes, *outputs)]
        return without_values(Graph(tuple(nodes)), self.averaged - used - self._outputs.keys())

    def __str__(self) -> str:
        return str(self.graph())


def new_kernel_graph() -> KernelGraph:
    """Start a tensor program."""
    return KernelGraph()
