"""An op defined by other ops is in every algebra, in the kernels and in the rules what its definition is."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator import floating_point, mpmath_ops
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_law import Truth, check_law
from mirage_eg.frontend import custom_op_check
from mirage_eg.frontend.custom_op import register_op
from mirage_eg.frontend.custom_op_check import check_custom_ops
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.verify.proof import Prover

RELU2: Any = lambda b, x: b.square(b.relu(x))  # noqa: E731
UNARY = ("square", "relu", "sigmoid", "tanh", "silu", "exp", "abs", "neg")
BINARY = ("add", "sub", "mul", "maximum")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The registry is as before after the test."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@st.composite
def definitions(draw: st.DrawFn) -> Any:
    """A definition of two operands and one attribute: up to four ops, the last of all values."""
    steps = draw(st.lists(st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 5), st.integers(0, 5)), max_size=4))

    def definition(b: Any, x: Any, y: Any, c: Fraction) -> Any:
        values = [x, b.scale(y, c)]
        for op, i, j in steps:
            operands = [values[i % len(values)], values[j % len(values)]][: 1 if op in UNARY else 2]
            values.append(getattr(b, op)(*operands))
        total = values[0]
        for value in values[1:]:
            total = b.add(total, value)
        return total

    return definition


def program(op: str, shape: tuple[int, ...] = (4, 6), **attributes: Any) -> Graph:
    graph = mi.new_kernel_graph()
    operands = [graph.new_input(shape, "float32", name) for name in REGISTRY[op].operands]
    graph.mark_output(graph.op(op, *operands, **attributes))
    return graph.graph()


def fused(op: str, shape: tuple[int, ...] = (4, 6), **attributes: Any) -> Graph:
    graph, block = mi.new_kernel_graph(), mi.new_threadblock_graph((2,))
    operands = [graph.new_input(shape, "float32", name) for name in REGISTRY[op].operands]
    block.new_output(block.op(op, *(block.new_input(x, (0,)) for x in operands), **attributes), (0,))
    graph.mark_output(*graph.customized(operands, block))
    return graph.graph()


@given(definition=definitions(), factor=st.sampled_from([Fraction(1, 2), Fraction(-3), Fraction(0)]))
def test_every_algebra_computes_an_op_as_its_definition(definition: Any, factor: Fraction) -> None:
    register_op("defined", definition=definition, arity=2, attributes=["c"])
    graph = program("defined", c=factor)
    written = expand_custom(graph)
    assert all(item.op != "defined" for item in written.nodes)
    arrays = [np.linspace(-1, 1, 24).reshape(4, 6), np.linspace(2, -1, 24).reshape(4, 6)]
    [got], [wanted] = (evaluate(it, arrays, FloatAlgebra()) for it in (graph, written))
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_allclose(floating_point.ELEMENTWISE["defined"](np, *arrays, c=factor), wanted, rtol=1e-12)
    exact = mpmath_ops.ELEMENTWISE["defined"](mpmath.mpf(-1), mpmath.mpf(2), c=factor)
    np.testing.assert_allclose(float(exact), wanted[0, 0], rtol=1e-12, atol=1e-12)
    field = FieldAlgebra.of(seed=1)
    inputs = [field.input(i, (4, 6)) for i in range(2)]
    left, right = field.read([*evaluate(graph, inputs, field), *evaluate(written, inputs, field)])
    np.testing.assert_array_equal(left.residues, right.residues)


def test_kernels_library_calls_and_helpers_compute_the_definition(
    run_program: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = "@triton.jit\ndef positive(x):\n    return tl.maximum(x, 0.0)\n"
    register_op("relu2", definition=RELU2, triton="positive({x}) * positive({x})", helpers=helper)
    register_op("leaky", definition=lambda b, x, slope: b.maximum(x, x * slope), attributes=["slope"])
    register_op(
        "gate", arity=2, definition=lambda b, x, y: b.op("relu2", x) * b.tanh(y), torch="torch.relu({x}) ** 2 * {y}.tanh()"
    )
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(4, 6)).astype(np.float32) for _ in range(2)]
    for op, attributes in (("relu2", {}), ("leaky", {"slope": 0.25}), ("gate", {})):
        graph = program(op, **attributes)
        given_ = arrays[: REGISTRY[op].arity]
        [wanted] = evaluate(graph, given_, FloatAlgebra())
        for form in (graph, fused(op, **attributes)):
            [got] = run_program(emit(form), given_)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(custom_op_check, "interpreter", lambda: _Lent(run_program))
    assert check_custom_ops(program("leaky", slope=0.25)) == []


class _Lent:
    """The interpreter of the session in the place of one for a check."""

    def __init__(self, run: RunProgram) -> None:
        self.run = run

    def __enter__(self) -> RunProgram:
        return self.run

    def __exit__(self, *raised: object) -> None:
        pass


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"triton": "{x} * 2.0"}, "Triton expression '{x} \\* 2.0' gives 2 at x = 1, where the definition gives 0.841"),
        ({"torch": "torch.relu({x})"}, "torch expression .* gives 1 at x = 1, where the definition gives 0.841"),
        ({"triton": "tl.where({x} > 50, 0.0, 0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476)))"}, "at x = 100"),
    ],
)
def test_an_expression_that_is_not_the_definition_is_refused(
    given_: dict[str, str], message: str, run_program: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_op_check, "interpreter", lambda: _Lent(run_program))
    register_op("my_gelu", definition=lambda b, x: b.gelu(x), **given_)
    with pytest.raises(GraphError, match=message) as caught:
        check_custom_ops()
    assert "\n" not in str(caught.value)


def test_the_values_of_attributes_in_the_program_are_checked(run_program: RunProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_op_check, "interpreter", lambda: _Lent(run_program))
    wrong_at_seven = "tl.where({c} == 7.0, 0.0, {x} * {c})"
    register_op("times", definition=lambda b, x, c: b.scale(x, c), attributes=["c"], triton=wrong_at_seven)
    assert check_custom_ops() == []
    with pytest.raises(GraphError, match="gives 0 at x = 1, c = 7, where the definition gives 7"):
        check_custom_ops(program("times", c=7))


@pytest.mark.parametrize("domain", ["indexed", "abstract"])
def test_the_derived_rules_are_true_and_loaded_with_the_others(domain: str) -> None:
    register_op("relu2", definition=RELU2)
    register_op("clipped", arity=2, attributes=["low"], definition=lambda b, x, y, low: b.clamp(x, low, 3) * y)
    rulebook = load_rules(domain)
    theories = [it for it in rulebook.theories if it.path.startswith("register_op/")]
    assert [it.name for it in theories] == ["relu2", "clipped"]
    laws = [law for it in theories for law in it.laws]
    assert {law.name for law in laws} >= {"below relu2", "definition of relu2", "below clipped"}
    for law in laws:
        assert check_law(law, domain, rulebook.signatures, examples=100).truth is Truth.HELD
    del REGISTRY["relu2"], REGISTRY["clipped"]
    assert not [it for it in load_rules(domain).theories if it.path.startswith("register_op/")]


def test_an_op_is_proved_equal_to_its_definition_written_by_hand() -> None:
    register_op("relu2", definition=RELU2)
    graph = mi.new_kernel_graph()
    graph.mark_output(RELU2(graph, graph.new_input((4, 6), "float32", "x")))
    assert Prover(program("relu2")).prove(graph.graph()).laws == ("definition of relu2",)


def test_a_file_that_declares_the_constructor_brings_its_own_rules(tmp_path: Any) -> None:
    register_op("relu2", definition=RELU2)
    (tmp_path / "own.egg").write_text("(constructor Relu2 (E) E)\n(rewrite (Relu2 x) (Square (Relu x)))\n")
    assert not [it for it in load_rules("indexed", [tmp_path / "own.egg"]).theories if it.path.startswith("register_op/")]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "wanted a definition, or numbers, exactly, triton and torch"),
    "both": ({"definition": RELU2, "numbers": lambda xp, x: x}, "together with a definition"),
    "arity": ({"definition": RELU2, "arity": 4}, "got arity 4, wanted 1 to 3"),
    "too few operands": ({"definition": RELU2, "arity": 2}, r"wanted definition\(b, x, y\), for arity 2"),
    "not an op": ({"definition": lambda b, x: b.sinh(x)}, "definition: AttributeError: .*sinh"),
    "a matmul": ({"definition": lambda b, x: b.matmul(x, x)}, "at the thread level"),
    "a cast": ({"definition": lambda b, x: b.cast(x, "float16")}, "got a cast"),
    "an unused operand": ({"definition": lambda b, x, y: x, "arity": 2}, "the operand y is not used"),
    "a number": ({"definition": lambda b, x: 3}, "got the result 3, wanted a value of the builder"),
    "an attribute's name": ({"definition": lambda b, x, dim: x, "attributes": ["dim"]}, "the attribute 'dim'"),
    "a text of attributes": ({"definition": RELU2, "attributes": "slope"}, "wanted names"),
    "an unknown field": ({"definition": RELU2, "triton": "{x} * {slope}"}, r"wanted one in \{x\} alone"),
    "helpers alone": ({"definition": RELU2, "helpers": "def f(x): return x"}, "without a Triton expression"),
    "helpers without jit": ({"definition": RELU2, "triton": "f({x})", "helpers": "def f(x): return x"}, "@triton.jit alone"),
    "helpers that are no Python": ({"definition": RELU2, "triton": "f({x})", "helpers": "def f("}, "no Python: line 1"),
    "a taken helper": (
        {"definition": RELU2, "triton": "tanh({x})", "helpers": "@triton.jit\ndef tanh(x):\n    return x"},
        "helper name tanh is taken",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_registration_is_refused_in_one_line(name: str) -> None:
    arguments, message = BAD[name]
    with pytest.raises(GraphError, match=message) as caught:
        register_op("bad_op", **arguments)
    assert "\n" not in str(caught.value) and "bad_op" not in REGISTRY


@pytest.mark.parametrize("name", ["Relu2", "relu_2", "a__b", "_a", "", "e", "var", "const", "x-y"])
def test_a_name_that_is_no_constructor_is_refused(name: str) -> None:
    with pytest.raises(GraphError, match="wanted lower-case letters"):
        register_op(name, definition=RELU2)


def test_an_op_defined_by_itself_is_refused() -> None:
    register_op("first", definition=RELU2)
    register_op("second", definition=lambda b, x: b.op("first", x))
    with pytest.raises(GraphError, match="first is defined by itself"):
        register_op("first", definition=lambda b, x: b.op("second", x))
    with pytest.raises(GraphError, match="no such op"):
        register_op("third", definition=lambda b, x: b.op("third", x))
    assert REGISTRY["first"].definition is RELU2


def test_a_block_of_a_custom_op_costs_what_its_definition_costs() -> None:
    from mirage_eg.backends.cost.devices import DEVICES
    from mirage_eg.backends.cost.roofline_model import predict_us

    register_op("slow", definition=lambda b, x: b.exp(b.exp(b.tanh(x))))
    graph = fused("slow", (512, 512))
    assert predict_us(graph, DEVICES["H100"]) == predict_us(expand_custom(graph), DEVICES["H100"])


def test_replicated_operands_of_three_broadcast() -> None:
    register_op("blend", arity=3, definition=lambda b, x, y, z: b.add(b.mul(x, y), z))
    graph, block = mi.new_kernel_graph(), mi.new_threadblock_graph((2,))
    x, y, z = graph.new_input((4, 6), name="x"), graph.new_input((6,), name="y"), graph.new_input((4, 1), name="z")
    tiles = [block.new_input(x, (0,)), block.new_input(y, (REPLICATED,)), block.new_input(z, (0,))]
    block.new_output(block.op("blend", *tiles), (0,))
    graph.mark_output(*graph.customized([x, y, z], block))
    arrays = [np.ones((4, 6)), np.arange(6.0), np.arange(4.0)[:, None]]
    [got] = evaluate(graph.graph(), arrays, FloatAlgebra())
    np.testing.assert_array_equal(got, arrays[0] * arrays[1] + arrays[2])
