"""Programs for the tests of the search: small ones, and ones that no workload knows."""

from fractions import Fraction

from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.graph import Graph


def product(m: int = 32, k: int = 64, n: int = 48) -> Graph:
    """X W."""
    program = new_kernel_graph()
    program.matmul(program.new_input((m, k), name="X"), program.new_input((k, n), name="W"))
    return program.graph()


def rms_linear(m: int = 16, k: int = 64, n: int = 32) -> Graph:
    """(X / rms X) W."""
    program = new_kernel_graph()
    x = program.new_input((m, k), name="X")
    program.matmul(program.rms_norm(x, k), program.new_input((k, n), name="W"))
    return program.graph()


def attention(heads: int = 2, rows: int = 32, keys: int = 64, width: int = 16) -> Graph:
    """softmax(Q K / 4) V."""
    program = new_kernel_graph()
    q = program.new_input((heads, rows, width), name="Q")
    k = program.new_input((heads, width, keys), name="K")
    v = program.new_input((heads, keys, width), name="V")
    program.matmul(program.softmax(program.scale(program.matmul(q, k), Fraction(1, 4)), 2), v)
    return program.graph()


def layer_norm_linear(m: int = 16, k: int = 64, n: int = 32) -> Graph:
    """LayerNorm with weight, bias and eps, then a linear layer."""
    program = new_kernel_graph()
    x = program.new_input((m, k), name="X")
    weight, bias = program.new_input((k,), name="g"), program.new_input((k,), name="b")
    program.matmul(program.layer_norm(x, k, weight, bias, eps=1e-5), program.new_input((k, n), name="W"))
    return program.graph()


def masked(m: int = 32, n: int = 64) -> Graph:
    """x · (y + z) · w with w one row."""
    program = new_kernel_graph()
    x, y, z = (program.new_input((m, n), name=name) for name in "xyz")
    program.mul(program.mul(x, program.add(y, z)), program.new_input((n,), name="w"))
    return program.graph()


def three_products(m: int = 32, k: int = 32, n: int = 16, o: int = 16, p: int = 32) -> Graph:
    """X A B C."""
    program = new_kernel_graph()
    x = program.new_input((m, k), name="X")
    for name, shape in (("A", (k, n)), ("B", (n, o)), ("C", (o, p))):
        x = program.matmul(x, program.new_input(shape, name=name))
    return program.graph()


def two_outputs(m: int = 16, k: int = 64, n: int = 32) -> Graph:
    """X W and its row sums of squares of X."""
    program = new_kernel_graph()
    x = program.new_input((m, k), name="X")
    program.mark_output(program.matmul(x, program.new_input((k, n), name="W")), name="Y")
    program.mark_output(program.sum(program.square(x), 1), name="S")
    return program.graph()


def grouped_heads() -> Graph:
    """Scores of grouped queries against repeated keys: reshape splits an axis, repeat adds one."""
    program: KernelGraph = new_kernel_graph()
    x = program.new_input((4, 32), name="X")
    keys = program.new_input((4, 2, 8, 16), name="K")
    queries = program.reshape(program.matmul(x, program.new_input((32, 32), name="W")), (4, 4, 1, 8))
    program.matmul(queries, program.repeat(keys, 2, 1))
    return program.graph()


PROGRAMS = {
    "product": product,
    "rms_linear": rms_linear,
    "attention": attention,
    "layer_norm_linear": layer_norm_linear,
    "masked": masked,
    "three_products": three_products,
    "two_outputs": two_outputs,
    "grouped_heads": grouped_heads,
}
