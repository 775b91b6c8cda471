"""A program being written has the JSON text and the e-graph of the program so far."""

import pytest

import mirage_eg as mi


@pytest.mark.parametrize("name", [None, "x"])
def test_a_program_being_written_is_written_as_it_is_so_far(name: str | None) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 4), name=name) if name else graph.new_input((4, 4))
    graph.mark_output(graph.relu(x))
    before = mi.to_json(graph)
    assert before == mi.to_json(graph.graph())
    assert mi.from_json(before) == graph.graph()
    graph.mark_output(graph.exp(x))
    assert mi.to_json(graph) == mi.to_json(graph.graph()) != before


def test_the_e_graph_of_a_program_with_unnamed_inputs_names_them_by_place() -> None:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.add(graph.new_input((4, 4)), graph.new_input((4, 4), name="y")))
    found = mi.egraph(graph)
    assert found.ask("(Add x0 y)").class_ is not None


def test_a_proof_does_not_depend_on_earlier_questions() -> None:
    graph = mi.new_kernel_graph()
    x, y = graph.new_input((4, 4), name="x"), graph.new_input((4, 4), name="y")
    graph.mark_output(graph.exp(graph.add(x, y)))
    questions = [
        ("(Exp (Add x y))", "(Mul (Exp x) (Exp y))"),
        ("(Exp (Add x y))", "(Mul (Exp y) (Exp x))"),
        ("(Add x y)", "(Add y x)"),
    ]
    alone = [str(mi.egraph(graph).prove(*question)) for question in questions]
    one = mi.egraph(graph)
    assert [str(one.prove(*question)) for question in questions] == alone
    another = mi.egraph(graph)
    assert [str(another.prove(*question)) for question in reversed(questions)] == alone[::-1]
