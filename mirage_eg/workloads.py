"""The built-in programs: those of the Mirage paper (OSDI'25, section 8), at any batch size, in float16."""

from collections.abc import Callable

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.graph import Graph


def rmsnorm(batch: int = 1) -> Graph:
    """(X · g / rms(X)) W: a normalisation, then a linear layer."""
    program = new_kernel_graph()
    x = program.new_input((2 * _checked(batch), 4096), name="X")
    g = program.new_input((4096,), name="g")
    w = program.new_input((4096, 6144), name="W")
    program.mark_output(program.matmul(program.rms_norm(x, 4096, g), w), name="O")
    return program.graph()


def gated_mlp(batch: int = 1) -> Graph:
    """silu(X W1) · (X W2)."""
    program = new_kernel_graph()
    x = program.new_input((8 * _checked(batch), 4096), name="X")
    w1 = program.new_input((4096, 4096), name="W1")
    w2 = program.new_input((4096, 4096), name="W2")
    program.mark_output(program.mul(program.silu(program.matmul(x, w1)), program.matmul(x, w2)), name="O")
    return program.graph()


def lora(batch: int = 1) -> Graph:
    """X W + (X A) B: a linear layer with a low-rank adapter."""
    program = new_kernel_graph()
    x = program.new_input((16 * _checked(batch), 256), name="X")
    w = program.new_input((256, 4096), name="W")
    a = program.new_input((256, 16), name="A")
    b = program.new_input((16, 4096), name="B")
    program.mark_output(program.add(program.matmul(x, w), program.matmul(program.matmul(x, a), b)), name="O")
    return program.graph()


def gqa(batch: int = 1) -> Graph:
    """softmax(Q K / 8) V with the heads of a group stacked: grouped-query attention."""
    return _attention((2 * _checked(batch), 256, 64), 4096)


def qknorm(batch: int = 1) -> Graph:
    """Grouped-query attention on Q and K normalised over the 64 entries of a head."""
    program, q, k, v = _attention_inputs((2 * _checked(batch), 256, 64), 4096)
    normal_q = program.rms_norm(q, 64)
    mean_square = program.mean(program.square(k), 1)  # K is stored transposed: its heads lie along dim 1
    normal_k = program.div(k, program.sqrt(mean_square))
    return _attend(program, normal_q, normal_k, v)


def ntrans(batch: int = 1) -> Graph:
    """rms(x + α (rms(h) − x)): the update of a normalised Transformer."""
    program = new_kernel_graph()
    shape = (8 * _checked(batch), 4096)
    h, x, alpha = (program.new_input(shape, name=name) for name in ("h", "x", "alpha"))
    step = program.mul(alpha, program.sub(program.rms_norm(h, 4096), x))
    program.mark_output(program.rms_norm(program.add(x, step), 4096), name="O")
    return program.graph()


def mha(batch: int = 1) -> Graph:
    """Multi-head attention: 32 heads of 16 queries."""
    return _attention((32 * _checked(batch), 16, 64), 4096)


def mqa(batch: int = 1) -> Graph:
    """Multi-query attention: one head of keys for all 1,024 queries."""
    return _attention((_checked(batch), 1024, 64), 4096)


def _attention_inputs(queries: tuple[int, int, int], keys: int) -> tuple[KernelGraph, Tensor, Tensor, Tensor]:
    heads, _, width = queries
    program = new_kernel_graph()
    q = program.new_input(queries, name="Q")
    k = program.new_input((heads, width, keys), name="K")
    v = program.new_input((heads, keys, width), name="V")
    return program, q, k, v


def _attend(program: KernelGraph, q: Tensor, k: Tensor, v: Tensor) -> Graph:
    scores = program.matmul(q, k) / 8
    program.mark_output(program.matmul(program.softmax(scores, 2), v), name="O")
    return program.graph()


def _attention(queries: tuple[int, int, int], keys: int) -> Graph:
    return _attend(*_attention_inputs(queries, keys))


def _checked(batch: int) -> int:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ProgramError(f"got batch {batch!r}, wanted an int of at least 1")
    return batch


WORKLOADS: dict[str, Callable[[int], Graph]] = {
    workload.__name__: workload for workload in (rmsnorm, gated_mlp, lora, gqa, qknorm, ntrans, mha, mqa)
}
