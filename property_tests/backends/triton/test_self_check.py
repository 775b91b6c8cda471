"""The reference of an emitted program: the program in PyTorch, in double precision where what it holds at once fits."""

from typing import Any

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.triton.self_check import write_reference
from mirage_eg.ir.graph import Graph


def _chain(elements: int, branches: int) -> Graph:
    """Four ops in a chain; the last one reads further branches, which live until then."""
    p = new_kernel_graph()
    x = p.new_input((elements,), "float32", "x")
    kept = [p.exp(p.scale(x, number + 2)) for number in range(branches)]
    y = p.tanh(p.sigmoid(p.relu(x)))
    for it in kept:
        y = p.add(y, it)
    p.mark_output(y)
    return p.graph()


@pytest.mark.parametrize(("branches", "precision"), [(0, "float64"), (3, "float32")])
def test_a_reference_is_exact_where_what_it_holds_at_once_fits(branches: int, precision: str) -> None:
    text = write_reference(_chain(1 << 30, branches), ["x"], {})  # 8 GiB a value
    assert f"op by op in {precision}" in text


def test_a_reference_frees_each_value_after_its_last_reader() -> None:
    torch = pytest.importorskip("torch")
    found: dict[str, Any] = {}
    text = write_reference(_chain(8, 2), ["x"], {})
    exec(text, found)
    x = torch.randn(8)
    [y] = found["reference"](x)
    assert torch.allclose(y, x.double().relu().sigmoid().tanh() + (2 * x.double()).exp() + (3 * x.double()).exp())
    assert text.count("del ") == 6  # of two values twice
