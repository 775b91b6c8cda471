"""Row-wise programs with long rows, in float16: normalisations and losses as models have them, for the GPU benchmark."""

from collections.abc import Callable

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph


def softmax(batch: int = 1) -> Graph:
    """Softmax over 32,768 entries, 64 rows."""
    program = new_kernel_graph()
    x = program.new_input((64 * batch, 32_768), name="X")
    program.mark_output(program.softmax(x, 1), name="O")
    return program.graph()


def log_softmax(batch: int = 1) -> Graph:
    """Logarithms of the probabilities of 32,000 classes, 512 tokens."""
    program = new_kernel_graph()
    x = program.new_input((512 * batch, 32_000), name="X")
    program.mark_output(x - program.log(program.sum(program.exp(x), 1)), name="O")
    return program.graph()


def cross_entropy(batch: int = 1) -> Graph:
    """The negative log likelihood of the target among 32,000 classes, of each of 512 tokens."""
    program = new_kernel_graph()
    x = program.new_input((512 * batch, 32_000), name="X")
    target = program.new_input((512 * batch, 1), "int64", name="target")
    likelihood = x - program.log(program.sum(program.exp(x), 1))
    program.mark_output(-program.take_along_dim(likelihood, target, 1), name="O")
    return program.graph()


def layer_norm(batch: int = 1) -> Graph:
    """4,096 rows of 8,192, with weight and bias."""
    program = new_kernel_graph()
    x = program.new_input((4096 * batch, 8192), name="X")
    weight, bias = (program.new_input((8192,), name=name) for name in ("weight", "bias"))
    program.mark_output(program.layer_norm(x, 8192, weight, bias, eps=1e-5), name="O")
    return program.graph()


def group_norm(batch: int = 1) -> Graph:
    """8 images of 64 × 64 with 320 channels in 32 groups, as in a diffusion model."""
    program = new_kernel_graph()
    x = program.new_input((8 * batch, 320, 64, 64), name="X")
    weight, bias = (program.new_input((320,), name=name) for name in ("weight", "bias"))
    groups = program.reshape(x, (8 * batch, 32, 10 * 64 * 64))
    normal = program.reshape(program.layer_norm(groups, 10 * 64 * 64, eps=1e-5), (8 * batch, 320, 64, 64))
    scaled = normal * program.reshape(weight, (320, 1, 1)) + program.reshape(bias, (320, 1, 1))
    program.mark_output(scaled, name="O")
    return program.graph()


def add_rms_norm(batch: int = 1) -> Graph:
    """x + r and its normalisation, 2,048 rows of 4,096: the residual stream of a decoder layer."""
    program = new_kernel_graph()
    x, r = (program.new_input((2048 * batch, 4096), name=name) for name in ("x", "r"))
    g = program.new_input((4096,), name="g")
    residual = x + r
    program.mark_output(program.rms_norm(residual, 4096, g), name="O")
    program.mark_output(residual, name="residual")
    return program.graph()


LONG_ROWS: dict[str, Callable[[int], Graph]] = {
    workload.__name__: workload for workload in (softmax, log_softmax, cross_entropy, layer_norm, group_norm, add_rms_norm)
}
