"""A false law of the user, or a proof that fails its check, ends no run."""

from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.false_laws import without_false_laws
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.evidence import verify_candidates

FALSE = '(rewrite (Tanh (Tanh x)) (Tanh x) :name "tanh twice")'
TRUE = '(rewrite (Tanh (Scale -1 x)) (Scale -1 (Tanh x)) :name "tanh is odd here")'


def rules(folder: Path, *laws: str) -> str:
    path = folder / "my.egg"
    path.write_text("\n".join(["; domain: indexed", *laws]))
    return str(path)


def test_a_run_goes_on_without_a_false_law_and_names_it(tmp_path: Path) -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 64), name="x"), graph.new_input((64, 32), name="w")
    graph.mark_output(graph.tanh(graph.tanh(graph.matmul(x, w))))
    options = Options(device="cpu", jobs=1, top=1, cache=False, rules=(rules(tmp_path, TRUE, FALSE),))
    result = optimize("tanh", graph.graph(), options)
    assert result.candidates[0].fused and result.candidates[0].verdict.equal
    [note] = [note for note in result.report.notes if "is false" in note]
    assert "my.egg:3: law 'tanh twice' is false: (Tanh (Tanh x)) = (Tanh x); x = 1; left:  0.642" in note
    assert note.endswith("the run continues without it")


def test_only_the_false_laws_are_left_out(tmp_path: Path) -> None:
    rulebook, notes = without_false_laws(load_rules("indexed", [rules(tmp_path, TRUE, FALSE)]))
    names = {law.name for law in rulebook.laws}
    assert "tanh is odd here" in names and "tanh twice" not in names
    assert len(notes) == 1


def test_packaged_laws_are_not_tested_again() -> None:
    packaged = load_rules("indexed")
    assert without_false_laws(packaged) == (packaged, ())


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_chain_through_undefined_terms_is_checked_where_its_ends_are(factor: int) -> None:
    def graph(root: bool) -> Graph:
        program = mi.new_kernel_graph()
        x = program.new_input((4, 8), name="x")
        left = program.sqrt(program.square(x)) if root else program.abs(x)
        program.mark_output(program.add(program.scale(left, factor), program.square(program.sqrt(x))))
        return program.graph()

    [(verdict, _)] = verify_candidates(graph(True), {"0": graph(False)})
    assert "proved" in verdict.evidence and verdict.unproved_because is None
