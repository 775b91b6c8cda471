"""Writing a program by hand: inputs, outputs, and the methods for ops of kernel graphs alone (`ir.tensor` has the others).

The names are those of mirage-project/mirage.
"""

from collections.abc import Sequence
from typing import Any

from mirage_eg.ir.arguments import Number, dtype_of, exact, whole
from mirage_eg.ir.at_sizes import check_constants
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import without_values
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.sizes import as_numbers, dims_text, names_in, read_dims
from mirage_eg.ir.tensor import Builder, Tensor

PerDim = int | Sequence[int]  # a number for all dims of a window, or one for each


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
        weight: bool = False,
    ) -> Tensor:
        """A tensor that the program takes; `strides` count elements, row-major where not given.

        A dim may be a `Dim`. `dtype` is a DType, its name, or NumPy's, torch's or CuPy's type of that name. A `weight` stays
        the same from call to call, so that functions of weights are computed once.
        """
        shape, dense = whole("new_input", dims, "dims"), None if strides is None else whole("new_input", strides, "strides")
        given = {"name": name, "strides": dense, "dims": dims_text(shape), "weight": weight or None}
        return self.op("input", shape=shape, dtype=dtype_of(dtype), **given)

    def gather(self, x: Tensor, indices: Tensor, dim: int = 0) -> Tensor:
        """The slices of x at `indices` (int32 or int64) along `dim`: an embedding, torch.index_select."""
        return self.op("gather", x, indices, dim=self._dim("gather", x, dim))

    def take(self, x: Tensor, places: Sequence[int], dim: int = 0) -> Tensor:
        """The slices of x at constant `places` along `dim`, in that order: slices, joined."""
        return self.op("take", x, dim=self._dim("take", x, dim), places=whole("take", places, "the places"))

    def take_along_dim(self, x: Tensor, indices: Tensor, dim: int) -> Tensor:
        """The elements of x at `indices` along `dim`, other dims in step (torch.gather)."""
        return self.op("take_along_dim", x, indices, dim=self._dim("take_along_dim", x, dim))

    def index_write(self, x: Tensor, indices: Tensor, values: Tensor, dim: int = 0) -> Tensor:
        """x with the slices at `indices` (one dim) along `dim` replaced by those of `values` (torch.index_copy)."""
        return self.op("index_write", x, indices, values, dim=self._dim("index_write", x, dim))

    def scatter(self, x: Tensor, indices: Tensor, values: Tensor, dim: int) -> Tensor:
        """x with the elements at `indices` along `dim` replaced by `values`, other dims in step (torch.scatter)."""
        return self.op("scatter", x, indices, values, dim=self._dim("scatter", x, dim))

    def patch(
        self, y: Tensor, blocks: Sequence[Tensor], starts: Sequence[Sequence[int]], steps: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """y with blocks written into it: each at its start in every dim, and in steps (1 where not given)."""
        flat = tuple(number for start in starts for number in whole("patch", start, "the starts"))
        strides = None if steps is None else tuple(number for step in steps for number in whole("patch", step, "the steps"))
        return self.op("patch", y, *blocks, starts=flat, steps=strides if strides and max(strides) > 1 else None)

    def cumsum(self, x: Tensor, dim: int) -> Tensor:
        """The sums of the first 1, 2, … elements along `dim`."""
        return self.op("cumsum", x, dim=self._dim("cumsum", x, dim))

    def argsort(self, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
        """The places of the elements along `dim` in order (int64); equal elements stay in theirs."""
        return self.op("argsort", x, dim=self._dim("argsort", x, dim), descending=int(descending))

    def places_of_first(self, x: Tensor, dim: int, count: int, largest: bool) -> Tensor:
        """The places of the first `count` elements in order along `dim`; not-a-number is the largest."""
        return self.op("argsort", x, dim=self._dim("argsort", x, dim), descending=int(largest), count=count)

    def sort(self, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
        """The elements along `dim` in order, and their places."""
        places = self.argsort(x, dim, descending)
        return self.take_along_dim(x, places, dim), places

    def topk(self, x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
        """The k largest (or smallest) elements along `dim` in order, and their places."""
        places = self.places_of_first(x, dim, k, largest)
        return self.take_along_dim(x, places, dim), places

    def iota(self, extent: int) -> Tensor:
        """0, 1, …, extent − 1, of int64."""
        return self.op("iota", extent=extent)

    def full(self, shape: Sequence[int], value: Number, dtype: object = DType.float16) -> Tensor:
        """A constant tensor of this shape, with `value` in each element."""
        return self.op("full", shape=whole("full", shape, "the shape"), value=exact(value), dtype=dtype_of(dtype))

    def ones(self, shape: Sequence[int], dtype: object = DType.float16) -> Tensor:
        """A constant tensor of ones."""
        return self.full(shape, 1, dtype)

    def eye(self, extent: int, dtype: object = DType.float16) -> Tensor:
        """The identity matrix, a constant [extent, extent]."""
        return self.op("eye", extent=extent, dtype=dtype_of(dtype))

    def delta_kernel(self, channels: int, window: PerDim, groups: int = 1, dtype: object = DType.float16) -> Tensor:
        """The weight [channels, channels / groups, kh, kw] of the identity: `conv2d` with it and pads (k − 1)/2 gives x."""
        if groups < 1 or channels % groups:
            raise GraphError(f"delta_kernel: got groups {groups}, wanted a number that divides {channels} channels")
        own = channels // groups
        matrices = self.broadcast(self.reshape(self.eye(own, dtype), (1, own, own)), (groups, own, own))
        return self.enlarge(self.reshape(matrices, (channels, own, 1, 1)), window)

    def pad(self, x: Tensor, widths: Sequence[Sequence[int]], value: Number = 0) -> Tensor:
        """x with copies of `value` around it; `widths` has a pair (before, after) for each dim."""
        self._positions("pad", [x])
        pairs = [whole("pad", pair, "the widths") for pair in widths]
        if any(len(pair) != 2 for pair in pairs):
            raise GraphError(f"pad: got widths {list(map(list, pairs))}, wanted a pair (before, after) for each dim")
        before, after = (tuple(pair[side] for pair in pairs) for side in (0, 1))
        return self.op("pad", x, before=before, after=after, value=exact(value))

    def flip(self, x: Tensor, dims: int | Sequence[int]) -> Tensor:
        """x with the elements along these dims in reverse order."""
        given = dims if isinstance(dims, Sequence) else (dims,)
        return self.op("flip", x, dims=tuple(sorted(self._dim("flip", x, dim) for dim in given)))

    def conv2d(
        self, x: Tensor, weight: Tensor, strides: PerDim = 1, pads: PerDim = 0, dilations: PerDim = 1, groups: int = 1
    ) -> Tensor:
        """The cross-correlation of images [N, C, H, W] with a weight [O, C / groups, kh, kw], as torch's conv2d.

        `pads` is one number, (rows, columns), or (top, left, bottom, right); the image counts as 0 there.
        """
        return self._windowed("conv2d", x, weight, strides=strides, pads=pads, dilations=dilations, groups=groups)

    def conv3d(
        self, x: Tensor, weight: Tensor, strides: PerDim = 1, pads: PerDim = 0, dilations: PerDim = 1, groups: int = 1
    ) -> Tensor:
        """`conv2d` of volumes [N, C, D, H, W] with a weight [O, C / groups, kd, kh, kw]."""
        return self._windowed("conv3d", x, weight, strides=strides, pads=pads, dilations=dilations, groups=groups)

    def conv_transpose2d(
        self,
        x: Tensor,
        weight: Tensor,
        strides: PerDim = 1,
        pads: PerDim = 0,
        output_pads: PerDim = 0,
        dilations: PerDim = 1,
        groups: int = 1,
    ) -> Tensor:
        """The transposed convolution of images [N, C, H, W] with a weight [C, O / groups, kh, kw], as torch's.

        Each element of x adds its multiple of the weight to the result, `strides` apart. `pads` as in `conv2d` are cut off the
        result; `output_pads` more rows and columns at the end stay.
        """
        given = {"strides": strides, "pads": pads, "output_pads": output_pads, "dilations": dilations}
        return self._windowed("conv_transpose2d", x, weight, **given, groups=groups)

    def conv_transpose3d(
        self,
        x: Tensor,
        weight: Tensor,
        strides: PerDim = 1,
        pads: PerDim = 0,
        output_pads: PerDim = 0,
        dilations: PerDim = 1,
        groups: int = 1,
    ) -> Tensor:
        """`conv_transpose2d` of volumes [N, C, D, H, W] with a weight [C, O / groups, kd, kh, kw]."""
        given = {"strides": strides, "pads": pads, "output_pads": output_pads, "dilations": dilations}
        return self._windowed("conv_transpose3d", x, weight, **given, groups=groups)

    def max_pool2d(
        self, x: Tensor, window: PerDim, strides: PerDim | None = None, pads: PerDim = 0, dilations: PerDim = 1
    ) -> Tensor:
        """The maximum over each window of images [N, C, H, W]; padding never takes part. Strides are the window by default."""
        return self._windowed("max_pool2d", x, window=window, strides=strides, pads=pads, dilations=dilations)

    def max_pool3d(
        self, x: Tensor, window: PerDim, strides: PerDim | None = None, pads: PerDim = 0, dilations: PerDim = 1
    ) -> Tensor:
        """`max_pool2d` of volumes [N, C, D, H, W]."""
        return self._windowed("max_pool3d", x, window=window, strides=strides, pads=pads, dilations=dilations)

    def avg_pool2d(
        self, x: Tensor, window: PerDim, strides: PerDim | None = None, pads: PerDim = 0, count_include_pad: bool = True
    ) -> Tensor:
        """The mean over each window of images [N, C, H, W]; padding counts as 0, or not at all. Strides as `max_pool2d`."""
        counted = int(count_include_pad)
        return self._windowed("avg_pool2d", x, window=window, strides=strides, pads=pads, count_include_pad=counted)

    def avg_pool3d(
        self, x: Tensor, window: PerDim, strides: PerDim | None = None, pads: PerDim = 0, count_include_pad: bool = True
    ) -> Tensor:
        """`avg_pool2d` of volumes [N, C, D, H, W]."""
        counted = int(count_include_pad)
        return self._windowed("avg_pool3d", x, window=window, strides=strides, pads=pads, count_include_pad=counted)

    def _windowed(self, op: str, *operands: Tensor, **given: Any) -> Tensor:
        """An op over windows, whose name ends with the number of their dims: its numbers for each dim, or one for all."""
        if given["strides"] is None:
            given["strides"] = given["window"]
        dims = int(op[-2])
        for name in _PER_DIM & given.keys():
            numbers = _per_dim(op, name, given[name], dims)
            given[name] = numbers * 2 if name == "pads" and len(numbers) == dims else numbers
        return self.op(op, *operands, **given)

    def batch_norm(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: Number = 0.0,
    ) -> Tensor:
        """(x − mean) / √(variance + eps), times `weight`, plus `bias`, for each channel (dim 1): batch norm at inference."""
        if bias is not None and weight is None:
            raise GraphError("batch_norm: got a bias without a weight; add the bias with add()")
        operands = [operand for operand in (x, mean, variance, weight, bias) if operand is not None]
        return self.op("batch_norm", *operands, eps=exact(eps) or None)

    def enlarge(self, weight: Tensor, window: PerDim) -> Tensor:
        """A weight [O, C, kh, kw] of odd extents with zeros around, so that its kernels have the odd extents `window`."""
        return self.op("enlarge", weight, window=_per_dim("enlarge", "window", window))

    def mark_output(self, x: Tensor, name: str | None = None) -> None:
        """Make x an output; outputs are in the order of the calls.

        Raises GraphError: x is already an output with another name.
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
        """The program, frozen. Raises UnsupportedError: it has a size that no input has."""
        used = {operand for item in self.nodes for operand in item.operands}
        sinks: dict[int, str | None] = dict.fromkeys(i for i in range(len(self.checker.types)) if i not in used | self.averaged)
        outputs = [node("output", position, name=name) for position, name in (self._outputs or sinks).items()]
        nodes = [Node(item.op, item.operands, as_numbers(item.attributes)) for item in (*self.nodes, *outputs)]
        program = without_values(Graph(tuple(nodes)), self.averaged - used - self._outputs.keys())
        self.check_sizes(program)
        return program

    def check_sizes(self, program: Graph) -> None:
        """Hold the sizes of this program against the inputs that are left in `program`: a call knows no others.

        Raises UnsupportedError: none of them has such a dim; a constant has an extent that a graph does not keep.
        """
        values = (value for item in self.nodes for _, value in item.attributes)
        extents = (extent for value in values for extent in (value if isinstance(value, tuple) else (value,)))
        known = names_in(dim for item in program.inputs for dim in read_dims(item.get("dims"), len(item["shape"])))
        for name in sorted(names_in(extents) - known):
            raise UnsupportedError(f"got the size {name}, which is a dim of no input; wanted an input that has it")
        check_constants([*self.nodes, node("output", len(self.checker.types) - 1)])

    def __str__(self) -> str:
        return str(self.graph())


_PER_DIM = frozenset({"window", "strides", "pads", "output_pads", "dilations"})


def _per_dim(op: str, name: str, given: PerDim, dims: int = 2) -> tuple[int, ...]:
    """A number for each dim of an image, or one for all."""
    numbers = whole(op, given if isinstance(given, Sequence) else (given,), name)
    return numbers * dims if len(numbers) == 1 else numbers


def graph_of(given: object, caller: str) -> Graph:
    """The kernel graph that a user gives. Raises GraphError: it is none."""
    graph = given.graph() if isinstance(given, KernelGraph) else given
    if not isinstance(graph, Graph) or graph.level is not Level.KERNEL:
        raise GraphError(f"{caller}: got {graph_words(given)}, wanted a program: new_kernel_graph() or its Graph")
    return graph


def graph_words(value: object) -> str:
    """An argument that is not a program, in a few characters."""
    match value:
        case Graph():
            return f"a {value.level} graph"
        case Builder():
            return f"a {value.checker.level} graph that is being written"
        case _:
            shown = repr(value)
            return f"the {type(value).__name__} {shown}" if len(shown) <= 40 else f"a {type(value).__name__}"


def new_kernel_graph() -> KernelGraph:
    """Start a tensor program."""
    return KernelGraph()


__all__ = ["Builder", "KernelGraph", "Tensor", "graph_of", "graph_words", "new_kernel_graph"]
