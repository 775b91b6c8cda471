"""The built-in programs, at any batch size, in float16: those of the Mirage paper (OSDI'25, section 8), and larger ones."""

from collections.abc import Callable
from math import sqrt

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.graph import Graph


def rmsnorm(batch: int = 1) -> Graph:
    """(X · g / rms(X)) W: a normalisation, then a linear layer."""
    program = new_kernel_graph()
    x = program.new_input((2 * _checked(batch), 4096), name="X")
    g = program.new_input((4096,), name="g", weight=True)
    w = program.new_input((4096, 6144), name="W", weight=True)
    program.mark_output(program.matmul(program.rms_norm(x, 4096, g), w), name="O")
    return program.graph()


def gated_mlp(batch: int = 1) -> Graph:
    """silu(X W1) · (X W2)."""
    program = new_kernel_graph()
    x = program.new_input((8 * _checked(batch), 4096), name="X")
    w1 = program.new_input((4096, 4096), name="W1", weight=True)
    w2 = program.new_input((4096, 4096), name="W2", weight=True)
    program.mark_output(program.mul(program.silu(program.matmul(x, w1)), program.matmul(x, w2)), name="O")
    return program.graph()


def lora(batch: int = 1) -> Graph:
    """X W + (X A) B: a linear layer with a low-rank adapter, which may change from call to call: it is no weight."""
    program = new_kernel_graph()
    x = program.new_input((16 * _checked(batch), 256), name="X")
    w = program.new_input((256, 4096), name="W", weight=True)
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


def mlp_block(batch: int = 1) -> Graph:
    """The second half of a decoder layer: r + (silu(h Wgate) · (h Wup)) Wdown with h = rms_norm(r) · g2."""
    program = new_kernel_graph()
    r = program.new_input((_checked(batch), 4096), name="r")
    program.mark_output(_mlp_block(program, r), name="y")
    return program.graph()


def decoder_layer(batch: int = 1) -> Graph:
    """A decoder layer while decoding: norm, QKV, attention over the cache that is given, projection, and `mlp_block`.

    32 query heads in 8 groups share 8 heads of keys and values; the new keys and values are outputs.
    """
    program = new_kernel_graph()
    x = program.new_input((_checked(batch), 4096), name="x")
    g1 = program.new_input((4096,), name="g1", weight=True)
    wq = program.new_input((4096, 4096), name="Wq", weight=True)
    wk = program.new_input((4096, 1024), name="Wk", weight=True)
    wv = program.new_input((4096, 1024), name="Wv", weight=True)
    k = program.new_input((batch, 8, 128, 4096), name="K")
    v = program.new_input((batch, 8, 4096, 128), name="V")
    wo = program.new_input((4096, 4096), name="Wo", weight=True)
    h = program.rms_norm(x, 4096, g1)
    q = program.reshape(program.matmul(h, wq), (batch, 8, 4, 128))
    k_new, v_new = program.matmul(h, wk), program.matmul(h, wv)
    scores = program.scale(program.matmul(q, k), 1 / sqrt(128))
    attended = program.reshape(program.matmul(program.softmax(scores, 3), v), (batch, 4096))
    r = program.add(x, program.matmul(attended, wo))
    program.mark_output(_mlp_block(program, r), name="y")
    program.mark_output(k_new, name="k_new")
    program.mark_output(v_new, name="v_new")
    return program.graph()


def _mlp_block(program: KernelGraph, r: Tensor) -> Tensor:
    g2 = program.new_input((4096,), name="g2", weight=True)
    gate = program.new_input((4096, 14336), name="Wgate", weight=True)
    up = program.new_input((4096, 14336), name="Wup", weight=True)
    down = program.new_input((14336, 4096), name="Wdown", weight=True)
    h = program.rms_norm(r, 4096, g2)
    hidden = program.mul(program.silu(program.matmul(h, gate)), program.matmul(h, up))
    return program.add(r, program.matmul(hidden, down))


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
    workload.__name__: workload
    for workload in (rmsnorm, gated_mlp, lora, gqa, qknorm, ntrans, mha, mqa, mlp_block, decoder_layer)
}

PAPER = ("rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans")
"""The workloads of Mirage's evaluation (OSDI'25)."""


def paper_programs() -> dict[str, Graph]:
    """The workloads of PAPER at batch 1, by name."""
    return {name: WORKLOADS[name](1) for name in PAPER}


STANDARD = (*PAPER, "mha", "mqa")
"""The workloads that one block graph holds."""

FEWEST, MOST = 5, 16
"""Block ops: the range of the published table of search times and of the default."""
