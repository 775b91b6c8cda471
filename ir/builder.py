"""Writing programs and block graphs by hand: the API behind `mirage_eg.new_kernel_graph` and `new_threadblock_graph`.

A builder appends nodes, each checked at once; `graph()` freezes what was written. Names follow mirage-project/mirage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from numbers import Integral, Real
from typing import Any, ClassVar

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import NEW_DIM, REPLICATED, Graph, Node, TensorType, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.shapes import Shape, text

Number = int | float | Fraction  # and NumPy's scalars, which are registered as `numbers.Real`


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A handle on one value of a builder; `+ - * / @ **` and `abs` write ops, and numbers become exact constants."""

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
        raise GraphError(f"matmul: got {_described(other)} as operand 0, wanted a tensor of this graph; {_AS_INPUT}")

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"Tensor(%{self.position}: {self.type})"


_POWERS = {Fraction(2): "square", Fraction(1, 2): "sqrt", Fraction(-1, 2): "rsqrt"}  # exponents that have an op of their own
_AS_INPUT = "make it an input: new_input(shape)"


def exact(value: Number) -> Fraction:
    """The constant as it is written: 0.1 is 1/10, not the float nearest to it.

    Raises:
        GraphError: no number (an array is an input), or one that is not finite.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        hint = f"; {_AS_INPUT}" if hasattr(value, "shape") else ""
        raise GraphError(f"got constant {_described(value)}, wanted a finite number{hint}")
    if isinstance(value, Integral):
        constant = Fraction(int(value))
    elif isinstance(value, Fraction):
        constant = value
    else:
        written = str(value)  # NumPy's scalars too are written with the fewest digits that tell them apart
        if not written.lstrip("-")[:1].isdigit():
            raise GraphError(f"got constant {written}, wanted a finite number")
        constant = Fraction(written)
    return constant


def _described(value: object) -> str:
    """A value in a few characters: arrays by type and shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and not isinstance(value, Tensor):
        return f"an array ({type(value).__module__}.{type(value).__qualname__} of shape {tuple(shape)})"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


def dtype_of(value: object) -> str:
    """The name of an element type: a DType, a name, or a type of NumPy's, torch's or CuPy's.

    Raises:
        GraphError: a type that mirage_eg has not.
    """
    names = (str(value).removeprefix("torch."), getattr(value, "name", None), getattr(value, "__name__", None))
    for name in names:
        if name in DType.__members__:
            return str(name)
    raise GraphError(f"got dtype {_described(value)}, wanted one of {', '.join(DType)}")


def _whole(name: str, values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Whole numbers of any kind (NumPy's too) as ints."""
    given = tuple(values) if isinstance(values, Iterable) else (values,)
    for value in given:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise GraphError(f"{name}: got {_described(value)} in {what}, wanted whole numbers")
    return tuple(map(int, given))


class Builder:
    """The ops that kernel and block graphs share; each method appends one node and gives its value."""

    def __init__(self, level: Level, grid: tuple[int, ...] = (), loop: int = 1) -> None:
        self.nodes: list[Node] = []
        self.checker = Checker(level, grid, loop)

    def op(self, name: str, /, *operands: Tensor, **attributes: Any) -> Tensor:
        """Append any op of the op table that makes one value; dims are counted from 0."""
        return self._append(node(name, *self._positions(name, operands), **attributes))[0]

    def _positions(self, name: str, operands: Iterable[Tensor]) -> list[int]:
        positions = []
        for place, operand in enumerate(operands):
            if not isinstance(operand, Tensor):
                hint = f"; {_AS_INPUT}" if hasattr(operand, "shape") else ""
                raise GraphError(f"{name}: got {_described(operand)} as operand {place}, wanted a tensor of this graph{hint}")
            if operand.builder is not self:
                raise GraphError(f"{name}: operand {place} belongs to another graph, wanted a tensor of this one")
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
            raise GraphError(f"{name}: got {_described(x)} and {_described(y)}, wanted at least one tensor of this graph")
        constant = exact(number)  # type: ignore[arg-type]
        if constant == 0:
            return self.relu(tensor) if name == "maximum" else -self.relu(-tensor)
        return self.op(name, tensor, self.shift(self.scale(tensor, 0), constant))

    def abs(self, x: Tensor) -> Tensor:
        """The absolute value."""
        return self.op("abs", x)

    def where(self, mask: Tensor, x: "Tensor | Number", y: "Tensor | Number") -> Tensor:
        """x where `mask` is 1 and y where it is 0: mask · x + (1 − mask) · y; x and y must be finite in both places.

        `mask` is a tensor of zeros and ones (an indicator, in an element type of the program): the program means this formula,
        also for other numbers. At most one of x and y may be a number.
        """
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            raise GraphError(f"where: got {_described(x)} and {_described(y)}, wanted at least one tensor of this graph")
        self._positions("where", [mask])
        return mask * x + (1 - mask) * y

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
        """c · x for a constant c, kept exact."""
        return self.op("scale", x, factor=exact(c))

    def shift(self, x: Tensor, c: Number) -> Tensor:
        """x + c for a constant c, kept exact."""
        return self.op("shift", x, offset=exact(c))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """[…, m, k] @ […, k, n] → […, m, n]; leading dims broadcast."""
        return self.op("matmul", x, y)

    def reduction(self, x: Tensor, dim: int) -> Tensor:
        """Sum over `dim`, which stays with extent 1."""
        return self.op("sum", x, dim=self._dim("reduction", x, dim))

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """Sum over `dim`, which stays with extent 1."""
        return self.op("sum", x, dim=self._dim("sum", x, dim))

    def mean(self, x: Tensor, dim: int) -> Tensor:
        """Mean over `dim`, which stays with extent 1."""
        return self.op("mean", x, dim=self._dim("mean", x, dim))

    def max(self, x: Tensor, dim: int) -> Tensor:
        """Maximum over `dim`, which stays with extent 1."""
        return self.op("max", x, dim=self._dim("max", x, dim))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in row-major order under another shape."""
        return self.op("reshape", x, shape=_whole("reshape", shape, "the shape"))

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """Result dim i is dim permutation[i] of x."""
        return self.op("transpose", x, permutation=tuple(self._dim("transpose", x, dim) for dim in permutation))

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """The tensors one behind the other along `dim`."""
        if not tensors:
            raise GraphError("concat: got no tensors, wanted at least one")
        return self.op("concat", *tensors, dim=self._dim("concat", tensors[0], dim))

    def split(self, x: Tensor, parts: int, dim: int) -> list[Tensor]:
        """`parts` equal pieces along `dim`."""
        dim = self._dim("split", x, dim)
        return [self.op("split", x, dim=dim, parts=parts, index=index) for index in range(parts)]

    def broadcast(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x with extents of 1 repeated up to `shape`."""
        return self.op("broadcast", x, shape=_whole("broadcast", shape, "the shape"))

    def repeat(self, x: Tensor, times: int, dim: int) -> Tensor:
        """Each slice along `dim` `times` times in a row (torch.repeat_interleave)."""
        return self.op("repeat", x, times=times, dim=self._dim("repeat", x, dim))

    def softmax(self, x: Tensor, dim: int) -> Tensor:
        """exp(x) / Σ exp(x) over `dim`."""
        return self.op("softmax", x, dim=self._dim("softmax", x, dim))

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
    """A tensor program being written: inputs, ops, outputs. Values not marked as outputs but used by nothing are outputs."""

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

        `dtype` is a DType, its name, or NumPy's, torch's or CuPy's type of that name.
        """
        dense = _whole("new_input", strides, "strides") if strides is not None else None
        return self.op("input", shape=_whole("new_input", dims, "dims"), dtype=dtype_of(dtype), name=name, strides=dense)

    def mark_output(self, x: Tensor, name: str | None = None) -> None:
        """Make x an output; outputs stand in the order in which they were marked.

        Raises:
            GraphError: x is an output already, by another name.
        """
        [position] = self._positions("mark_output", [x])
        known = self._outputs.get(position)
        if known is not None and name is not None and name != known:
            raise GraphError(
                f"mark_output: %{position} is the output {known!r} already, got the name {name!r}; one value, one name"
            )
        self._outputs[position] = name if name is not None else known

    def customized(self, inputs: Sequence[Tensor], block_graph: "ThreadblockGraph") -> list[Tensor]:
        """Run a hand-written block graph as one kernel; gives one tensor for each of its outputs."""
        graph = block_graph.graph()
        return self._append(node("block", *self._positions("customized", inputs), graph=graph))

    def graph(self) -> Graph:
        """The program, frozen."""
        used = {operand for item in self.nodes for operand in item.operands}
        sinks: dict[int, str | None] = {i: None for i in range(len(self.checker.types)) if i not in used}
        outputs = [node("output", position, name=name) for position, name in (self._outputs or sinks).items()]
        return Graph((*self.nodes, *outputs))

    def __str__(self) -> str:
        return str(self.graph())


_ACCUMULATORS = {
    None: ("accum_sum", False),
    "sum": ("accum_sum", True),
    "mean": ("accum_mean", True),
    "max": ("accum_max", True),
    "rms": ("accum_rms", True),
}


class ThreadblockGraph(Builder):
    """A block graph being written by hand: loads, tile ops, accumulators, stores."""

    def __init__(self, grid_dim: Sequence[int], block_dim: Sequence[int] = (128, 1, 1), forloop_range: int = 1) -> None:
        super().__init__(Level.BLOCK, _extents("grid_dim", grid_dim), forloop_range)
        self.threads = prod(_extents("block_dim", block_dim))

    def new_input(self, dtensor: Tensor, input_map: Sequence[int], forloop_dim: int = REPLICATED) -> Tensor:
        """Load a tile: `input_map` sends each grid dim to a dim of the tensor or −1; the loop walks `forloop_dim`."""
        if not isinstance(dtensor, Tensor):
            raise GraphError(f"new_input: got {dtensor!r}, wanted a tensor of the kernel graph")
        imap = tuple(input_map)[: len(self.checker.grid)]
        return self.op("input", shape=dtensor.shape, dtype=str(dtensor.dtype), imap=imap, fmap=forloop_dim)

    def forloop_accum(self, x: Tensor, acc: str | None = None, dim: int = -1) -> Tensor:
        """Sum over the loop; with `acc` ("sum", "mean", "max", "rms") reduce `dim` of the tile too."""
        if acc not in _ACCUMULATORS:
            raise GraphError(f"forloop_accum: got {acc!r}, wanted None or one of {', '.join(filter(None, _ACCUMULATORS))}")
        name, reduces = _ACCUMULATORS[acc]
        return self.op(name, x, dim=self._dim(name, x, dim) if reduces else None)

    def forloop_accum_strided(self, x: Tensor, columns: int, dim: int = -1) -> Tensor:
        """out[i] = Σ over the loop and k of x[i + k·columns] along `dim`."""
        return self.op("accum_strided_sum", x, dim=self._dim("accum_strided_sum", x, dim), columns=columns)

    def new_output(self, stensor: Tensor, output_map: Sequence[int], dtype: object = None) -> None:
        """Store a tile: each grid dim goes to a dim by concatenation, to a new one (NEW_DIM), or to −1 if nothing varies.

        `dtype` is the element type in memory where it is not that of the tile: partial results are best kept in float32.
        """
        [position] = self._positions("new_output", [stensor])
        stored = None if dtype is None else dtype_of(dtype)
        self._append(node("output", position, omap=tuple(output_map)[: len(self.checker.grid)], dtype=stored))

    def graph(self) -> Graph:
        """The block graph, frozen."""
        return Graph(tuple(self.nodes), Level.BLOCK, self.checker.grid, self.checker.loop, self.threads)


def new_kernel_graph() -> KernelGraph:
    """Start a tensor program."""
    return KernelGraph()


def _extents(name: str, given: object) -> Shape:
    if isinstance(given, Sequence) and all(isinstance(extent, int) and extent >= 1 for extent in given):
        return tuple(given)
    raise GraphError(f"new_threadblock_graph: {name}: got {given!r}, wanted extents of at least 1, as (128, 1, 1)")


def new_threadblock_graph(
    grid_dim: Sequence[int], block_dim: Sequence[int] = (128, 1, 1), forloop_range: int = 1
) -> ThreadblockGraph:
    """Start a block graph that runs on `grid_dim` blocks of `block_dim` threads and loops `forloop_range` times."""
    return ThreadblockGraph(grid_dim, block_dim, forloop_range)


__all__ = ["NEW_DIM", "REPLICATED", "KernelGraph", "Tensor", "ThreadblockGraph", "new_kernel_graph", "new_threadblock_graph"]
