"""The builder takes everyday Python: NumPy's numbers and types, unary and reflected operators, abs, maximum, where."""

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import verify

Write = Callable[[Any, mi.KernelGraph], Any]  # an expression in x, on tensors with their graph and on arrays with `ARRAYS`


class Arrays:
    """What a program means, on NumPy's arrays."""

    maximum, minimum, abs = staticmethod(np.maximum), staticmethod(np.minimum), staticmethod(np.abs)

    @staticmethod
    def where(mask: Any, x: Any, y: Any) -> Any:
        return np.where(mask != 0, x, y)


ARRAYS: Any = Arrays()


def program(write: Write, shape: tuple[int, ...] = (3, 4)) -> Graph:
    graph = mi.new_kernel_graph()
    graph.mark_output(write(graph.new_input(shape, "float64", name="x"), graph))
    return graph.graph()


NUMBERS = [
    2,
    -3,
    0.1,
    1e-20,
    Fraction(1, 3),
    np.float64(0.1),
    np.float32(0.1),
    np.float16(0.25),
    np.int64(7),
    np.int8(-2),
    np.uint8(3),
]
WRITTEN: dict[str, Write] = {
    "-x": lambda x, g: -x,
    "+x": lambda x, g: +x,
    "abs(x)": lambda x, g: abs(x),
    "1 - x": lambda x, g: 1 - x,
    "1 / x": lambda x, g: 1 / x,
    "3 / x": lambda x, g: 3 / x,
    "np.float64(2) / x": lambda x, g: np.float64(2) / x,
    "np.float64(2) * x": lambda x, g: np.float64(2) * x,
    "np.int64(2) - x": lambda x, g: np.int64(2) - x,
    "x ** 2": lambda x, g: x**2,
    "x ** 3": lambda x, g: x**3,
    "x ** -1": lambda x, g: x**-1,
    "abs(x) ** 0.5": lambda x, g: abs(x) ** 0.5,
    "abs(x) ** -0.5": lambda x, g: abs(x) ** -0.5,
    "x ** np.int64(2)": lambda x, g: x ** np.int64(2),
    "sum([x, x])": lambda x, g: sum([x, x]),
    "maximum(x, 1 - x)": lambda x, g: g.maximum(x, 1 - x),
    "minimum(x, x * x)": lambda x, g: g.minimum(x, x * x),
    "maximum(x, 0)": lambda x, g: g.maximum(x, 0),
    "minimum(0, x)": lambda x, g: g.minimum(0, x),
    "maximum(0.3, x)": lambda x, g: g.maximum(0.3, x),
    "minimum(x, -1e30)": lambda x, g: g.minimum(x, -1e30),
    "abs(-x) - x": lambda x, g: g.abs(-x) - x,
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_an_expression_means_what_it_means_on_arrays(write: Write) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    [got] = evaluate(program(write), [x], FloatAlgebra())
    np.testing.assert_allclose(got, write(x, ARRAYS), rtol=1e-12, atol=0)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{type(number).__name__} {number}")
@pytest.mark.parametrize("operate", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_a_number_of_any_kind_is_the_constant_as_it_is_written(number: Any, operate: Callable[[Any, Any], Any]) -> None:
    exactly = number if isinstance(number, Fraction) else Fraction(str(number))
    assert program(lambda x, g: operate(x, number)) == program(lambda x, g: operate(x, exactly))
    assert program(lambda x, g: operate(number, x)) == program(lambda x, g: operate(exactly, x))


@given(mask=st.lists(st.booleans(), min_size=12, max_size=12), seed=st.integers(0, 9))
def test_where_takes_the_first_if_the_mask_is_one_and_else_the_second(mask: list[bool], seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = generator.standard_normal((2, 3, 4))
    zeros_and_ones = np.array(mask, np.float64).reshape(3, 4)
    for first, second in ((x, y), (x, -1e9), (2, y)):
        graph = mi.new_kernel_graph()
        m, *tensors = (graph.new_input((3, 4), "float64") for _ in range(3))
        pairs = zip(tensors, (first, second), strict=True)
        graph.mark_output(graph.where(m, *(tensor if isinstance(value, np.ndarray) else value for tensor, value in pairs)))
        [got] = evaluate(graph.graph(), [zeros_and_ones, x, y], FloatAlgebra())
        np.testing.assert_array_equal(got, np.where(zeros_and_ones != 0, first, second))


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "an array on the left": (lambda x, g: np.ones((3, 4)) + x, "make it an input: new_input(shape)"),
    "an array on the right": (lambda x, g: x * np.ones((3, 4)), "make it an input: new_input(shape)"),
    "an array as matrix": (lambda x, g: np.ones((2, 3)) @ x, "make it an input: new_input(shape)"),
    "an array of one number": (lambda x, g: x - np.array(2.0), "make it an input: new_input(shape)"),
    "an array as operand": (lambda x, g: g.add(x, np.ones(3)), "make it an input: new_input(shape)"),
    "not a number": (lambda x, g: x * float("nan"), "wanted a finite number"),
    "NumPy's infinity": (lambda x, g: np.float32("inf") + x, "wanted a finite number"),
    "a truth value": (lambda x, g: x + True, "got constant True"),
    "NumPy's truth value": (lambda x, g: x + np.True_, "wanted a finite number"),
    "a text": (lambda x, g: x * "2", "got constant '2', wanted a finite number"),
    "a complex number": (lambda x, g: x * 2j, "wanted a finite number"),
    "a divisor of zero": (lambda x, g: x / 0, "wanted a number that is not 0"),
    "an exponent that is a tensor": (lambda x, g: x**x, "wanted a finite number"),
    "an exponent of 400 digits": (lambda x, g: x**10**400, "got exponent of about 10^400"),
    "a factor of 5,000 digits": (lambda x, g: x * 10**5000, "got factor of about 10^5000"),
    "two numbers": (lambda x, g: g.maximum(1, 2), "wanted at least one tensor"),
    "where of no tensor": (lambda x, g: g.where(True, x, x), "where: got True as operand 0"),
    "a dtype that nobody has": (lambda x, g: g.new_input((2,), "x"), "got dtype 'x', wanted one of float16, bfloat16"),
    "a dtype of another size": (lambda x, g: g.new_input((2,), np.uint16), "wanted one of float16, bfloat16"),
    "a dim that is no whole number": (lambda x, g: g.new_input((2, 1.5)), "got 1.5 in dims, wanted whole numbers"),
    "dims that are a number": (lambda x, g: g.new_input(2.5), "got 2.5 in dims, wanted whole numbers"),
    "two names for one output": (
        lambda x, g: [g.mark_output(x, name) for name in ("a", "b")],
        "mark_output: %0 is already the output 'a', got the name 'b'",
    ),
}


@pytest.mark.parametrize(("write", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_program_is_refused_in_one_line_that_says_why(write: Write, said: str) -> None:
    with pytest.raises(GraphError) as error:
        program(write)
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300


def test_numpy_types_name_element_types_and_whole_numbers() -> None:
    graph = mi.new_kernel_graph()
    for dtype in (np.float16, np.dtype("float16"), np.dtype("<f2"), "float16", mi.float16):
        assert graph.new_input((np.int64(2), 3), dtype).dtype is mi.float16
    assert graph.new_input(np.array([2, 3]), np.float64).shape == (2, 3)
    x = graph.new_input((2, 3), np.float32)
    assert graph.sum(x, np.int64(-1)).shape == (2, 1)


def test_torch_types_name_element_types() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    graph = mi.new_kernel_graph()
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16"):
        assert graph.new_input((2,), getattr(torch, name)).dtype == name
    with pytest.raises(GraphError, match=r"got dtype torch.uint16, wanted one of float16"):
        graph.new_input((2,), torch.uint16)
    with pytest.raises(GraphError, match="make it an input"):
        torch.ones(2) + graph.new_input((2,))


# --- the ops maximum, minimum and abs ---------------------------------------------------------------------------------------

SAME: dict[str, tuple[Write, Write]] = {
    "the larger commutes": (lambda x, g: g.maximum(x, x * x), lambda x, g: g.maximum(x * x, x)),
    "the smaller associates": (
        lambda x, g: g.minimum(g.minimum(x, x * x), 1 - x),
        lambda x, g: g.minimum(x, g.minimum(x * x, 1 - x)),
    ),
    "the larger of equals": (lambda x, g: g.maximum(x, x), lambda x, g: x * 1),
    "a maximum of maxima": (lambda x, g: g.max(g.maximum(x, 1 - x), 1), lambda x, g: g.maximum(g.max(x, 1), g.max(1 - x, 1))),
    "abs as a maximum": (lambda x, g: g.maximum(x, -x), lambda x, g: abs(x)),
    "the root of a square": (lambda x, g: g.sqrt(x * x), lambda x, g: abs(x)),
    "abs of a product": (lambda x, g: abs(x * (1 - x)), lambda x, g: abs(x) * abs(1 - x)),
    "abs of a negative": (lambda x, g: abs(x * -3), lambda x, g: abs(x) * 3),
    "the square of abs": (lambda x, g: abs(x) ** 2, lambda x, g: x**2),
    "a reciprocal": (lambda x, g: (1 - x) * (1 / x), lambda x, g: (1 - x) / x),
}
DIFFERENT: dict[str, tuple[Write, Write]] = {
    "larger and smaller": (lambda x, g: g.maximum(x, 1 - x), lambda x, g: g.minimum(x, 1 - x)),
    "abs and the number": (lambda x, g: abs(x), lambda x, g: x * 1),
    "the larger and the first": (lambda x, g: g.maximum(x, 1 - x), lambda x, g: x * 1),
    "abs of a sum": (lambda x, g: abs(x + x * x), lambda x, g: abs(x) + x * x),
    "a larger that lost one": (lambda x, g: g.maximum(g.maximum(x, 1 - x), x * x), lambda x, g: g.maximum(x, 1 - x)),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_laws_of_maxima_and_abs_are_proved_and_nothing_differs(one: Write, other: Write) -> None:
    left, right = expand(program(one)), expand(program(other))
    assert Prover(left).prove(right).proved
    verdict = verify(left, right)
    assert verdict.verdict in ("equal", "undecided") and (verdict.float_error or 0.0) < 1e-12


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_is_no_law_of_maxima_and_abs_is_refuted(one: Write, other: Write) -> None:
    left, right = expand(program(one)), expand(program(other))
    assert not Prover(left).prove(right).proved
    assert verify(left, right).verdict == "not equal"


LATTICE: dict[str, tuple[Write, Write]] = {
    **{name: laws for name, laws in SAME.items() if name not in ("abs as a maximum", "a reciprocal")},
    "absorption": (lambda x, g: g.maximum(x, g.minimum(x, 1 - x)), lambda x, g: x * 1),
    "a smaller of a larger": (
        lambda x, g: g.minimum(x, g.maximum(1 - x, x * x)),
        lambda x, g: g.maximum(g.minimum(x, 1 - x), g.minimum(x, x * x)),
    ),
    "relu of a larger": (lambda x, g: g.relu(g.maximum(x, 1 - x)), lambda x, g: g.maximum(g.relu(x), g.relu(1 - x))),
}


@pytest.mark.parametrize(("one", "other"), LATTICE.values(), ids=LATTICE)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_field_knows_the_order_of_maxima_and_the_products_of_abs(one: Write, other: Write, seed: int) -> None:
    algebra = FieldAlgebra.of(seed)
    x = algebra.input(0, (3, 4))
    got, want = (algebra.read(evaluate(program(write), [x], algebra))[0].residues for write in (one, other))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_emitted_maxima_and_abs_compute_what_numpy_does(run_program: RunProgram, dtype: str) -> None:
    graph = mi.new_kernel_graph()
    x, y = graph.new_input((8, 16), dtype, name="X"), graph.new_input((1, 16), dtype, name="Y")
    block = mi.new_threadblock_graph((2,), forloop_range=2)
    a, b = block.new_input(x, (0,), 1), block.new_input(y, (-1,), 1)
    block.new_output(block.forloop_accum(block.minimum(block.maximum(a, b), abs(a) + abs(b)), "max", 1), (0,))
    [out] = graph.customized([x, y], block)
    graph.mark_output(graph.maximum(out, graph.abs(y)))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(dtype).astype(np.float64) for shape in ((8, 16), (1, 16))]
    [got] = run_program(emit(graph.graph()), arrays)
    left, right = arrays
    peak = np.minimum(np.maximum(left, right), np.abs(left) + np.abs(right)).max(axis=1, keepdims=True)
    want = np.maximum(peak, np.abs(right))
    np.testing.assert_allclose(got, want, rtol=1e-2 if dtype == "float16" else 1e-6)


def test_a_maximum_behind_a_product_is_fused_into_its_kernel() -> None:
    graph = mi.new_kernel_graph()
    x, w, y = graph.new_input((16, 64), name="X"), graph.new_input((64, 32), name="W"), graph.new_input((16, 32), name="Y")
    graph.mark_output(graph.minimum(abs(graph.maximum(x @ w, y)), 3))
    best = graph.superoptimize(top=1, device="cpu", jobs=1)[0]
    assert len(launches_of(best.graph).kernels) == 1 and best.candidate.proved and best.candidate.float_check.ok
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(kind.shape).astype(np.float16) for kind in best.graph.input_types]
    left, right, other = (array.astype(np.float64) for array in arrays)
    np.testing.assert_allclose(best(*arrays), np.minimum(np.abs(np.maximum(left @ right, other)), 3), rtol=2e-2, atol=2e-2)
