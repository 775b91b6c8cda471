"""Comparisons, where, casts and activations: one meaning in field, float64 and kernels; wrong choices are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.whole_inputs import indicator_inputs
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.compare import compare_residues
from mirage_eg.verify.random_inputs import RandomInputs
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.parameters import AMPLE

Write = Callable[[Any, Any, Any, Any], Any]  # an expression of a builder, x, y and the mask m
SHAPE = (8, 16)
PROGRAMS: dict[str, Write] = {
    "less": lambda g, x, y, m: g.less(x, y),
    "less_equal of itself": lambda g, x, y, m: g.less_equal(x, x),
    "less than a number": lambda g, x, y, m: g.less(x, 0.25),
    "equal": lambda g, x, y, m: g.equal(x, g.maximum(x, y)),
    "where": lambda g, x, y, m: g.where(m, x, y),
    "where with a number": lambda g, x, y, m: g.where(m, -1000, x),
    "where of a comparison": lambda g, x, y, m: g.where(g.less(x, y), x, g.square(y)),
    "where not": lambda g, x, y, m: g.where(1 - g.cast(m, "float16"), x, y),
    "both masks": lambda g, x, y, m: g.where(g.less(x, y) * m, x, y),
    "softmax with a mask": lambda g, x, y, m: g.softmax(x, -1, m),
    "masked softmax": lambda g, x, y, m: g.softmax(g.where(m, x, -1e4), -1),
    "cast and back": lambda g, x, y, m: g.cast(g.softmax(g.cast(x, "float32"), -1), "float16") * y,
    "rounded": lambda g, x, y, m: g.cast(g.cast(x, "float32") * 1.001, "bfloat16"),
    "neg": lambda g, x, y, m: g.neg(x),
    "reciprocal": lambda g, x, y, m: g.reciprocal(g.exp(x)),
    "leaky_relu": lambda g, x, y, m: g.leaky_relu(x, 0.2),
    "elu": lambda g, x, y, m: g.elu(x, 0.7),
    "softplus": lambda g, x, y, m: g.softplus(x),
    "mish": lambda g, x, y, m: g.mish(x),
    "gelu_tanh": lambda g, x, y, m: g.gelu_tanh(x),
}


def program(write: Write, mask: str = "bool") -> Graph:
    g = mi.new_kernel_graph()
    x, y, m = g.new_input(SHAPE, name="x"), g.new_input(SHAPE, name="y"), g.new_input((1, SHAPE[1]), mask, name="m")
    g.mark_output(write(g, x, y, m))
    return g.graph()


def fused(write: Write, mask: str = "bool") -> Graph:
    """The program as one kernel of four blocks."""
    g = mi.new_kernel_graph()
    x, y, m = g.new_input(SHAPE, name="x"), g.new_input(SHAPE, name="y"), g.new_input((1, SHAPE[1]), mask, name="m")
    block = mi.new_threadblock_graph((4,))
    tiles = block.new_input(x, (0,)), block.new_input(y, (0,)), block.new_input(m, (-1,))
    block.new_output(write(block, *tiles), (0,))
    g.mark_output(*g.customized([x, y, m], block))
    return g.graph()


def numbers(scale: float = 1.0) -> list[Any]:
    generator = np.random.default_rng(0)
    x, y = (scale * generator.standard_normal((2, *SHAPE))).astype(np.float16)
    return [x, y, generator.random((1, SHAPE[1])) < 0.5]


def exactly(graph: Graph, inputs: list[Any]) -> Any:
    [output] = evaluate(expand(graph), [x.astype(np.float64) for x in inputs], FloatAlgebra())
    return output


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernel_and_program_are_equal_in_field_and_float64(name: str) -> None:
    verdict = verify(program(PROGRAMS[name]), fused(PROGRAMS[name]))
    assert verdict.equal, verdict


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_the_kernel_computes_the_program_in_float16(name: str, scale: float, run_program: RunProgram) -> None:
    if name == "reciprocal" and scale > 1:
        pytest.skip("1 / exp(x) of large x leaves the range of float64")
    inputs = numbers(scale)
    [got] = run_program(emit(fused(PROGRAMS[name])), inputs)
    wanted = exactly(program(PROGRAMS[name]), inputs)
    within = np.abs(wanted) <= 65504
    np.testing.assert_allclose(got[within], wanted[within], rtol=1e-2, atol=2e-3)


def test_a_choice_leaves_out_infinite_numbers(run_program: RunProgram) -> None:
    def finite(g: Any, x: Any, y: Any, m: Any) -> Any:
        return g.where(g.less(x, 100), x, 7)

    inputs = numbers()
    inputs[0][2, 3] = np.inf
    [got] = run_program(emit(fused(finite)), inputs)
    wanted = exactly(program(finite), inputs)
    assert wanted[2, 3] == 7
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_all_programs_compile_as_one_kernel(target: str) -> None:
    g = mi.new_kernel_graph()
    x, y, m = g.new_input(SHAPE, name="x"), g.new_input(SHAPE, name="y"), g.new_input((1, SHAPE[1]), "bool", name="m")
    block = mi.new_threadblock_graph((4,))
    tiles = block.new_input(x, (0,)), block.new_input(y, (0,)), block.new_input(m, (-1,))
    for write in PROGRAMS.values():
        block.new_output(write(block, *tiles), (0,))
    block.new_output(block.transpose(tiles[2], (1, 0)), (-1,))  # of dtype bool
    g.customized([x, y, m], block)
    [record] = compile_source(emit(g.graph()), target)
    assert record.ok, record


WRONG: dict[str, tuple[Write, Write]] = {
    "less for less_equal": (lambda g, x, y, m: g.less_equal(x, y), lambda g, x, y, m: g.less(x, y)),
    "equal for never": (lambda g, x, y, m: g.equal(x, y) * x, lambda g, x, y, m: g.less(x, x) * x),
    "operands exchanged": (lambda g, x, y, m: g.less(x, y), lambda g, x, y, m: g.less(y, x)),
    "branches exchanged": (lambda g, x, y, m: g.where(m, x, y), lambda g, x, y, m: g.where(m, y, x)),
    "no mask": (lambda g, x, y, m: g.where(m, x, y), lambda g, x, y, m: x),
    "no mask in a maximum": (lambda g, x, y, m: g.max(g.where(m, x, y), 1), lambda g, x, y, m: g.max(g.maximum(x, y), 1)),
    "mask behind the sum": (lambda g, x, y, m: g.sum(g.where(m, x, 0), 1), lambda g, x, y, m: g.sum(x, 1) * g.max(m, 1)),
    "another slope": (lambda g, x, y, m: g.leaky_relu(x, 0.2), lambda g, x, y, m: g.leaky_relu(x, 0.3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_choice_is_refused(name: str) -> None:
    right, wrong = WRONG[name]
    verdict = verify(program(right), program(wrong))

    assert verdict.verdict is Equality.NOT_EQUAL, verdict


EQUAL: dict[str, tuple[Write, Write]] = {
    "a product is a choice": (lambda g, x, y, m: x * m, lambda g, x, y, m: g.where(m, x, 0)),
    "a mask twice": (lambda g, x, y, m: x * m * m, lambda g, x, y, m: x * m),
    "through exp": (lambda g, x, y, m: g.exp(g.where(m, x, y)), lambda g, x, y, m: g.where(m, g.exp(x), g.exp(y))),
    "not greater": (lambda g, x, y, m: g.less_equal(x, y), lambda g, x, y, m: 1 - g.less(y, x)),
    "shifted": (lambda g, x, y, m: g.less(x, y), lambda g, x, y, m: g.less(x + 2, y + 2)),
    "choice of equals": (lambda g, x, y, m: g.where(g.less(x, y), x, x), lambda g, x, y, m: x),
    "cast is the identity": (lambda g, x, y, m: g.cast(g.cast(x, "float32"), "float16"), lambda g, x, y, m: x),
}


@pytest.mark.parametrize("name", EQUAL)
def test_laws_of_indicators_hold_in_the_field(name: str) -> None:
    left, right = EQUAL[name]
    verdict = verify(program(left), program(right))
    assert verdict.equal, verdict


def test_the_search_fuses_a_choice_and_leaves_casts_out_only_if_asked() -> None:
    g = mi.new_kernel_graph()
    x, m = g.new_input((16, 64), name="x"), g.new_input((16, 64), "bool", name="m")
    wide = g.cast(g.where(m, x, g.square(x)), "float32")
    g.mark_output(g.matmul(g.cast(wide * wide, "float16"), g.new_input((64, 32), name="w")))
    plain, loose = (
        optimize("choice", g.graph(), Options(device="cpu", jobs=1, cache=False, top=1, rules=rules)).candidates[0].graph
        for rules in ((), ("94_casts",))
    )
    for graph, casts in ((plain, True), (loose, False)):
        [block] = [item["graph"] for item in graph.nodes if item.op == "block"]
        ops = {item.op for item in flatten(block).nodes}
        assert "where" in ops
        assert ("cast" in ops) is casts


def test_a_kernel_keeps_the_roundings_that_casts_ask_for(run_program: RunProgram) -> None:
    def error(g: Any, x: Any, y: Any, m: Any) -> Any:
        wide = g.cast(x, "float32") * 1.0009765625
        return wide - g.cast(g.cast(wide, "float16"), "float32")

    inputs = numbers()
    [got] = run_program(emit(fused(error)), inputs)
    wide = inputs[0].astype(np.float32) * np.float32(1.0009765625)
    np.testing.assert_array_equal(got, wide - wide.astype(np.float16).astype(np.float32))
    assert np.abs(got).max() > 0


def test_inputs_of_conditions_and_of_dtype_bool_are_indicators() -> None:
    assert indicator_inputs(program(PROGRAMS["where"])) == {2}
    assert indicator_inputs(program(lambda g, x, y, m: x + y, "bool")) == {2}
    assert indicator_inputs(program(lambda g, x, y, m: g.where(g.reshape(1 - m, (16,)), x, y), "float16")) == {2}
    assert indicator_inputs(program(lambda g, x, y, m: x * m, "float16")) == frozenset()
    assert indicator_inputs(program(lambda g, x, y, m: g.where(g.less(x, y), x, y), "float16")) == frozenset()


def test_types_follow_the_program() -> None:
    graph = program(lambda g, x, y, m: g.where(g.less(g.cast(x, "float32"), 1), x, y), "float32")
    assert str(graph.output_types[0].dtype) == "float16"
    assert serialize.from_json(serialize.to_json(graph)) == graph


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda g, x, y, m: g.exp(m), "cast them first"),
        (lambda g, x, y, m: g.sum(m, 0), "cast them first"),
        (lambda g, x, y, m: g.cast(x, "bool"), "compare it with a number"),
        (lambda g, x, y, m: g.cast(x, "int4"), "wanted one of"),
        (lambda g, x, y, m: g.where(m, 1, 0), "cast them first"),
        (lambda g, x, y, m: g.where(m, x, -np.inf), "by softmax"),
        (lambda g, x, y, m: g.softmax(x, -1, y), "wanted bool"),
        (lambda g, x, y, m: g.softmax(m, -1, m), "cast them first"),
    ],
)
def test_a_wrong_use_is_one_clear_line(write: Write, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        program(write)


def attention_to_one_key() -> Graph:
    """Masked attention at length 1, as a named dim from 1 on has it: half of the masks hide the only key."""
    graph = KernelGraph()
    q, k, v = (graph.new_input((2, *shape), "float32", name) for name, shape in (("Q", (1, 8)), ("K", (8, 1)), ("V", (1, 8))))
    graph.mark_output(graph.softmax(q @ k, 2, graph.new_input((1, 1), "bool", "mask")) @ v, "O")
    return graph.graph()


@given(st.integers(0, 2**32), st.integers(1, 2))
def test_masks_are_drawn_until_results_are_defined(seed: int, stacked: int) -> None:
    trial = RandomInputs(attention_to_one_key(), seed).field(0, stacked)
    [output] = trial.outputs
    compared = compare_residues(np, "O", output, output, trial.algebra.stack)()
    assert compared.defined >= output.residues.size / 2


def test_a_program_that_no_mask_defines_is_refused() -> None:
    graph = KernelGraph()
    x, mask = graph.new_input((4, 4), "float32", "x"), graph.new_input((4, 4), "bool", "mask")
    graph.mark_output(graph.div(graph.mul(x, mask), graph.sub(x, x)), "O")
    with pytest.raises(UnsupportedError, match="divides by zero"):
        RandomInputs(graph.graph(), 0).field(0)


@pytest.mark.parametrize("seed", range(2))
def test_no_structure_divides_indicators(seed: int) -> None:
    options = {"top": 2, "device": "cpu", "jobs": 1, "cache": False, "budget": AMPLE, "seed": seed}
    found = mi.superoptimize(attention_to_one_key(), **options)
    assert any(mugraph.candidate.fused for mugraph in found)
    assert all(mugraph.candidate.verdict.verdict is Equality.EQUAL for mugraph in found)
