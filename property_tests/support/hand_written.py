"""Programs with µGraphs of them that were written by hand, inputs for them, and how close results must be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import assume

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, node
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph

ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-9}


def inputs_of(graph: Graph, seed: int = 0, scale: float = 1.0) -> list[np.ndarray]:
    """Standard normal inputs, as the element types hold them (a bfloat16 keeps 8 bits, a bool is a random bit)."""
    rng = np.random.default_rng(seed)
    arrays = []
    for kind in graph.input_types:
        drawn = (scale * rng.standard_normal(kind.shape)).astype(np.float32)
        if kind.dtype is DType.bool:
            drawn = (drawn > 0).astype(np.float32)
        if kind.dtype is DType.bfloat16:
            drawn = (drawn.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        arrays.append(drawn.astype(np.float16 if kind.dtype is DType.float16 else np.float32).astype(np.float64))
    return arrays


def worst(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest error, relative to the largest element of its output; NaN counts as infinite."""
    assert [g.shape for g in got] == [w.shape for w in wanted]
    errors = [np.abs(g - w).max() / max(np.abs(w).max(), 1e-3) for g, w in zip(got, wanted, strict=True)]
    return max(np.inf if np.isnan(error) else float(error) for error in errors)


def error_of(run: RunProgram, graph: Graph, source: str | None = None, scale: float = 1.0) -> float:
    """The error, as `worst`, of a source of a graph at `inputs_of` it; None: the source that is emitted for it."""
    arrays = inputs_of(graph, scale=scale)
    return worst(run(emit(graph) if source is None else source, arrays), evaluate(graph, arrays, FloatAlgebra()))


@dataclass(frozen=True)
class Pair:
    """A program and a µGraph of it."""

    program: Graph
    mugraph: Graph


def pair(inputs: dict[str, tuple[int, ...]], dtype: str, write: Callable[..., Any], fuse: Callable[..., Any]) -> Pair:
    """Both graphs from functions of (builder, *inputs) that give the outputs."""
    graphs = []
    for body in (write, fuse):
        kernel = new_kernel_graph()
        made = body(kernel, *(kernel.new_input(shape, dtype, name) for name, shape in inputs.items()))
        for tensor in made if isinstance(made, list) else [made]:
            kernel.mark_output(tensor)
        graphs.append(kernel.graph())
    return Pair(*graphs)


def rms_norm_linear(dtype: str, m: int, k: int, n: int, blocks: int, loop: int) -> Pair:
    def write(p: KernelGraph, x: Tensor, g: Tensor, w: Tensor) -> Tensor:
        return p.matmul(p.rms_norm(x, k, g, eps=1e-5), w)

    def fuse(p: KernelGraph, x: Tensor, g: Tensor, w: Tensor) -> Tensor:
        b = new_threadblock_graph((blocks,), forloop_range=loop)
        tile = b.new_input(x, (REPLICATED,), 1)
        product = b.matmul(b.mul(tile, b.new_input(g, (REPLICATED,), 0)), b.new_input(w, (1,), 0))
        mean = b.forloop_accum(b.square(tile), "mean", 1)
        b.new_output(b.div(b.forloop_accum(product), b.sqrt(b.shift(mean, 1e-5))), (1,))
        return p.customized([x, g, w], b)[0]

    return pair({"X": (m, k), "g": (k,), "W": (k, n)}, dtype, write, fuse)


def gated_mlp(dtype: str, m: int, k: int, n: int, blocks: int, loop: int) -> Pair:
    def write(p: KernelGraph, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return p.mul(p.silu(p.matmul(x, v)), p.matmul(x, w))

    def fuse(p: KernelGraph, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        b = new_threadblock_graph((blocks,), forloop_range=loop)
        tile = b.new_input(x, (REPLICATED,), 1)
        gate, up = (b.forloop_accum(b.matmul(tile, b.new_input(weight, (1,), 0))) for weight in (v, w))
        b.new_output(b.mul(b.silu(gate), up), (1,))
        return p.customized([x, v, w], b)[0]

    return pair({"X": (m, k), "V": (k, n), "W": (k, n)}, dtype, write, fuse)


def lora(dtype: str, m: int, k: int, n: int, rank: int, blocks: int, loop: int) -> Pair:
    def write(p: KernelGraph, x: Tensor, w: Tensor, a: Tensor, c: Tensor) -> Tensor:
        return p.add(p.matmul(x, w), p.matmul(p.matmul(x, a), c))

    def fuse(p: KernelGraph, x: Tensor, w: Tensor, a: Tensor, c: Tensor) -> Tensor:
        b = new_threadblock_graph((blocks,), forloop_range=loop)
        tile = b.new_input(x, (REPLICATED,), 1)
        wide = b.forloop_accum(b.matmul(tile, b.new_input(w, (1,), 0)))
        low = b.forloop_accum(b.matmul(tile, b.new_input(a, (REPLICATED,), 0)))
        b.new_output(b.add(wide, b.matmul(low, b.new_input(c, (1,)))), (1,))
        return p.customized([x, w, a, c], b)[0]

    return pair({"X": (m, k), "W": (k, n), "A": (k, rank), "B": (rank, n)}, dtype, write, fuse)


def n_transformer(dtype: str, m: int, n: int) -> Pair:
    def body(p: KernelGraph | ThreadblockGraph, h: Tensor, x: Tensor, a: Tensor) -> Tensor:
        return p.rms_norm(p.add(x, p.mul(a, p.sub(p.rms_norm(h, n), x))), n)

    def fuse(p: KernelGraph, *tensors: Tensor) -> Tensor:
        b = new_threadblock_graph((m,))
        b.new_output(body(b, *(b.new_input(tensor, (0,)) for tensor in tensors)), (0,))
        return p.customized(tensors, b)[0]

    return pair({"h": (m, n), "x": (m, n), "α": (m, n)}, dtype, body, fuse)


def attention(dtype: str, heads: int, m: int, d: int, keys: int, rows: int, loop: int) -> Pair:
    def write(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return p.matmul(p.softmax(p.scale(p.matmul(q, k), Fraction(1, 4)), 2), v)

    def fuse(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b = new_threadblock_graph((heads, m // rows), forloop_range=loop)
        scores = b.matmul(b.new_input(q, (0, 1)), b.new_input(k, (0, REPLICATED), 2))
        e = b.exp(b.scale(scores, Fraction(1, 4)))
        numerator = b.forloop_accum(b.matmul(e, b.new_input(v, (0, REPLICATED), 1)))
        b.new_output(b.div(numerator, b.forloop_accum(e, "sum", 2)), (0, 1))
        return p.customized([q, k, v], b)[0]

    return pair({"Q": (heads, m, d), "K": (heads, d, keys), "V": (heads, keys, d)}, dtype, write, fuse)


def far_attention(q: Any, k: Any, v: Any) -> Any:
    """What `attention` computes in float64, of inputs whose scores reach the thousands."""
    scores = q @ k / 4
    assert np.abs(scores).max() > 1000
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def split_attention(
    dtype: str, heads: int, m: int, d: int, keys: int, rows: int, parts: int, loop: int, last_rows: int, early: bool = False
) -> Pair:
    """Keys split over the grid: partial sums of exponentials leave in a new leading dim, a second kernel combines them.

    With `early`, the combining kernel divides before it sums.
    """
    program = attention(dtype, heads, m, d, keys, rows, 1).program

    def fuse(p: KernelGraph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b = new_threadblock_graph((heads, m // rows, parts), forloop_range=loop)
        looped = loop > 1
        scores = b.matmul(b.new_input(q, (0, 1, REPLICATED)), b.new_input(k, (0, REPLICATED, 2), 2 if looped else REPLICATED))
        e = b.exp(b.scale(scores, Fraction(1, 4)))
        product = b.matmul(e, b.new_input(v, (0, REPLICATED, 1), 1 if looped else REPLICATED))
        for partial in (b.forloop_accum(product), b.forloop_accum(e, "sum", 2)) if looped else (product, b.sum(e, 2)):
            b.new_output(partial, (0, 1, NEW_DIM), dtype="float32")
        numerators, sums = p.customized([q, k, v], b)
        c = new_threadblock_graph((m // last_rows, heads))
        top, below = c.new_input(numerators, (2, 1)), c.new_input(sums, (2, 1))
        total = c.sum(below, 0)
        combined = c.sum(c.div(top, total), 0) if early else c.div(c.sum(top, 0), total)
        c.new_output(c.reshape(combined, (1, last_rows, d)), (1, 0), dtype=dtype)
        return p.customized([numerators, sums], c)[0]

    kernel = new_kernel_graph()
    shapes = {"Q": (heads, m, d), "K": (heads, d, keys), "V": (heads, keys, d)}
    kernel.mark_output(fuse(kernel, *(kernel.new_input(shape, dtype, name) for name, shape in shapes.items())))
    return Pair(program, kernel.graph())


def layer_norm_linear(dtype: str, m: int, k: int, n: int, blocks: int, loop: int) -> Pair:
    """X is loaded twice: whole for the statistics before the loop, in slices for the product."""

    def write(p: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
        return p.matmul(p.layer_norm(x, k, eps=1e-5), w)

    def fuse(p: KernelGraph, x: Tensor, w: Tensor) -> Tensor:
        b = new_threadblock_graph((blocks,), forloop_range=loop)
        whole = b.new_input(x, (REPLICATED,))
        mean = b.mean(whole, 1)
        deviation = b.sqrt(b.shift(b.mean(b.square(b.sub(whole, mean)), 1), 1e-5))
        normal = b.div(b.sub(b.new_input(x, (REPLICATED,), 1), mean), deviation)
        b.new_output(b.forloop_accum(b.matmul(normal, b.new_input(w, (1,), 0))), (1,))
        return p.customized([x, x, w], b)[0]

    return pair({"X": (m, k), "W": (k, n)}, dtype, write, fuse)


def split_product(dtype: str, m: int, k: int, n: int, splits: int, loop: int) -> Pair:
    """A reduction split over the grid: partial products leave in a new leading dim, a second kernel sums them."""

    def write(p: KernelGraph, x: Tensor, w: Tensor) -> list[Tensor]:
        return [p.matmul(x, w), p.sum(x, 1)]

    def fuse(p: KernelGraph, x: Tensor, w: Tensor) -> list[Tensor]:
        b = new_threadblock_graph((splits,), forloop_range=loop)
        tile = b.new_input(x, (1,), 1)
        b.new_output(b.forloop_accum(b.matmul(tile, b.new_input(w, (0,), 0))), (NEW_DIM,))
        b.new_output(b.forloop_accum(tile, "sum", 1), (NEW_DIM,))
        partial, sums = p.customized([x, w], b)
        c = new_threadblock_graph((1,))
        c.new_output(c.reshape(c.sum(c.new_input(partial, (REPLICATED,)), 0), (m, n)), (REPLICATED,))
        c.new_output(c.reshape(c.sum(c.new_input(sums, (REPLICATED,)), 0), (m, 1)), (REPLICATED,))
        return p.customized([partial, sums], c)

    return pair({"X": (m, k), "W": (k, n)}, dtype, write, fuse)


HAND_WRITTEN = {
    "rms_norm_linear": lambda dtype: rms_norm_linear(dtype, 2, 96, 48, 3, 3),
    "rms_norm_linear, ragged": lambda dtype: rms_norm_linear(dtype, 5, 60, 40, 2, 3),
    "rms_norm_linear, one row": lambda dtype: rms_norm_linear(dtype, 1, 64, 32, 2, 2),
    "rms_norm_linear, one column": lambda dtype: rms_norm_linear(dtype, 20, 48, 5, 5, 1),
    "rms_norm_linear, tiny": lambda dtype: rms_norm_linear(dtype, 3, 5, 7, 1, 5),
    "gated_mlp": lambda dtype: gated_mlp(dtype, 8, 64, 64, 2, 2),
    "gated_mlp, ragged": lambda dtype: gated_mlp(dtype, 7, 20, 48, 1, 1),
    "lora": lambda dtype: lora(dtype, 16, 64, 64, 16, 2, 2),
    "lora, ragged": lambda dtype: lora(dtype, 3, 40, 28, 5, 4, 2),
    "n_transformer": lambda dtype: n_transformer(dtype, 4, 64),
    "n_transformer, ragged": lambda dtype: n_transformer(dtype, 3, 100),
    "attention": lambda dtype: attention(dtype, 2, 32, 16, 64, 16, 4),
    "attention, ragged": lambda dtype: attention(dtype, 2, 10, 20, 42, 5, 2),
    "attention, one query": lambda dtype: attention(dtype, 3, 1, 16, 48, 1, 1),
    "attention, split": lambda dtype: split_attention(dtype, 2, 32, 16, 64, 16, 4, 1, 8),
    "attention, split and looped": lambda dtype: split_attention(dtype, 2, 32, 16, 128, 16, 2, 4, 1),
    "attention, split, ragged": lambda dtype: split_attention(dtype, 3, 10, 20, 42, 5, 3, 2, 2),
    "attention, split in groups": lambda dtype: split_attention(dtype, 2, 32, 16, 64, 16, 4, 1, 16),
    "attention, split in groups, ragged": lambda dtype: split_attention(dtype, 3, 10, 20, 42, 5, 3, 2, 5),
    "attention, split, divided early": lambda dtype: split_attention(dtype, 2, 32, 16, 64, 32, 4, 1, 16, early=True),
    "layer_norm_linear": lambda dtype: layer_norm_linear(dtype, 8, 64, 32, 2, 4),
    "layer_norm_linear, ragged": lambda dtype: layer_norm_linear(dtype, 5, 21, 20, 1, 3),
    "split_product": lambda dtype: split_product(dtype, 16, 64, 32, 2, 2),
    "split_product, ragged": lambda dtype: split_product(dtype, 5, 42, 7, 3, 2),
}


def in_dtype(graph: Graph, dtype: str) -> Graph:
    """The graph with all inputs, inner ones too, in one element type."""
    nodes = []
    for item in graph.nodes:
        attributes = {
            key: dtype if key == "dtype" else in_dtype(value, dtype) if isinstance(value, Graph) else value
            for key, value in item.attributes
        }
        nodes.append(node(item.op, *item.operands, **attributes))
    return Graph(tuple(nodes), graph.level, graph.grid, graph.loop, graph.threads)


def check_random(run: RunProgram, graph: Graph, seed: int, schedule: Schedule) -> None:
    """In float32, against float64; what float32 loses in any order of operations is allowed for."""
    arrays = inputs_of(graph, seed)
    source = emit(graph, schedule=schedule)
    wanted = evaluate(graph, arrays, FloatAlgebra())
    rough = evaluate(graph, arrays, FloatAlgebra(working=DType.float32))
    assume(all(np.isfinite(x).all() and np.abs(x).max() < 1e6 for x in (*wanted, *rough)))
    for got, want, loose in zip(run(source, arrays), wanted, rough, strict=True):
        assert got.shape == want.shape
        allowed = 1e-4 * max(1e-2, np.abs(want).max()) + 50 * np.abs(loose - want).max()
        assert np.abs(got - want).max() <= allowed, source


def block_program(shape: tuple[int, ...], body: Callable[[ThreadblockGraph, Tensor], Tensor], dtype: str = "float32") -> Graph:
    """One block on one whole input."""
    kernel = new_kernel_graph()
    x = kernel.new_input(shape, dtype, "X")
    block = new_threadblock_graph((1,))
    block.new_output(body(block, block.new_input(x, (REPLICATED,))), (REPLICATED,))
    kernel.customized([x], block)
    return kernel.graph()
