"""The tests of a user: an op, laws and a µGraph of one's own, with `mirage_eg.testing` and the public names alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.testing import (
    TAME,
    Assignment,
    as_program,
    assert_equal,
    assert_law_sound,
    assert_rules_sound,
    assignments,
    block_graphs,
    mutants,
    programs,
)

LAW = "(rewrite (Div x (Sqrt y)) (Mul x (Rsqrt y)))"


@pytest.fixture(scope="module", autouse=True)
def squared_relu() -> Iterator[None]:
    """The user's op; the other tests of the process do not see it."""
    mi.register_op("my_relu2", definition=lambda b, x: b.square(b.relu(x)))
    yield
    from mirage_eg.ir.op.elementwise import REGISTRY  # no user needs this

    del REGISTRY["my_relu2"]


def mugraph(columns: int = 8) -> mi.Graph:
    """√(Σ my_relu2(x)) over rows in one kernel of two blocks with a loop of two steps."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, columns), mi.float32, "x")
    block = mi.new_threadblock_graph((2,), forloop_range=2)
    tile = block.new_input(x, (0,), 1)
    block.new_output(block.sqrt(block.forloop_accum(block.op("my_relu2", tile), "sum", 1)), (0,))
    graph.mark_output(*graph.customized([x], block))
    return graph.graph()


def program() -> mi.KernelGraph:
    """The same without kernels."""
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.sqrt(graph.sum(graph.square(graph.relu(graph.new_input((4, 8), mi.float32, "x"))), 1)))
    return graph


def test_my_mugraph_computes_my_program() -> None:
    assert_equal(program(), mugraph())


def test_a_wrong_mugraph_is_shown_with_its_difference() -> None:
    wrong = mi.new_kernel_graph()
    wrong.mark_output(wrong.sqrt(wrong.sum(wrong.square(wrong.new_input((4, 8), mi.float32, "x")), 1)))
    with pytest.raises(AssertionError, match="not equal: first difference at"):
        assert_equal(program(), wrong)


def test_a_mugraph_of_other_types_is_an_error_of_the_test() -> None:
    with pytest.raises(mi.GraphError, match="graph: got"):
        assert_equal(program(), mugraph(columns=16))


@given(data=st.data())
def test_no_mutant_of_my_mugraph_computes_it(data: st.DataObject) -> None:
    mutant = data.draw(mutants(mugraph()))
    with pytest.raises(AssertionError):
        assert_equal(mugraph(), mutant)


def test_my_law_is_sound_and_another_is_refuted_by_numbers() -> None:
    assert_law_sound(LAW)
    assert_law_sound("(constructor Half (E) E)\n(birewrite (Half x) (Scale 1/2 x))\n(rewrite (Half (Scale 2 x)) x)")
    assert_law_sound("(rewrite (Sum n (Mul x y)) (Mul x (Sum n y)))", domain="abstract")
    with pytest.raises(AssertionError, match="is refuted") as caught:
        assert_law_sound("(rewrite (Sqrt (Add x y)) (Add (Sqrt x) (Sqrt y)))")
    assert "x = 1" in str(caught.value) and "right: 2" in str(caught.value)


@pytest.mark.slow
def test_my_rule_file_is_sound_and_a_wrong_one_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "right.egg").write_text(f"{LAW}\n")
    assert_rules_sound(tmp_path)
    (tmp_path / "wrong.egg").write_text(
        "; two laws\n(rewrite (Exp (Add x y)) (Add (Exp x) (Exp y)))\n(rewrite (Sub (Add x y) y) x)\n"
    )
    with pytest.raises(AssertionError) as caught:
        assert_rules_sound([tmp_path / "right.egg", tmp_path / "wrong.egg"])
    assert "wrong.egg:2" in str(caught.value) and "wrong.egg:3" in str(caught.value) and "right.egg" not in str(caught.value)


@given(assignment=assignments("(birewrite (Sum i (Add x y)) (Add (Sum i x) (Sum i y)))"))
def test_a_true_law_holds_at_every_assignment(assignment: Assignment) -> None:
    assert set(assignment.values) == {"i", "x", "y"} and assignment.values["i"] in assignment.sizes
    assert assignment.counterexample() is None


def test_a_false_law_is_refuted_at_some_assignment() -> None:
    @given(assignment=assignments("(rewrite (Mean i x) (Sum i x))"))
    def holds(assignment: Assignment) -> None:
        assert assignment.counterexample() is None

    with pytest.raises(AssertionError):
        holds()


@given(data=st.data())
def test_my_op_is_drawn_and_survives_json(data: st.DataObject) -> None:
    graph = data.draw(programs(ops={"my_relu2", "add", "matmul", "sum"}))
    assert {item.op for item in graph.nodes} <= {"input", "output", "my_relu2", "add", "matmul", "sum"}
    assert mi.from_json(mi.to_json(graph)) == graph


@given(block=block_graphs(TAME), data=st.data())
def test_a_block_graph_is_a_program_and_has_mutants_of_its_types(block: mi.Graph, data: st.DataObject) -> None:
    graph = as_program(block)
    assert graph.output_types == block.output_types
    try:
        mutant = data.draw(mutants(graph))
    except mi.GraphError as error:
        assert "wanted a block graph" in str(error)
    else:
        assert mutant != graph and (mutant.input_types, mutant.output_types) == (graph.input_types, graph.output_types)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: programs(ops={"sinh"}), "programs: got 'sinh', wanted a set of ops"),
        (lambda: block_graphs(ops=()), "block_graphs: got no ops"),
        (lambda: mutants(program().graph()), "mutants: got a graph without a change"),
        (lambda: assignments("(relation big (E))"), "got a text with 0 laws, wanted 1"),
        (lambda: assignments("(rewrite (Sinh x) x)"), "law:1: Unbound function Sinh"),
        (lambda: assert_law_sound("; nothing"), "without laws"),
        (lambda: assert_law_sound("(rewrite (Add x y) (Add y x))", domain="numbers"), "got domain 'numbers'"),
        (lambda: assert_rules_sound("nowhere.egg"), "nowhere.egg: cannot be read"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(call: object, message: str) -> None:
    with pytest.raises(mi.MirageError, match=message) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
