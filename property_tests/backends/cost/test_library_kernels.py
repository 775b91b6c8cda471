"""Predicted times of library kernels of text models on an H200 are near those measured there (bfloat16, warm caches)."""

from collections.abc import Callable
from math import prod

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.library_traffic import tiles_of
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.launches.aligned_rows import with_gaps
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.written_inputs import with_output_marks


def program(body: Callable[[KernelGraph], Tensor]) -> Graph:
    p = new_kernel_graph()
    p.mark_output(body(p))
    return p.graph()


def attention(batch: int, heads: int, rows: int, mask: tuple[int, ...] = (), dtype: str = "bfloat16") -> Graph:
    def body(p: KernelGraph) -> Tensor:
        q, k, v = (p.new_input((batch, heads, rows, 64), "bfloat16", name) for name in "qkv")
        scores = p.scale(q @ p.transpose(k, (0, 1, 3, 2)), 0.125)
        if mask and dtype == "bool":
            return p.softmax(scores, 3, p.new_input(mask, "bool", "mask")) @ v
        return p.softmax(scores + p.new_input(mask, "bfloat16", "mask") if mask else scores, 3) @ v

    return program(body)


def biased(rows: int, terms: int, columns: int) -> Graph:
    def body(p: KernelGraph) -> Tensor:
        x, w = p.new_input((rows, terms), "bfloat16", "x"), p.new_input((terms, columns), "bfloat16", "w")
        return x @ w + p.new_input((columns,), "bfloat16", "b")

    return program(body)


def activated(rows: int, terms: int, columns: int) -> Graph:
    def body(p: KernelGraph) -> Tensor:
        x, w = p.new_input((rows, terms), "bfloat16", "x"), p.new_input((terms, columns), "bfloat16", "w")
        return p.gelu_tanh(x @ w + p.new_input((columns,), "bfloat16", "b"))

    return program(body)


def gelu(rows: int, columns: int) -> Graph:
    return program(lambda p: p.gelu(p.new_input((rows, columns), "bfloat16", "x")))


def product(rows: int, terms: int, columns: int, gaps: bool = False) -> Graph:
    graph = program(lambda p: p.new_input((rows, terms), "bfloat16", "x") @ p.new_input((terms, columns), "bfloat16", "w"))
    return with_output_marks(graph, [{"strides": with_gaps(graph.output_types[0])}]) if gaps else graph


def plus_bias(rows: int, columns: int) -> Graph:
    return program(lambda p: p.new_input((rows, columns), "bfloat16", "x") + p.new_input((columns,), "bfloat16", "b"))


def norm(rows: int) -> Graph:
    def body(p: KernelGraph) -> Tensor:
        w, b = (p.new_input((768,), "bfloat16", name) for name in "wb")
        return p.layer_norm(p.new_input((rows, 768), "bfloat16", "x"), 768, w, b)

    return program(body)


MEASURED = {
    "attention": (attention(32, 12, 512), 74),
    "attention, a mask for each batch": (attention(32, 12, 512, (32, 1, 512, 512)), 136),
    "attention, long rows, a mask for each batch": (attention(8, 12, 1024, (8, 1, 1024, 1024)), 123),
    "attention, a bias for each head": (attention(8, 8, 1024, (1, 8, 1024, 1024)), 83),
    "attention, an indicator": (attention(4, 12, 2048, (2048, 2048), "bool"), 227),
    "attention of 198 rows": (attention(128, 12, 198), 93),
    "product and bias": (biased(16384, 768, 2304), 98),
    "product and bias, few columns": (biased(16384, 768, 768), 36),
    "product, bias and gelu by tanh": (activated(16384, 768, 3072), 128),
    "product, bias and gelu by tanh, few columns": (activated(16384, 3072, 768), 108),
    "gelu": (gelu(8192, 4096), 45),
    "head of odd columns, without the copy of its weight": (product(16384, 768, 50257, gaps=True), 1810),
    "head of odd columns, copied into rows without gaps": (product(16384, 768, 50257), 1810 + 1774),
    "long odd sums, and copies of both operands": (product(1024, 197951, 512), 280 + 722),
    "bias": (plus_bias(16384, 2304), 96),
    "bias of few columns": (plus_bias(32768, 512), 44),
    "norm": (norm(16384), 39),
    "norm of few rows": (norm(8192), 22),
}


@pytest.mark.parametrize("name", MEASURED)
def test_predicted_times_are_near_measured_ones(name: str) -> None:
    graph, us = MEASURED[name]
    assert 0.7 < predict_us(graph, DEVICES["H200"]) / us < 1.5


@pytest.mark.parametrize(("device", "us"), [("H100", 2.3), ("H200", 2.48)])
def test_a_small_cast_of_torch_takes_longer_than_a_generated_kernel(device: str, us: float) -> None:
    cast = program(lambda p: p.cast(p.new_input((1, 4096), "float16", "x"), "float32"))
    assert predict_us(cast, DEVICES[device]) == pytest.approx(us, rel=0.15)


FEW_ROWS = {  # rows, terms, columns: µs of a product in float16 in a profile, 2026-11-28
    (1, 1536, 256): 4.3,
    (1, 1536, 1536): 6.2,
    (1, 2560, 1024): 12.8,
    (1, 2560, 4096): 7.9,
    (1, 4096, 4096): 12.4,
    (1, 10240, 2560): 17.1,
    (1, 14336, 4096): 30.9,
    (8, 14336, 4096): 35.0,
    (128, 4096, 1024): 8.0,
    (2, 1280, 320): 4.5,
}


@pytest.mark.parametrize("sizes", FEW_ROWS)
def test_products_of_few_tiles_draw_what_their_thread_blocks_can(sizes: tuple[int, int, int]) -> None:
    assert 0.7 < predict_us(product(*sizes), DEVICES["H200"]) / FEW_ROWS[sizes] < 1.4


@pytest.mark.parametrize(("shape", "tiles"), [((1, 2560), 16), ((3, 2560), 16), ((3, 1, 2560), 16), ((3, 65, 2560), 64)])
def test_tiles_of_a_product_do_not_depend_on_the_shape_of_what_is_written(shape: tuple[int, ...], tiles: int) -> None:
    def body(p: KernelGraph) -> Tensor:
        result = p.matmul(p.new_input(shape, "float16"), p.new_input((2560, 1024), "float16"))
        return p.reshape(result, (prod(result.shape),))

    graph = program(body)
    assert tiles_of(graph, graph.nodes[2]) == tiles
    [cost] = predict(graph, DEVICES["H200"])
    assert cost.us > 0


def test_maxima_of_short_dims_take_the_predicted_time() -> None:
    """Poolings of 2, then of 3, each dim by its own kernel of torch: 2,106 µs on an H200 (torch 2.11)."""
    p = new_kernel_graph()
    extents, x = [63, 63, 63], p.new_input((16, 64, 63, 63, 63), "float32")
    for window in (2, 3):
        for dim in range(3):
            extents[dim] //= window
            x = p.slice(x, 2 + dim, 0, extents[dim] * window)
            split = (16, 64, *extents[: dim + 1], window, *extents[dim + 1 :])
            x = p.reshape(p.max(p.reshape(x, split), 3 + dim), (16, 64, *extents))
    p.mark_output(x)
    assert 0.9 < predict_us(p.graph(), DEVICES["H200"]) / 2106 < 1.1
