"""Row-wise programs with long rows, in float16: normalisations and losses as models have them, for the GPU benchmark."""

from collections.abc import Mapping

from mirage_eg.frontend.workloads import named, workload
from mirage_eg.ir.builder import KernelGraph, Tensor


@workload
def softmax(g: KernelGraph, batch: int) -> Tensor:
    """Softmax over 32,768 entries, 64 rows."""
    return g.softmax(g.new_input((64 * batch, 32_768), name="X"), 1)


@workload
def log_softmax(g: KernelGraph, batch: int) -> Tensor:
    """Logarithms of the probabilities of 32,000 classes, 512 tokens."""
    x = g.new_input((512 * batch, 32_000), name="X")
    return x - g.log(g.sum(g.exp(x), 1))


@workload
def cross_entropy(g: KernelGraph, batch: int) -> Tensor:
    """The negative log likelihood of the target among 32,000 classes, of each of 512 tokens."""
    x = g.new_input((512 * batch, 32_000), name="X")
    target = g.new_input((512 * batch, 1), "int64", name="target")
    return -g.take_along_dim(x - g.log(g.sum(g.exp(x), 1)), target, 1)


@workload
def layer_norm(g: KernelGraph, batch: int) -> Tensor:
    """4,096 rows of 8,192, with weight and bias."""
    x = g.new_input((4096 * batch, 8192), name="X")
    weight, bias = (g.new_input((8192,), name=name) for name in ("weight", "bias"))
    return g.layer_norm(x, 8192, weight, bias, eps=1e-5)


@workload
def group_norm(g: KernelGraph, batch: int) -> Tensor:
    """8 images of 64 × 64 with 320 channels in 32 groups, as in a diffusion model."""
    x = g.new_input((8 * batch, 320, 64, 64), name="X")
    weight, bias = (g.new_input((320,), name=name) for name in ("weight", "bias"))
    groups = g.reshape(x, (8 * batch, 32, 10 * 64 * 64))
    normal = g.reshape(g.layer_norm(groups, 10 * 64 * 64, eps=1e-5), (8 * batch, 320, 64, 64))
    return normal * g.reshape(weight, (320, 1, 1)) + g.reshape(bias, (320, 1, 1))


@workload
def add_rms_norm(g: KernelGraph, batch: int) -> Mapping[str, Tensor]:
    """x + r and its normalisation, 2,048 rows of 4,096: the residual stream of a decoder layer."""
    x, r = (g.new_input((2048 * batch, 4096), name=name) for name in ("x", "r"))
    weight = g.new_input((4096,), name="g")
    residual = x + r
    return {"O": g.rms_norm(residual, 4096, weight), "residual": residual}


LONG_ROWS = named(softmax, log_softmax, cross_entropy, layer_norm, group_norm, add_rms_norm)
