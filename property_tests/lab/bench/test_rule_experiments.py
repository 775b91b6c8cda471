"""Impact, ablation and comparison of laws: their figures are those of searches with these laws, their µGraphs are equal."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.ablation import KEPT
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import RuleError
from mirage_eg.lab.bench.rule_ablation import ablation, equations
from mirage_eg.lab.bench.rule_comparison import comparison, rule_set
from mirage_eg.lab.bench.rule_impact import impact
from mirage_eg.lab.bench.rule_search import rule_search
from mirage_eg.lab.bench.search_programs import SearchProgram, search_programs
from mirage_eg.lab.rule_pages import ablation_html, comparison_html, found_rows, impact_html, impact_pictures
from mirage_eg.search.structure_search import SearchLimits
from mirage_eg.verify.reference import Reference
from property_tests.support.command import run_command

INVERSE = '(rewrite (Div x (Sqrt y)) (Mul x (Rsqrt y)) :name "inverse root")'
MINUS = "Scale (bigrat (bigint -1) (bigint 1))"
TANH = f'(rewrite (Tanh ({MINUS} x)) ({MINUS} (Tanh x)) :name "tanh is odd")'
LIMITS = SearchLimits(7)


def rule_file(folder: Path, *laws: str) -> Path:
    path = folder / "my.egg"
    path.write_text("\n".join(["; domain: indexed", *laws]) + "\n", encoding="utf-8")
    return path


def gated() -> KernelGraph:
    """√x · tanh of a product: small, so that all of it is cheap."""
    program = new_kernel_graph()
    x, w = program.new_input((16, 64), name="X"), program.new_input((64, 32), name="W")
    product = program.matmul(x, w)
    program.mark_output(program.div(program.tanh(product), program.sqrt(program.square(product))), "y")
    return program


@pytest.fixture(scope="module")
def part() -> SearchProgram:
    [only] = search_programs("rmsnorm", WORKLOADS["rmsnorm"](1))
    return only


@pytest.mark.slow
def test_new_mugraphs_need_the_law_and_compute_the_program(tmp_path: Path) -> None:
    found = impact(rule_file(tmp_path, INVERSE, TANH), [gated()], limits=LIMITS)
    [row] = found.programs
    inverse, odd = row.laws
    assert inverse.matches > 0 and inverse.structures == len(row.found) >= len(found.graphs()) > 0
    assert (odd.matches, odd.structures) == (0, 0) and [law.law for law in found.never_matched()] == ["tanh is odd"]
    assert all(new.only_with == ("inverse root",) and "rsqrt" in new.structure for new in row.found)
    us = [new.us for new in row.found if new.us is not None]
    assert us == sorted(us) and all(new.us is not None for new in row.found[: len(us)])
    assert row.best_us_with is not None and row.best_us_without is not None and row.best_us_with <= row.best_us_without
    assert all((new.proof and new.verdict.startswith("proved")) or "no tiling" in new.verdict for new in row.found)
    reference = Reference(gated().graph())
    assert all(reference.check(graph).equal for graph in found.graphs())
    assert "<table>" in impact_html(found)
    loads = {line.split()[2] for new in row.found for line in new.steps if line.split()[1] == "load"}
    assert loads >= {"X", "W"} and loads.isdisjoint({"0", "1"}), "inputs by name; partial results by number"
    ideas = found_rows(found, most=len(row.found))
    assert len(ideas) < len(row.found) and any("alike" in structure for _, structure, *_ in ideas)
    [picture] = impact_pictures(found).values()
    bars = re.findall(r'<text[^>]*text-anchor="end"[^>]*>(.*?)</text>', picture)
    assert "matmul(X, W)" in picture.replace("matmul(W, X)", "matmul(X, W)") and len(bars) <= len(ideas) + 1
    assert "inverse root" in picture and "best without the file" in picture


def test_a_file_without_a_matching_law_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no law matches in program 1"):
        impact(rule_file(tmp_path, TANH), [gated()], limits=LIMITS)


def test_what_is_lost_without_a_law_is_what_a_search_without_it_lacks(part: SearchProgram) -> None:
    rules = load_rules("indexed")
    names = ["mul commutes", "sums commute", "log of exp"]
    result = ablation([part], rules, LIMITS, names, jobs=1)
    [row] = result.programs
    assert [law.law for law in row.laws] == [law.name for law in rules.laws if law.name in names]
    for law in row.laws:
        without = rule_search(part, load_rules("indexed", without=[law.law]), LIMITS)
        assert (law.visited, law.nodes) == (without.side.visited, without.side.nodes)
        assert row.baseline.structures - law.lost + law.gained == without.side.structures
    assert result.without_change() == ("sums commute", "log of exp")
    assert "mul commutes" in ablation_html(result)


def quotients(program: KernelGraph) -> Tensor:
    x, y = (program.new_input((64, 512), name=name) for name in "XY")
    total = program.reduction(x, 1)
    return program.reduction(program.sub(program.div(x, total), program.div(y, total)), 1)


def means(program: KernelGraph) -> Tensor:
    x = program.new_input((64, 512, 16), name="X")
    return program.sqrt(program.mean(program.mean(program.square(x), 2), 1))


def scales(program: KernelGraph) -> Tensor:
    x, y = program.new_input((64, 512), name="X"), program.new_input((64, 1), name="Y")
    return program.reduction(program.square(program.scale(program.div(x, y), 3.0)), 1)


def logarithms(program: KernelGraph) -> Tensor:
    x, y = (program.new_input((64, 512), name=name) for name in "XY")
    ratio = program.div(program.reduction(program.exp(y), 1), program.reduction(program.exp(x), 1))
    return program.reduction(program.log(program.mul(program.sigmoid(x), ratio)), 1)


@pytest.mark.parametrize(
    ("build", "law", "lost", "of"),
    [
        (quotients, "div distributes over sub", 43, 89),
        (means, "means commute", 11, 19),
        (scales, "scale of a quotient", 52, 104),
        (logarithms, "exponentials are above zero", 8, 84),
        (logarithms, "sum above zero", 8, 84),
    ],
)
def test_laws_kept_for_other_programs(build: Callable[[KernelGraph], Tensor], law: str, lost: int, of: int) -> None:
    program = new_kernel_graph()
    program.mark_output(build(program))
    [only] = search_programs("kept", program.graph())
    rules = load_rules("indexed")
    found, without = (rule_search(only, book, SearchLimits()) for book in (rules, rules.leaving_out([law])))
    assert (len(found.only(without)), found.side.structures) == (lost, of)
    assert f"loses {lost} of {of} structures" in KEPT[law]


@pytest.mark.parametrize("domain", ["indexed", "abstract"])
def test_equations_are_all_laws_but_those_on_axes_and_subexpressions(domain: str) -> None:
    rules = load_rules(domain)
    left = {law.name for law in rules.laws} - {law.name for law in equations(rules)}
    assert left and all(name.startswith(("axes of ", "below ")) for name in left)


def test_a_rule_set_compared_with_itself_differs_in_nothing(part: SearchProgram) -> None:
    same = comparison([part], ("a", rule_set("indexed")), ("b", rule_set("indexed")), LIMITS)
    [row] = same.programs
    assert row.only_a == row.only_b == () and row.a.structures == row.b.structures > 0
    fewer = comparison([part], ("a", rule_set("indexed")), ("b", rule_set("indexed", ["mul commutes"])), LIMITS)
    [row] = fewer.programs
    assert row.only_a and not row.only_b and row.b.nodes < row.a.nodes
    assert "only in" in comparison_html(fewer)


def test_a_rule_set_is_a_domain_a_theory_a_file_or_a_language_of_its_own(tmp_path: Path) -> None:
    file = rule_file(tmp_path, INVERSE)
    assert "inverse root" in {law.name for law in rule_set(file).laws}
    assert "inverse root" not in {law.name for law in rule_set(file, ["inverse root"]).laws}
    assert len(rule_set("91_inverse_roots").laws) == len(rule_set("indexed").laws) + 1
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in (Path(__file__).parents[3] / "rules" / "indexed").glob("0*.egg"):
        shutil.copy(path, alone)
    law = '(rewrite (Mul x y) (Mul y x) :ruleset equivalence :name "mul commutes")'
    (alone / "10_products.egg").write_text(f"(constructor Mul (E E) E)\n{law}\n")
    own = rule_set(alone)
    assert 0 < len(own.laws) < len(rule_set("indexed").laws)
    assert len(rule_set(alone, ["mul commutes"]).laws) == len(own.laws) - 1


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        code, out, err = run_command(capsys, *arguments)
        assert code == 0, err
        return out

    return call


@pytest.mark.slow
def test_the_folder_of_impact_has_figures_and_mugraphs(tmp_path: Path, run: Callable[..., str]) -> None:
    program = tmp_path / "gated.json"
    program.write_text(serialize.to_json(gated().graph()))
    bounds = ("--top", "3", "--proofs", "1", "--out", str(tmp_path / "o"))
    out = run("rules", "impact", str(rule_file(tmp_path, INVERSE, TANH)), str(program), *bounds)
    assert "gated: of 4 new structures: 2 without a µGraph" in out and "; 1 tested and not proved (--proofs 1)" in out
    assert "gated: newly found: " in out and " → " in out and "warning: " in out and "'tanh is odd' matches in none" in out
    data = json.loads((tmp_path / "o" / "impact.json").read_text())
    found = data["programs"][0]["found"]
    assert serialize.load(tmp_path / "o" / "gated-01.json") == serialize.from_json(json.dumps(found[0]["graph"]))
    drawn = sorted(path.name for path in (tmp_path / "o").glob("*.svg"))
    assert drawn == [*(f"gated-{rank:02}.svg" for rank, new in enumerate(found, 1) if new["graph"]), "gated.svg"]


def test_ablate_and_compare_print_tables(tmp_path: Path, run: Callable[..., str]) -> None:
    program = tmp_path / "gated.json"
    program.write_text(serialize.to_json(gated().graph()))
    text = run("rules", "ablate", str(program), "--law", "mul commutes", "--law", "log of exp", "--jobs", "1")
    assert "none" in text and "of 2 laws change no structure" in text
    text = run("rules", "compare", "indexed", "abstract", str(program))
    assert "A: indexed | B: abstract" in text
    data = json.loads(run("rules", "compare", "indexed", "abstract", str(program), "--json"))
    assert data["programs"][0]["a"]["nodes"] < data["programs"][0]["b"]["nodes"]
    assert load_program(str(program))[0] == data["programs"][0]["program"]
