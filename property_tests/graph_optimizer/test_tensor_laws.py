"""Found laws of whole tensors in the e-graph of a program: they save ops, keep classes sound, and false ones are refused."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.egraph.laws import Apply, Law, Literal, Variable
from mirage_eg.egraph.rule_files import packaged_files
from mirage_eg.graph_optimizer.group_laws import group_laws
from mirage_eg.graph_optimizer.optimize_graph import optimize_graph, saturated_classes
from mirage_eg.graph_optimizer.saturation import SaturationLimits
from mirage_eg.graph_optimizer.tensor_laws import tensor_laws, translated
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.graph import Graph
from property_tests.support.check_enodes import check_enodes
from property_tests.support.command import run_command
from property_tests.support.parameters import few

H200 = find_device("h200")
MATRIX = {"x": (8, 8), "y": (8, 8), "w": (8, 8), "u": (8, 8), "v": (8, 8)}
IMAGE = {"x": (2, 4, 6, 6), "y": (2, 4, 6, 6), "w": (4, 4, 3, 3), "u": (4, 4, 3, 3)}
LAW = '(rewrite (Unary "neg" (Unary "neg" x)) x :ruleset tensor :name "twice")'
Write = Callable[[KernelGraph, dict[str, Tensor]], Tensor]
PROGRAMS: dict[str, tuple[dict[str, tuple[int, ...]], Write, dict[str, int]]] = {
    "a product of weights": (MATRIX, lambda g, t: (t["x"] @ t["w"]) @ t["u"], {"matmul": 1}),
    "a sum of products of one weight": (MATRIX, lambda g, t: t["x"] @ t["w"] + t["y"] @ t["w"], {"matmul": 1}),
    "a concatenation of products": (
        MATRIX,
        lambda g, t: g.concat([t["x"] @ t["w"], t["x"] @ t["u"]], 1),
        {"matmul": 1, "concat": 0},
    ),
    "a product of transposes": (
        MATRIX,
        lambda g, t: g.relu(g.transpose(t["x"], (1, 0)) @ g.transpose(t["y"], (1, 0))),
        {"matmul": 1, "transpose": 1},
    ),
    "rows of products": (MATRIX, lambda g, t: g.concat([t["x"] @ t["w"], t["y"] @ t["w"]], 0), {"matmul": 1}),
    "a common factor": (MATRIX, lambda g, t: t["x"] * t["v"] + t["v"] * t["y"], {"mul": 1}),
    "a factor and a product": (MATRIX, lambda g, t: g.scale(t["x"], 3) @ t["w"], {"matmul": 1, "scale": 0}),
    "two full biases": (MATRIX, lambda g, t: t["w"] + (t["x"] + t["u"]), {"add": 1}),
    "a sum of convolutions of one image": (
        IMAGE,
        lambda g, t: g.conv2d(t["x"], t["w"], 2, 1) + g.conv2d(t["x"], t["u"], 2, 1),
        {"conv2d": 1},
    ),
    "joined convolutions": (
        IMAGE,
        lambda g, t: g.concat([g.conv2d(t["x"], t["w"], 1, 1), g.conv2d(t["x"], t["u"], 1, 1)], 1),
        {"conv2d": 1, "concat": 0},
    ),
    "a batch of convolutions": (
        IMAGE,
        lambda g, t: g.concat([g.conv2d(t["x"], t["w"], 1, 1), g.conv2d(t["y"], t["w"], 1, 1)], 0),
        {"conv2d": 1},
    ),
}


def program(shapes: dict[str, tuple[int, ...]], write: Write) -> Graph:
    graph = new_kernel_graph()
    tensors = {name: graph.new_input(shape, "float64", name=name) for name, shape in shapes.items()}
    graph.mark_output(write(graph, tensors))
    return graph.graph()


def rewrite(left: Apply, right: Apply | Variable) -> Law:
    from mirage_eg.egraph.laws import Action

    return Law("law", "here", "", "rewrite", "tensor", (), (Action("union", (left, right)),))


@pytest.mark.parametrize("name", few(sorted(PROGRAMS), 1))
def test_found_laws_save_ops_and_keep_every_class(name: str) -> None:
    shapes, write, wanted = PROGRAMS[name]
    written = program(shapes, write)
    weights = [it for it in ("w", "u", "v") if it in shapes]
    _, classes = saturated_classes(written, weights_of(written, weights), rules=("10_found",))
    check = check_enodes(written, classes)
    assert (check.different, check.unreached) == ((), 0)
    found = optimize_graph(written, H200, weights, rules=["10_found"])
    ops = Counter(item.op for item in found.graph.nodes)
    assert {op: ops[op] for op in wanted} == wanted
    assert found.verdict.equal


def test_concatenations_of_five_blocks_saturate_in_a_second() -> None:
    blocks = {f"{kind}{number}": (8, 8) for kind in "xw" for number in range(5)}
    written = program(
        blocks,
        lambda g, t: (
            g.concat([t[f"x{n}"] for n in range(5)], 1) @ g.concat([t[f"w{n}"] for n in range(5)], 0)
            + g.concat([t[f"x{n}"] @ t[f"w{n}"] for n in range(5)], 1) @ g.concat([t[f"w{n}"] for n in range(5)], 0)
        ),
    )
    weights = weights_of(written, [it for it in blocks if it.startswith("w")])
    found, _ = saturated_classes(written, weights, SaturationLimits(seconds=1.0), rules=("10_found",))
    assert found.stopped is None


def test_saturation_stops_between_laws() -> None:
    written = program(dict.fromkeys("xwu", (8, 8)), lambda g, t: t["x"] @ t["w"] + t["x"] @ t["u"])
    found, _ = saturated_classes(written, weights_of(written, ["w", "u"]), SaturationLimits(nodes=1), rules=("10_found",))
    assert (found.stopped, found.laws) == ("stopped at 1 nodes", ())


def test_a_law_is_used_in_the_direction_that_saves_an_op() -> None:
    x, y, z = map(Variable, "xyz")
    several = Apply("Add", (Apply("Matmul", (x, y)), Apply("Matmul", (x, z))))
    one = Apply("Matmul", (x, Apply("Add", (y, z))))
    assert len(translated(rewrite(several, one)).rules) == 1
    turned = translated(rewrite(one, several))
    assert turned.rules == () and "saves no op" in turned.unused


def test_weights_are_asked_for_only_where_an_op_is_saved_by_them() -> None:
    x, y, z = map(Variable, "xyz")
    left, right = Apply("Matmul", (Apply("Matmul", (x, y)), z)), Apply("Matmul", (x, Apply("Matmul", (y, z))))
    [(_, only)] = translated(rewrite(left, right)).rules
    assert "(weight y)" in only and "(weight z)" in only and "(weight x)" not in only


def test_laws_without_words_in_the_graph_language_are_left_out() -> None:
    x, y = map(Variable, "xy")
    relu = Apply("Conv2d", (Variable("window"), Variable("groups"), Literal("relu"), x, y))
    for left, right in ((Apply("Relu", (relu,)), relu), (Apply("Matmul", (x, Apply("Imatmul", (Variable("n"),)))), x)):
        found = translated(rewrite(left, right))
        assert found.rules == () and "no word" in found.unused


def test_laws_of_a_file_are_added_and_checked(tmp_path: Path) -> None:
    (tmp_path / "true.egg").write_text(
        '; domain: tensor\n(rewrite (Unary "neg" (Unary "neg" x)) x :ruleset tensor :name "twice")\n'
    )
    assert "tensor: twice" in tensor_laws((str(tmp_path / "true.egg"),))
    (tmp_path / "false.egg").write_text(
        '; domain: tensor\n(rewrite (Matmul (Matmul x y) z) (Matmul x z) :ruleset tensor :name "f")\n'
    )
    written = program(MATRIX, lambda g, t: t["x"] @ t["w"] @ t["y"])
    with pytest.raises(RuleError, match=r"false\.egg: a law is false"):
        optimize_graph(written, H200, rules=[str(tmp_path / "false.egg")])


@pytest.mark.parametrize(
    "text",
    [
        "; domain: indexed\n",
        "",
        "; domain: tensor\n(rewrite (Add x y)\n",
        "; domain: tensor\n(rewrite x y :bad)\n",
        f"; domain: tensor\n{LAW}\n) {LAW}\n",
        f"; domain: tensor\n{LAW} output\n",
        f"; domain: tensor\n(rewrite {'(Relu ' * 20_000}x{')' * 20_000} x)\n",
    ],
)
def test_a_wrong_rule_file_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "laws.egg"
    file.write_text(text)
    code, _, error = run_command(capsys, "rewrite", "rmsnorm", "--rules", str(file), "--out", str(tmp_path / "out"))
    assert code == 2 and error.count("\n") == 1 and "laws.egg" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        '(output "{path}" (Input "x"))',
        '(print-function shape 9 :file "{path}")',
        '(input shape "{path}")',
        '(include "{path}")',
        '(fail (include "{path}"))',
        '(let x (Input "x"))',
        "(push)",
        '(run-schedule (saturate "tensor"))',
    ],
)
def test_a_rule_file_runs_no_command(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, rules, secret = (tmp_path / name for name in ("written", "laws.egg", "secret"))
    secret.write_text("a secret")
    for path in (written, secret):
        rules.write_text(f"; domain: tensor\n{LAW}\n{command.format(path=path)}\n")
        code, out, error = run_command(capsys, "rewrite", "rmsnorm", "--rules", str(rules), "--out", str(tmp_path / "out"))
        assert code == 2 and error.count("\n") == 1 and "laws.egg:3: " in error and "a secret" not in out + error
        assert not written.exists() and secret.read_text() == "a secret"


@pytest.mark.parametrize("place", ["(Unary {0} (Unary {0} x))", '(Unary "neg" (Unary "neg" x))'])
def test_a_text_of_a_law_stays_a_text(place: str, tmp_path: Path) -> None:
    rules, written = tmp_path / "laws.egg", tmp_path / "written"
    text = str(Literal(f'neg") (output "{written}" (Input "x")) (rule () () :name "'))
    rules.write_text(f"; domain: tensor\n(rewrite {place.format(text)} x :ruleset tensor :name {text})\n")
    optimize_graph(program(MATRIX, lambda g, t: g.relu(t["x"])), H200, rules=[str(rules)])
    assert not written.exists()


def groups_of(lines: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The groups of the shipped file if it has, of all rules for members, those with this text only."""
    [language, found] = packaged_files("tensor")
    kept = [it for it in found.text.splitlines() if ":ruleset members" not in it or lines in it]
    files = [language, replace(found, text="\n".join(kept))]
    monkeypatch.setattr("mirage_eg.graph_optimizer.group_laws.packaged_files", lambda _: files)
    return group_laws.__wrapped__()


def test_groups_come_from_the_shipped_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert groups_of("of no op", monkeypatch) == ""
    products, convolutions = groups_of("(Matmul x (Hole))", monkeypatch), groups_of("x (Hole)) 0 1 e)", monkeypatch)
    assert sorted(f"{products}\n{convolutions}".splitlines()) == sorted(group_laws().splitlines())
    assert "Conv" not in products and "Matmul" not in convolutions and products and convolutions


def test_groups_that_share_a_weight_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their joined operands are computed in each run."""
    assert groups_of("(Matmul (Hole) y)", monkeypatch) == groups_of('"none" (Hole) y)', monkeypatch) == ""
