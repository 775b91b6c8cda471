"""Small programs and candidates for tests of verdicts."""

from collections.abc import Callable

from hypothesis import strategies as st

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM
from mirage_eg.ir.threadblock_graph import ThreadblockGraph

SEEDS = st.integers(0, 2**32 - 1)
M, K, N = 3, 10, 14
Pair = tuple[Callable[..., Tensor], Callable[..., Tensor]]  # a program and a candidate, as arguments of `written`


def written(write: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    """The program whose output is `write(program, *inputs)`."""
    program = KernelGraph()
    program.mark_output(write(program, *(program.new_input(shape, dtype=dtype) for shape in shapes)))
    return program.graph()


def norm_inputs(program: KernelGraph) -> tuple[Tensor, Tensor, Tensor]:
    return program.new_input((M, K), name="X"), program.new_input((K,), name="g"), program.new_input((K, N), name="W")


def normed_linear() -> Graph:
    """(X · g / rms(X)) W."""
    program = KernelGraph()
    x, g, w = norm_inputs(program)
    program.mark_output(program.matmul(program.rms_norm(x, K, g), w), name="O")
    return program.graph()


def fused_norm_block() -> ThreadblockGraph:
    """The one-kernel form that divides after the product."""
    program = KernelGraph()
    x, g, w = norm_inputs(program)
    block = ThreadblockGraph((7,), forloop_range=5)
    tile, weight, columns = block.new_input(x, (-1,), 1), block.new_input(g, (-1,), 0), block.new_input(w, (1,), 0)
    product = block.forloop_accum(block.matmul(block.mul(tile, weight), columns))
    block.new_output(block.div(product, block.forloop_accum(tile, "rms", 1)), (1,))
    return block


def split_attention(partial_sums: bool) -> Graph:
    """FlashDecoding's shape: keys split over the grid, partial results summed by a second kernel."""
    program = KernelGraph()
    q, k, v = attention_inputs(program)
    block = ThreadblockGraph((2, 3), forloop_range=2)
    query, keys, values = (block.new_input(q, (0, -1)), block.new_input(k, (0, 2), 2), block.new_input(v, (0, 1), 1))
    exponentials = block.exp(block.matmul(query, keys))
    block.new_output(block.forloop_accum(block.matmul(exponentials, values)), (0, NEW_DIM))
    block.new_output(block.forloop_accum(exponentials, "sum", 2), (0, NEW_DIM))
    over, under = program.customized([q, k, v], block)
    if partial_sums:
        over, under = program.reduction(over, 0), program.reduction(under, 0)
        quotient = program.div(over, under)
    else:  # averages of the quotients of the parts
        quotient = program.mean(program.div(over, under), 0)
    program.mark_output(program.reshape(quotient, (2, 4, 5)))
    return program.graph()


def attention_inputs(program: KernelGraph) -> tuple[Tensor, Tensor, Tensor]:
    return program.new_input((2, 4, 5)), program.new_input((2, 5, 12)), program.new_input((2, 12, 5))


def attention() -> Graph:
    program = KernelGraph()
    q, k, v = attention_inputs(program)
    program.mark_output(program.matmul(program.softmax(program.matmul(q, k), 2), v))
    return program.graph()


def unary(*ops: str, shape: tuple[int, ...] = (4, 4)) -> Graph:
    program = KernelGraph()
    x = program.new_input(shape)
    for op in ops:
        x = program.op(op, x)
    program.mark_output(x)
    return program.graph()


def binary(*ops: str) -> Graph:
    """((x op y) op y) …"""
    program = KernelGraph()
    x, y = program.new_input((4, 4)), program.new_input((4, 4))
    for op in ops:
        x = program.op(op, x, y)
    program.mark_output(x)
    return program.graph()


def identity(shape: tuple[int, ...] = (4, 4)) -> Graph:
    program = KernelGraph()
    program.mark_output(program.scale(program.new_input(shape), 1))
    return program.graph()


def negative_root() -> Graph:
    program = KernelGraph()
    x = program.new_input((4, 4))
    program.mark_output(program.sqrt(program.shift(program.scale(program.square(x), -1), -1)))
    return program.graph()
