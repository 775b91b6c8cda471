"""Products of all experts give the rows of the chosen ones: exactly in the field, with no number of another expert."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.views import transposed_operands
from mirage_eg.ir import all_experts
from mirage_eg.ir.all_experts import rows_of_all, with_all_experts
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim
from mirage_eg.ir.whole_inputs import index_bounds
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality

TOKENS, CHOSEN, EXPERTS, WIDTH, INNER = 5, 2, 4, 6, 3
ROWS = TOKENS * CHOSEN
Change = Callable[[KernelGraph, Tensor], Tensor]


def _same(g: KernelGraph, x: Tensor) -> Tensor:
    return x


def layer(own: Change = _same, token: Change = _same, experts: int = EXPERTS) -> Graph:
    """A gated perceptron with biases by chosen experts, times the shares of the rows."""
    g = new_kernel_graph()
    x, shares = g.new_input((TOKENS, WIDTH), "float32"), g.new_input((TOKENS, CHOSEN, 1), "float32")
    up = g.transpose(g.new_input((experts, 2 * INNER, WIDTH), "float32"), (0, 2, 1))
    bias, down = g.new_input((experts, 2 * INNER), "float32"), g.new_input((experts, INNER, WIDTH), "float32")
    chosen = own(g, g.reshape(g.new_input((TOKENS, CHOSEN), "int32"), (ROWS,)))
    rows = g.reshape(g.gather(x, token(g, g.new_input((ROWS,), "int64"))), (ROWS, 1, WIDTH))
    h = g.reshape(g.matmul(rows, g.gather(up, chosen)), (ROWS, 2 * INNER)) + g.gather(bias, chosen)
    h = g.silu(g.slice(h, 1, 0, 2 * INNER, 2)) * g.slice(h, 1, 1, 2 * INNER, 2)
    h = h * g.mean(g.square(h), 1)  # of each row
    y = g.matmul(g.reshape(h, (ROWS, 1, INNER)), g.gather(down, chosen))
    g.mark_output(g.sum(g.reshape(y, (TOKENS, CHOSEN, WIDTH)) * shares, 1))
    return g.graph()


def rows_of_their_own() -> Graph:
    """Rows that are no slices of tokens, times weights in another type with a scale for each expert."""
    g = new_kernel_graph()
    x, w = g.new_input((ROWS, 1, WIDTH), "float32"), g.new_input((EXPERTS, WIDTH, INNER), "int8")
    scales, chosen = g.new_input((EXPERTS, 1, INNER), "float32"), g.new_input((ROWS,), "int64")
    product = g.matmul(g.exp(x), g.cast(g.gather(w, chosen), "float32") * g.gather(scales, chosen))
    g.mark_output(product * g.exp(g.slice(x, 2, 0, INNER)))
    return g.graph()


def two_products() -> Graph:
    """The second has experts of its own, and reads rows of the first."""
    g = new_kernel_graph()
    x, w = g.new_input((ROWS, 1, WIDTH), "float32"), g.new_input((EXPERTS, WIDTH, WIDTH), "float32")
    for _ in range(2):
        x = g.matmul(x, g.gather(w, g.new_input((ROWS,), "int64"))) + x
    g.mark_output(x)
    return g.graph()


PROGRAMS = {"a layer": layer, "rows of their own": rows_of_their_own, "two products": two_products}


def _shapes(program: Graph, op: str) -> list[Sequence[object]]:
    return [program.types[values[0]].shape for item, values in program.numbered() if item.op == op]


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_of_all_experts_are_equal_and_each_weight_is_read_once(name: str) -> None:
    program = PROGRAMS[name]()
    other = with_all_experts(program)
    assert Reference(program).check(other).verdict is Equality.EQUAL
    assert {shape[0] for shape in _shapes(other, "matmul")} == {EXPERTS}
    assert len(_shapes(other, "gather")) == len(_shapes(program, "matmul")) // (2 if name == "a layer" else 1)
    assert with_all_experts(other) is other


def test_products_of_all_experts_read_transposed_weights_where_they_are() -> None:
    """A reshape to the same shape between them would make the transpose a copy: 331 µs of Qwen3-MoE's 128 tokens on an H100."""
    other = with_all_experts(layer())
    transposes = {place for place, item in enumerate(other.nodes) if item.op == "transpose"}
    assert transposes and transposes == transposed_operands(other)


@pytest.mark.parametrize(
    "program", [layer(token=lambda g, x: g.op("floor_divide", g.iota(ROWS), divisor=CHOSEN)), rows_of_their_own()]
)
def test_places_of_experts_stay_below_their_number(program: Graph) -> None:
    place = next(place for place, kind in enumerate(program.input_types) if kind.dtype.is_integer and kind.dtype.itemsize > 1)
    assert index_bounds(with_all_experts(program))[place] == index_bounds(program)[place] == EXPERTS


@pytest.mark.parametrize("experts", [ROWS, ROWS + 1])
def test_up_to_as_many_rows_as_experts_read_those_of_their_own(experts: int) -> None:
    program = layer(experts=experts)
    assert with_all_experts(program) is program and not rows_of_all(program)


def test_rows_that_choose_too_many_weights_read_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_experts, "MOST_CHOSEN", ROWS * 2 * INNER * WIDTH - 1)
    program = layer(experts=ROWS)
    assert {shape[0] for shape in _shapes(with_all_experts(program), "matmul")} == {ROWS}
    assert rows_of_all(layer(experts=ROWS + 1)) == frozenset()


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_too_many_tokens_read_those_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of_all(PROGRAMS[name]()) == {ROWS}
    monkeypatch.setattr(all_experts, "MOST_TOKENS", TOKENS - 1)
    program = PROGRAMS[name]()
    assert with_all_experts(program) is program and not rows_of_all(program)


def test_a_deep_program_is_rewritten() -> None:
    g = new_kernel_graph()
    x, w = g.new_input((ROWS, 1, WIDTH), "float32"), g.new_input((EXPERTS, WIDTH, WIDTH), "float32")
    for _ in range(10):
        rows = x
        for _ in range(150):
            rows = rows * (2 - rows)
        x = g.matmul(rows, g.gather(w, g.new_input((ROWS,), "int64"))) + x
    g.mark_output(x)
    assert len(_shapes(with_all_experts(g.graph()), "gather")) == 10


def test_rows_of_a_number_of_tokens_chosen_later_read_those_of_their_own() -> None:
    g, n = new_kernel_graph(), Dim("n", max=64)
    x, w = g.new_input((n, 1, WIDTH), "float32"), g.new_input((EXPERTS, WIDTH, INNER), "float32")
    g.mark_output(g.matmul(x, g.gather(w, g.new_input((n,), "int64"))))
    program = g.graph()
    assert with_all_experts(program) is program and not rows_of_all(program)


WRONG: dict[str, Graph] = {
    "the next expert": layer(own=lambda g, x: g.op("low_bits", x + 1, bits=2)),
    "the expert of another row": layer(own=lambda g, x: g.op("flip", x, dims=(0,))),
    "the token of another row": layer(token=lambda g, x: g.op("flip", x, dims=(0,))),
    "the last token dropped": layer(token=lambda g, x: g.op("clamp", x, low=0, high=TOKENS - 2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_products_of_all_experts_of_another_layer_are_not_equal(name: str) -> None:
    assert Reference(layer()).check(with_all_experts(WRONG[name])).verdict is Equality.NOT_EQUAL


def test_numbers_of_experts_that_no_row_chose_reach_no_row() -> None:
    program, generator = layer(), np.random.default_rng(0)
    inputs = [generator.standard_normal(kind.shape) for kind in program.input_types]
    inputs[5:] = generator.integers(0, EXPERTS - 1, (TOKENS, CHOSEN)), np.arange(ROWS) // CHOSEN
    for weights in inputs[2:5]:
        weights[-1] = np.nan
    [got], [wanted] = (evaluate(it, inputs, FloatAlgebra()) for it in (with_all_experts(program), program))
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(got, wanted, rtol=1e-9)
