"""`mi.egraph`: what is asked, listed, extracted, proved and drawn agrees with the e-graph; bad input is one line."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.egraph.chain_checker import check_chain
from mirage_eg.egraph.node_costs import CostedNode
from mirage_eg.egraph.oracle import Limits, children_of
from mirage_eg.egraph_api import EGraph
from mirage_eg.ir.errors import GraphError, MirageError, OptionError
from property_tests.support.command import run_command

NAMES = ("rmsnorm", "lora", "gqa")

GATE = """
import mirage_eg as mi

def program():
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 64), name="x")
    g = graph.new_input((4, 64), name="gate")
    graph.mark_output(graph.mul(graph.sqrt(graph.square(x)), graph.tanh(g)), "y")
    return graph
"""


@cache
def opened(name: str) -> EGraph:
    return mi.egraph(name)


def test_the_package_is_called_and_holds_its_modules() -> None:
    assert isinstance(opened("rmsnorm"), mi.EGraph)
    assert mi.egraph.oracle.Limits is Limits  # type: ignore[attr-defined]


@given(st.data())
def test_each_form_of_a_class_is_in_that_class_and_there_is_no_second_of_it(data: st.DataObject) -> None:
    found = opened(data.draw(st.sampled_from(NAMES)))
    class_ = data.draw(st.sampled_from(sorted(found.classes())))
    forms = found.forms(class_, data.draw(st.integers(1, 8)))
    assert forms and len(set(forms)) == len(forms)
    assert all(found.ask(form).class_ == class_ for form in forms)
    assert found.forms(forms[0], 1) == (found.forms(class_, 1)[0],)


@given(st.data())
def test_two_forms_are_proved_equal_in_steps_if_they_are_of_one_class(data: st.DataObject) -> None:
    found = opened(data.draw(st.sampled_from(NAMES)))
    one, two = data.draw(st.lists(st.sampled_from(sorted(found.classes())), min_size=2, max_size=2))
    left, right = data.draw(st.sampled_from(found.forms(one, 4))), data.draw(st.sampled_from(found.forms(two, 4)))
    proof = found.prove(left, right)
    assert proof.equal == (one == two) == bool(proof)
    if proof.equal:
        assert proof.chain is not None and (proof.chain.start, proof.chain.end) == (left, right)
        check_chain(proof.chain, found.rulebook)
    else:
        assert proof.reason


def test_what_is_missing_is_named_with_the_nearest_part_that_is_there() -> None:
    found = opened("rmsnorm")
    answer = found.ask("(Div (Sum j.t (Mul X W)) (Sqrt (Mean j.t (Square X))))")
    assert not answer and answer.missing == "(Sum j.t (Mul X W))"
    assert answer.nearest == "(Sqrt (Mean j.t (Square X)))"
    assert answer.nearest_class == found.ask(answer.nearest).class_
    assert "is not in the e-graph" in str(answer)
    assert "no part of an axis is k.t: they are i, j.t" in str(found.ask("(Sum k.t (Mul X W))"))
    assert found.ask("(Mul X (Mul W g))")


@pytest.mark.parametrize("name", NAMES)
def test_extraction_gives_a_cheapest_term_of_each_output(name: str) -> None:
    found = opened(name)
    terms = found.extract()
    assert [found.ask(term).class_ for term in terms] == list(found.outputs)
    assert [term.count("(") for term in terms] == [found.forms(output, 1)[0].count("(") for output in found.outputs]
    dear = found.extract({"Mul": 100.0})
    assert sum(term.count("(Mul") for term in dear) <= sum(term.count("(Mul") for term in terms)


@pytest.mark.parametrize("name", NAMES)
def test_the_history_ends_at_the_size_of_the_saturated_e_graph(name: str) -> None:
    found = opened(name)
    history = found.history
    assert history.stopped is None and history.nodes[-1] == found.saturation.nodes
    assert history.nodes[0] + sum(row.nodes for row in history.rows) == history.nodes[-1]
    assert history.classes[-1] == len(found.classes())
    assert all(row.nodes or row.unions for row in history.rows)
    assert {law for law, _, _ in history.by_law()} <= {law.name for law in found.rulebook.laws}


def test_an_input_with_two_names_of_an_axis_is_two_inputs() -> None:
    residual, recurrent = mi.new_kernel_graph(), mi.new_kernel_graph()
    x, w = residual.new_input((4, 8), name="X"), residual.new_input((8, 8), name="W")
    residual.mark_output(x + x @ w)
    found = mi.egraph(residual)
    assert found.names == ("X", "W", "X_2") and found.ask("(Add X_2 (Sum j.t (Mul X W)))")
    h, w = recurrent.new_input((4, 8), name="H"), recurrent.new_input((8, 8), name="W")
    recurrent.mark_output(recurrent.tanh(recurrent.tanh(h @ w) @ w))
    assert sorted(mi.egraph(recurrent).names) == ["H", "W", "W_2"]


def test_json_has_the_names_of_inputs_and_costs() -> None:
    found = opened("rmsnorm")
    data = json.loads(found.to_json({"Mul": 7.0}))
    nodes = data["nodes"].values()
    assert {"X", "g", "W"} <= {node["op"] for node in nodes}
    assert {node["cost"] for node in nodes if node["op"] == "Mul"} == {7.0}
    assert len(nodes) == sum(map(len, found.classes().values()))


def test_the_drawing_has_a_line_to_each_class_that_an_e_node_takes() -> None:
    found = opened("rmsnorm")
    picture = found.view(boxes=1000).to_svg()
    lines = [item for item in ElementTree.fromstring(picture).iter() if item.tag.endswith("}path")]
    table = found.oracle.table
    shown = [key for key, class_ in table.items() if sum(class_ == other for other in table.values()) <= 12]
    assert len(lines) >= sum(len(set(children_of(found.oracle, key))) for key in shown) > 20
    assert "prefers-color-scheme: dark" in picture
    assert found.view(["(Mul g W)"]).to_svg().count('class="mg-prologue"') == 1


def test_laws_theories_and_axes_are_chosen_by_name(tmp_path: Path) -> None:
    less = mi.egraph("rmsnorm", without=["mul commutes", "30_scale"])
    assert less.saturation.nodes < opened("rmsnorm").saturation.nodes
    assert opened("rmsnorm").prove("(Mul g W)", "(Mul W g)")
    assert not less.prove("(Mul g W)", "(Mul W g)")
    assert "loop over j" in repr(mi.egraph("rmsnorm", loop="j"))
    assert mi.egraph("rmsnorm", loop="j").ask("(Sum j.l (Sum j.t (Mul X (Mul g W))))")
    cut = mi.egraph("rmsnorm", limits={"iterations": 1})
    assert "CUT: stopped after 1 iterations" in repr(cut)
    (tmp_path / "my.egg").write_text(
        '; domain: indexed\n(rewrite (Tanh x) (Tanh (Abs x)) :when ((above_zero x)) :name "own")\n'
    )
    (tmp_path / "gate.py").write_text(GATE)
    own = mi.egraph(tmp_path / "gate.py", rules=[tmp_path / "my.egg"])
    assert own.prove("(Sqrt (Square x))", "(Abs x)") and "own" in {law.name for law in own.rulebook.laws}


def test_the_example_of_the_oracle_page_prints_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/oracle.md").read_text(encoding="utf-8")
    code, shown = (block.split("\n", 1)[1] for block in page.split("```")[1::2])
    names: dict[str, EGraph] = {}
    exec(code, names)
    assert shown.strip() == str(names["e"].explain("(Mul g W)"))


BAD = {
    "domain": ({"domain": "real"}, OptionError, "wanted indexed or abstract"),
    "axis": ({"loop": "q"}, OptionError, r"wanted a reduced axis \(j\)"),
    "theory": ({"without": ["no law"]}, MirageError, "no law"),
    "limit": ({"limits": {"memory": 3}}, OptionError, "wanted one of iterations, nodes, seconds"),
    "negative": ({"limits": {"nodes": -1}}, OptionError, "wanted positive numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_option_is_one_error(name: str) -> None:
    options, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        mi.egraph("rmsnorm", **options)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="wanted a program"):
        mi.egraph(3)  # type: ignore[arg-type]


TERMS = [
    "(Mul X",
    "(Mull X g)",
    "(Mul X g W)",
    "(Scale x X)",
    "Y",
    "#99",
    "",
    '("X',
    "(Sum j.t)",
    ")",
    "X X",
    "(Mul X #99)",
    "(" * 900,
]


@pytest.mark.parametrize("text", TERMS)
def test_a_text_that_is_no_term_is_one_error_with_its_place(text: str) -> None:
    with pytest.raises(OptionError, match=r"^term[,:]") as error:
        opened("rmsnorm").ask(text)
    assert "\n" not in str(error.value)


@given(st.text(alphabet='()#"\\ XgWMulj.t0/', max_size=30))
def test_any_text_is_a_term_or_an_error(text: str) -> None:
    with suppress(OptionError):
        opened("rmsnorm").ask(text)


def test_the_command_writes_each_kind_of_file_and_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    for suffix, start in ((".svg", "<svg"), (".html", "<!doctype html>"), (".json", '{"nodes"')):
        path = tmp_path / f"made/x{suffix}"
        assert run_command(capsys, "egraph", tmp_path / "gate.py", "--out", path)[0] == 0
        assert path.read_text().startswith(start)
    code, out, _ = run_command(capsys, "egraph", "rmsnorm", "--ask", "(Mul g W)", "--prove", "(Mul g W)", "(Mul W g)")
    assert code == 0 and "(Mul g W) is in class #" in out and "equal by 1 step" in out
    code, out, _ = run_command(capsys, "egraph", "rmsnorm", "--ask", "(Exp X)", "--json")
    assert code == 1 and json.loads(out)["answers"][0]["nearest"] == "X"
    code, out, _ = run_command(capsys, "egraph", "rmsnorm")
    assert code == 0 and "mul commutes" in out


@pytest.mark.parametrize(
    "arguments", [("--ask", "(Mul"), ("--out", "x.pdf"), ("--out", "/proc/1/x.svg"), ("--loop", "q"), ("--without", "no law")]
)
def test_bad_input_of_the_command_is_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "egraph", "rmsnorm", *arguments)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and not list(tmp_path.iterdir())


def divided(first: bool) -> mi.Graph:
    """The sum of X · g, divided by a number of each row before or after the sum."""
    graph = mi.new_kernel_graph()
    x, w, n = (graph.new_input(shape, name=name) for shape, name in (((8, 64), "X"), ((64, 16), "W"), ((8, 1), "n")))
    graph.mark_output(graph.matmul(graph.div(x, n), w) if first else graph.div(graph.matmul(x, w), n))
    return graph.graph()


@pytest.mark.parametrize("first", [False, True])
def test_of_equally_many_ops_the_division_after_the_sum_is_extracted(first: bool) -> None:
    [term] = mi.egraph(divided(first)).extract()
    assert term.startswith("(Div (Sum ")


def test_a_cost_sees_op_constants_axes_and_extents() -> None:
    found, seen = mi.egraph(divided(first=True)), list[CostedNode]()

    def cost(node: CostedNode) -> float:
        seen.append(node)
        return 1 / node.elements

    [term] = found.extract(cost)
    assert "(Div (Sum" not in term, "the more elements the cheaper: the division comes before the sum"
    sums = {(node.constants, node.elements, tuple(node.result.values())) for node in seen if node.op == "Sum"}
    assert (("j.t",), 8 * 64 * 16, (8, 16)) in sums


def test_shared_terms_cost_once() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 8), name="X")
    root = graph.exp(graph.tanh(x))
    graph.mark_output(graph.add(root, graph.mul(root, root)))
    found = mi.egraph(graph.graph())
    [once], [often] = (found.extract({"Exp": 10.0, "Square": 5.0}, shared=shared) for shared in (True, False))
    assert "(Mul (Exp (Tanh X)) (Exp (Tanh X)))" in once, "the second exponential is free"
    assert "(Mul (Exp (Tanh X)) (Exp (Tanh X)))" not in often
