"""TF32: which ops may have it by torch's settings, and operands rounded to its digits."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage_eg.backends.measure import tf32  # noqa: E402
from mirage_eg.ir.builder import new_kernel_graph  # noqa: E402

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    allow(*before)


def allow(convolutions: bool, products: bool) -> None:
    torch._C._set_cudnn_allow_tf32(convolutions)  # torch's own tests, once imported, refuse torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = products


def test_numbers_are_rounded_to_the_nearest_of_eleven_digits() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11, inf, -inf, 0.0])
    assert tf32.rounded(x).tolist() == [1.0, 1 + 2**-10, 1 + 2**-10, 1.0, -1 - 2**-10, inf, -inf, 0.0]
    many = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert ((tf32.rounded(many) - many).abs() <= tf32.EPS / 2 * many.abs()).all()
    last = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)  # what a GPU has for not-a-number
    assert tf32.rounded(torch.cat([last, torch.tensor([nan])])).isnan().all()
    assert tf32.rounded(many.half()).dtype is torch.float16


@pytest.mark.parametrize(("convolutions", "products"), [(True, False), (False, True), (False, False)])
def test_the_settings_say_which_ops_may_round(convolutions: bool, products: bool) -> None:
    allow(convolutions, products)
    found = tf32.rounded_operands(GPU)
    assert ("convolution" in found, "mm" in found) == (convolutions, products)
    assert tf32.rounded_operands(torch.device("cpu")) == {}
    with tf32.without_tf32():
        assert tf32.rounded_operands(GPU) == {}
    assert tf32.rounded_operands(GPU) == found
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (convolutions, products)


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9 has no common setting")
def test_settings_follow_the_common_one_afterwards() -> None:
    torch.backends.cuda.matmul.fp32_precision = "none"
    try:
        for value in ("tf32", "ieee"):
            torch._C._set_fp32_precision_setter("generic", "all", value)
            assert ("mm" in tf32.rounded_operands(GPU)) == (value == "tf32")
            with tf32.without_tf32():
                assert tf32.rounded_operands(GPU) == {}
            assert ("mm" in tf32.rounded_operands(GPU)) == (value == "tf32")
    finally:
        torch._C._set_fp32_precision_setter("generic", "all", "none")


def test_convolutions_and_products_have_rounded_operands() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.Linear(6, 6))
    x = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))

    def result(convolutions: bool, products: bool) -> Any:
        allow(convolutions, products)
        with torch.no_grad(), tf32.RoundedOperands(tf32.rounded_operands(GPU)):
            return model(x)

    plain = result(False, False)
    errors = [(result(*allowed) - plain).abs().max().item() for allowed in ((True, False), (False, True))]
    assert all(1e-5 < error < 1e-3 for error in errors)


@pytest.mark.parametrize(("dtype", "rounds"), [("float32", True), ("float16", False)])
def test_a_program_rounds_if_its_products_are_of_float32(dtype: str, rounds: bool) -> None:
    allow(False, True)
    graph = new_kernel_graph()
    x = graph.new_input((8, 8), dtype=dtype)
    graph.mark_output(graph.matmul(x, x))
    program = graph.graph()
    assert tf32.has_rounded_operands(program, tf32.rounded_operands(GPU)) is rounds
    allow(True, False)
    assert not tf32.has_rounded_operands(program, tf32.rounded_operands(GPU))
