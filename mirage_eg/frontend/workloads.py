"""The built-in programs, at any batch size, in float16: those of the Mirage paper (OSDI'25, section 8), and larger ones."""

from collections.abc import Callable, Mapping
from functools import wraps
from math import sqrt

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.graph import Graph

Workload = Callable[..., Graph]  # of a batch size, 1 if not given


def workload(write: Callable[[KernelGraph, int], Tensor | Mapping[str, Tensor]]) -> Workload:
    """The program that a function writes at a batch size, and whose output O it returns, or several by their names."""

    @wraps(write)
    def program(batch: int = 1) -> Graph:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ProgramError(f"got batch {batch!r}, wanted an int of at least 1")
        g = KernelGraph()
        written = write(g, batch)
        for name, x in (written if isinstance(written, Mapping) else {"O": written}).items():
            g.mark_output(x, name)
        return g.graph()

    del program.__wrapped__  # whose arguments are not those of the program
    return program


def _weight(g: KernelGraph, shape: tuple[int, ...], name: str) -> Tensor:
    return g.new_input(shape, name=name, weight=True)


@workload
def rmsnorm(g: KernelGraph, batch: int) -> Tensor:
    """(X · g / rms(X)) W: a normalisation, then a linear layer."""
    x = g.new_input((2 * batch, 4096), name="X")
    scale, w = _weight(g, (4096,), "g"), _weight(g, (4096, 6144), "W")
    return g.rms_norm(x, 4096, scale) @ w


@workload
def gated_mlp(g: KernelGraph, batch: int) -> Tensor:
    """silu(X W1) · (X W2)."""
    x = g.new_input((8 * batch, 4096), name="X")
    w1, w2 = (_weight(g, (4096, 4096), name) for name in ("W1", "W2"))
    return g.silu(x @ w1) * (x @ w2)


@workload
def lora(g: KernelGraph, batch: int) -> Tensor:
    """X W + (X A) B: a linear layer with a low-rank adapter, which may change from call to call: it is no weight."""
    x, w = g.new_input((16 * batch, 256), name="X"), _weight(g, (256, 4096), "W")
    a, b = g.new_input((256, 16), name="A"), g.new_input((16, 4096), name="B")
    return x @ w + (x @ a) @ b


@workload
def gqa(g: KernelGraph, batch: int) -> Tensor:
    """softmax(Q K / 8) V with the heads of a group stacked: grouped-query attention."""
    return _attention(g, *_queries_keys_values(g, 2 * batch, 256))


@workload
def qknorm(g: KernelGraph, batch: int) -> Tensor:
    """Grouped-query attention on Q and K normalised over the 64 entries of a head."""
    q, k, v = _queries_keys_values(g, 2 * batch, 256)
    normal_q = g.rms_norm(q, 64)
    mean_square = g.mean(g.square(k), 1)  # K is stored transposed: its heads lie along dim 1
    return _attention(g, normal_q, k / g.sqrt(mean_square), v)


@workload
def ntrans(g: KernelGraph, batch: int) -> Tensor:
    """rms(x + α (rms(h) − x)): the update of a normalised Transformer."""
    h, x, alpha = (g.new_input((8 * batch, 4096), name=name) for name in ("h", "x", "alpha"))
    return g.rms_norm(x + alpha * (g.rms_norm(h, 4096) - x), 4096)


@workload
def mha(g: KernelGraph, batch: int) -> Tensor:
    """Multi-head attention: 32 heads of 16 queries."""
    return _attention(g, *_queries_keys_values(g, 32 * batch, 16))


@workload
def mqa(g: KernelGraph, batch: int) -> Tensor:
    """Multi-query attention: one head of keys for all 1,024 queries."""
    return _attention(g, *_queries_keys_values(g, batch, 1024))


@workload
def mlp_block(g: KernelGraph, batch: int) -> Mapping[str, Tensor]:
    """The second half of a decoder layer: r + (silu(h Wgate) · (h Wup)) Wdown with h = rms_norm(r) · g2."""
    return {"y": _mlp_block(g, g.new_input((batch, 4096), name="r"))}


@workload
def decoder_layer(g: KernelGraph, batch: int) -> Mapping[str, Tensor]:
    """A decoder layer while decoding: norm, QKV, attention over the cache that is given, projection, and `mlp_block`.

    32 query heads in 8 groups share 8 heads of keys and values; the new keys and values are outputs.
    """
    x, g1 = g.new_input((batch, 4096), name="x"), _weight(g, (4096,), "g1")
    wq, wk, wv = (_weight(g, (4096, width), name) for name, width in (("Wq", 4096), ("Wk", 1024), ("Wv", 1024)))
    k, v = g.new_input((batch, 8, 128, 4096), name="K"), g.new_input((batch, 8, 4096, 128), name="V")
    wo = _weight(g, (4096, 4096), "Wo")
    h = g.rms_norm(x, 4096, g1)
    q = g.reshape(h @ wq, (batch, 8, 4, 128))
    k_new, v_new = h @ wk, h @ wv
    scores = g.scale(q @ k, 1 / sqrt(128))
    attended = g.reshape(g.softmax(scores, 3) @ v, (batch, 4096))
    return {"y": _mlp_block(g, x + attended @ wo), "k_new": k_new, "v_new": v_new}


def _mlp_block(g: KernelGraph, r: Tensor) -> Tensor:
    g2, gate, up = _weight(g, (4096,), "g2"), _weight(g, (4096, 14336), "Wgate"), _weight(g, (4096, 14336), "Wup")
    down = _weight(g, (14336, 4096), "Wdown")
    h = g.rms_norm(r, 4096, g2)
    return r + (g.silu(h @ gate) * (h @ up)) @ down


def _queries_keys_values(g: KernelGraph, heads: int, queries: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of 64 entries, and 4,096 keys and values; K is stored transposed."""
    q, k = g.new_input((heads, queries, 64), name="Q"), g.new_input((heads, 64, 4096), name="K")
    return q, k, g.new_input((heads, 4096, 64), name="V")


def _attention(g: KernelGraph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return g.softmax((q @ k) / 8, 2) @ v


def named(*workloads: Workload) -> dict[str, Workload]:
    """Workloads by their names."""
    return {it.__name__: it for it in workloads}


WORKLOADS = named(rmsnorm, gated_mlp, lora, gqa, qknorm, ntrans, mha, mqa, mlp_block, decoder_layer)

PAPER = ("rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans")
"""The workloads of Mirage's evaluation (OSDI'25)."""


def paper_programs() -> dict[str, Graph]:
    """The workloads of PAPER at batch 1, by name."""
    return {name: WORKLOADS[name](1) for name in PAPER}


STANDARD = (*PAPER, "mha", "mqa")
"""The workloads that one block graph holds."""

FEWEST, MOST = 5, 16
"""Block ops: the range of the published table of search times and of the default."""
