"""`mirage-eg rules`: what a researcher sees of a file of laws, and that no file can hang or harm the process that reads it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from mirage_eg.backends.evaluator import sandbox
from mirage_eg.backends.evaluator.sandbox import Worker, in_worker
from mirage_eg.egraph.expression import express, splits
from mirage_eg.egraph.oracle import Limits, build_oracle, oracle_builder, saturate
from mirage_eg.egraph.rule_files import chosen_files
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.check_file import CHECK_LIMITS, check_file, oracles, targets
from mirage_eg.egraph.soundness.check_law import Truth
from mirage_eg.egraph.soundness.lints import lint_collapse
from mirage_eg.frontend.workloads import PAPER, WORKLOADS, paper_programs
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import LimitError, RuleError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.tensor_laws import check_rule_file
from mirage_eg.verify.verdict import Equality
from property_tests.support.command import run_command
from property_tests.support.laws import CANCELLATION, GROWS_FOREVER, TRUE_BUT_NOT_IN_THE_FIELD, WRONG

# A law, what of it is wrong, and the line that says so; the header takes line 1.
BROKEN = {
    "unbalanced parenthesis": ("(rewrite (Exp (Log x)) x", 2, "never closed"),
    "misspelt command": ("(rewrit (Exp (Log x)) x)", 2, "did you mean rewrite?"),
    "unbound right-hand variable": ("(rewrite (Exp (Log x)) y)", 2, "must occur on the left"),
    "wrong arity": ("(rewrite (Exp (Log x y)) x)", 2, "Log takes E"),
    "wrong type": ('\n(rewrite (Exp (Log "x")) (Exp "x"))', 3, "type E"),
    "unknown constructor": ("(rewrite (Exp (Lug x)) x)", 2, "did you mean Log?"),
    "bare variable on the left": ("(rewrite x (Exp (Log x)))", 2, "else it matches everything"),
    "unknown ruleset": ("(rewrite (Exp (Log x)) x :ruleset nowhere)", 2, "leave :ruleset out"),
    "duplicate law": ('(rewrite (Add x y) (Add y x) :name "add commutes")', 2, "is already at rules/"),
    "missing include": ('(include "nowhere.egg")', 2, "--rules"),
}


ROOT = Path(__file__).parents[3]


def written(folder: Path, text: str, domain: str = "indexed") -> Path:
    path = folder / "my.egg"
    path.write_text(f"; domain: {domain}\n{text}\n")
    return path


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_file_is_one_line_with_its_place_and_a_hint(mistake: str, tmp_path: Path) -> None:
    text, line, hint = BROKEN[mistake]
    path = written(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        check_file(path, paper_programs())
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


COMMANDS = [
    *("(run 5)", "(run equivalence 3)", "(run-schedule (saturate equivalence))", "(push)", "(push 2)", "(pop)"),
    *("(check (= 1 1))", "(print-function Add 10)", "(print-stats)", '(extract (Var "x"))', '(let z (Var "x"))'),
    *('(delete (Var "x"))', '(union (Var "x") (Var "y"))', '(panic "a")', "(fail (check (= 1 2)))", "(datatype* (A (B C)))"),
    *("(begin)", "(set-option a 1)", '(include "x.egg")'),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_no_law_is_named_as_written_with_its_line(command: str, tmp_path: Path) -> None:
    before = '(relation ok (E)) (relation\n two (E)) ; a note: (run "\n(rewrite (Exp (Log x)) x :name ";(\n")\n'
    path = written(tmp_path, f"{before}  {command}\n(relation late (E))")
    word = command.strip("()").split()[0]
    with pytest.raises(RuleError) as caught:
        check_file(path, paper_programs())
    assert str(caught.value).startswith((f"{path}:6: got the command {word};", f"{path}:6: got ({word} …)"))


HIDES_NOTHING = {  # laws that cannot be tested, are false, are true
    "indexed": (
        "(rewrite (Scale c x) (Exp x) :when ((= (* c c) (bigrat (bigint 2) (bigint 1)))))",
        "(rewrite (Sqrt x) (Square x))",
        "(rewrite (Exp (Mul x x)) (Exp (Square x)))",
    ),
    "tensor": (
        "(rule ((= y (Transpose x))) ((Transpose y)))",
        "(rewrite (Transpose (Transpose x)) (Transpose x))",
        "(rewrite (Transpose (Transpose x)) x)",
    ),
}


@pytest.mark.parametrize("domain", HIDES_NOTHING)
def test_a_law_that_cannot_be_tested_hides_no_verdict(domain: str, tmp_path: Path) -> None:
    report = check_rule_file(written(tmp_path, "\n".join(HIDES_NOTHING[domain]), domain), {})
    first, second, third = (it.truth for it in report.findings)
    assert (first, second) == (Truth.UNTESTED, Truth.REFUTED) and third in (Truth.PROVED, Truth.HELD)
    assert not report.sound


def test_check_exits_with_2_for_a_law_that_cannot_be_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "\n".join(HIDES_NOTHING["tensor"]), "tensor")
    code, out, err = run_command(capsys, "rules", "check", path)
    assert (code, err) == (2, "")
    assert out.startswith(f"{path}: 3 laws of the tensor domain, 1 refuted, 1 not tested\n") and out.endswith("not sound\n")
    assert f"  {path}:2: not tested (" in out


def test_check_exits_with_0_for_a_sound_file_and_prints_the_growth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "rules", "check", written(tmp_path, TRUE_BUT_NOT_IN_THE_FIELD["tanh is odd"]))
    assert (code, err) == (0, "")
    assert out.endswith("sound\n")
    assert "rmsnorm" in out


INDEXED = sorted((ROOT / "rules" / "indexed").glob("*.egg"))


@pytest.mark.slow  # a theory that is off by default may make an e-graph grow
@pytest.mark.parametrize("name", [path.name for path in INDEXED if "default: off" not in path.read_text(encoding="utf-8")])
def test_check_finds_every_packaged_theory_sound(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "rules", "check", ROOT / "rules" / "indexed" / name)
    assert (code, err) == (0, "") and out.endswith("sound\n")


def test_check_exits_with_1_for_a_refuted_file_and_shows_the_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "rules", "check", written(tmp_path, WRONG["exp is not additive"][1]), "--json")
    report = json.loads(out)
    assert (code, err, report["sound"]) == (1, "", False)
    [finding] = report["findings"]
    assert finding["truth"] == "refuted"
    assert dict(finding["counterexample"]["values"]) == {"x": "1", "y": "1"}


def test_check_exits_with_2_for_a_broken_file_and_leaves_stdout_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, BROKEN["wrong arity"][0])
    code, out, err = run_command(capsys, "rules", "check", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"mirage-eg: {path}:2: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("claim", "domain"), [("(x·y)/y = x", "indexed"), pytest.param("(x·y)/y = x", "abstract", marks=pytest.mark.slow)]
)
def test_cancellation_fails_the_check_though_it_is_true(claim: str, domain: str, tmp_path: Path) -> None:
    report = check_file(written(tmp_path, CANCELLATION[claim], domain), paper_programs())
    assert not report.sound
    assert all(finding.counterexample is None for finding in report.findings)


def test_cancellation_makes_attention_one_class_with_v_and_the_lint_says_so(tmp_path: Path) -> None:
    rulebook = load_rules("abstract", [written(tmp_path, CANCELLATION["(x·y)/y = x"], "abstract")])
    with oracle_builder(rulebook, Limits(nodes=5_000, allow_cut=True)) as build:
        [lint] = lint_collapse("my.egg", list(oracles(build, "abstract", {"gqa": WORKLOADS["gqa"](1)})))
    assert "the input x2" in lint.message
    with oracle_builder(load_rules("abstract")) as build:
        assert not list(lint_collapse("rules", list(oracles(build, "abstract", {"gqa": WORKLOADS["gqa"](1)}))))


@pytest.mark.slow
def test_a_law_that_follows_from_the_others_is_remarked_upon_others_are_not(tmp_path: Path) -> None:
    twin = "(rewrite (Div (Sum i x) y) (Sum i (Div x y)) :when ((= a (axes y)) (set-not-contains a i)))"
    messages = [lint.message for lint in check_file(written(tmp_path, twin), paper_programs()).lints]
    assert any("follows from the others" in message for message in messages)
    new = [
        lint.message for lint in check_file(written(tmp_path, TRUE_BUT_NOT_IN_THE_FIELD["tanh is odd"]), paper_programs()).lints
    ]
    assert not any("follows" in message for message in new)


@pytest.mark.slow
def test_a_law_that_grows_forever_ends_within_its_limit_and_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, GROWS_FOREVER)
    limits = replace(CHECK_LIMITS, seconds=1.5)
    spent = getrusage(RUSAGE_CHILDREN)
    with pytest.raises(RuleError, match=rf"{path}:2: law '{path}:2' keeps the e-graph growing .*stopped"):
        check_file(path, paper_programs(), limits=limits)
    now = getrusage(RUSAGE_CHILDREN)
    assert now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime < 8 * limits.seconds


def test_a_search_with_a_law_that_grows_forever_is_one_line(tmp_path: Path) -> None:
    program = expand(WORKLOADS["lora"](1))
    axes = infer_axes(program)
    target = express(program, axes, splits(axes)[0], "indexed")
    rulebook = load_rules("indexed", [written(tmp_path, GROWS_FOREVER)])
    with pytest.raises(RuleError, match="does it feed itself"):
        build_oracle(rulebook, target, Limits(nodes=5_000))


@pytest.mark.slow
def test_impact_tells_what_a_law_makes_findable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "(rewrite (Div x (Sqrt y)) (Mul x (Rsqrt y)))")
    code, out, err = run_command(capsys, "rules", "impact", path, "rmsnorm", "--max-block-ops", "7", "--json")
    assert code == 0, err
    [row] = json.loads(out)["programs"]
    assert row["found"]
    assert not row["lost"]
    assert any("rsqrt" in entry["structure"] for entry in row["found"])
    assert row["with"]["nodes"] > row["without"]["nodes"]


def test_list_names_every_theory_with_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_command(capsys, "rules", "list", "--json")
    told = json.loads(out)
    assert {theory["path"]: theory["sha256"] for theory in told if theory["on"]} == {
        theory.path: theory.sha256 for theory in load_rules("indexed").theories
    }


def test_a_theory_can_be_switched_off() -> None:
    names = [theory.name for theory in load_rules("indexed", without=["25_functions"]).theories]
    assert "25_functions" not in names
    with pytest.raises(RuleError, match=r"wanted a theory \(00_language"):
        load_rules("indexed", without=["functions"])


def test_a_file_of_the_other_domain_is_refused_but_left_out_of_a_folder(tmp_path: Path) -> None:
    path = written(tmp_path, "(rewrite (Sum 1 x) x)", "abstract")
    with pytest.raises(RuleError, match=r"my\.egg:1: got laws of the abstract domain"):
        load_rules("indexed", [path])
    assert len(load_rules("indexed", [tmp_path]).theories) == len(load_rules("indexed").theories)


@pytest.mark.slow
def test_a_worker_ends_when_its_time_is_up_or_its_caller_leaves() -> None:
    with Worker() as worker:
        process = worker._process
        with pytest.raises(RuleError, match=r"sleeping stopped after 0\.5 s"):
            worker.call(time.sleep, 60, seconds=0.5, task="sleeping")
    assert process.poll() is not None


def test_a_worker_waits_for_the_next_call_unless_it_was_stopped_or_died() -> None:
    first = in_worker(os.getpid, seconds=5, task="asking")
    with pytest.raises(RuleError, match="got domain 'nowhere'"):
        in_worker(chosen_files, "nowhere", seconds=5, task="asking")
    assert in_worker(os.getpid, seconds=5, task="asking") == first
    os.kill(first, signal.SIGKILL)
    while sandbox._IDLE.worker is not None and sandbox._IDLE.worker.is_ready:
        time.sleep(0.01)
    second = in_worker(os.getpid, seconds=5, task="asking")
    assert second != first
    with pytest.raises(LimitError, match="sleeping stopped after"):
        in_worker(time.sleep, 60, seconds=0.1, task="sleeping")
    assert not Path(f"/proc/{second}").exists() and in_worker(os.getpid, seconds=5, task="asking") != second


def test_a_file_leaves_nothing_for_the_next_one(tmp_path: Path) -> None:
    """Not its declarations, its laws, nor its errors."""
    own = "(constructor Own (E) E)\n(rewrite (Own (Own x)) x)\n"
    first = load_rules("indexed", [written(tmp_path, own)])
    with pytest.raises(RuleError, match=r"my\.egg:2: Unbound function Own"):
        load_rules("indexed", [written(tmp_path, "(rewrite (Own x) x)\n")])
    again = load_rules("indexed", [written(tmp_path, own)])
    assert again == first and "Own" in again.signatures
    assert "Own" not in load_rules("indexed", [written(tmp_path, "(rewrite (Exp (Log x)) x)\n")]).signatures


def test_a_worker_that_takes_too_much_memory_is_stopped() -> None:
    with Worker() as worker, pytest.raises(RuleError, match="more memory than the 4 GiB"):
        worker.call(bytearray, 2**34, seconds=20, task="filling memory")


def test_ctrl_c_ends_a_saturation_and_its_worker(tmp_path: Path) -> None:
    path = written(tmp_path, GROWS_FOREVER)
    process = subprocess.Popen(
        [sys.executable, "-m", "mirage_eg", "optimize", "gqa", "--rules", str(path), "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored where these tests run
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 30
    workers: list[str] = []
    while time.monotonic() < deadline and not (workers := children.read_text().split()):
        time.sleep(0.1)
    time.sleep(1.5)
    workers = children.read_text().split() or workers
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert stderr == "mirage-eg: interrupted\n"
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_the_laws_of_a_domain_prove_what_they_say_and_no_more() -> None:
    rulebook = load_rules("indexed")
    program = expand(WORKLOADS["lora"](1))
    axes = infer_axes(program)
    target = express(program, axes, splits(axes)[0], "indexed")
    same = type(target)(target.terms, target.inputs, target.outputs * 2, target.free)
    assert len(set(saturate(rulebook, same, Limits()).outputs)) == 1
    other = type(target)(target.terms, target.inputs, (target.outputs[0], target.inputs[0]), target.free)
    assert len(set(saturate(rulebook, other, Limits()).outputs)) == 2


def test_laws_of_what_is_below_that_grow_forever_are_stopped_and_named(tmp_path: Path) -> None:
    law = "(rule ((below e) (= e (Sum i x))) ((below (Sum i (Sum i e)))) :ruleset subexpression)"
    rulebook = load_rules("indexed", [written(tmp_path, law)])
    _, target = targets(WORKLOADS["lora"](1), "indexed")[0]
    with pytest.raises(RuleError, match=r"my.egg:2: law '.*my.egg:2' keeps the e-graph growing .*stopped"):
        build_oracle(rulebook, target, Limits(nodes=2_000))


def test_a_refuted_file_shows_its_growth_too(tmp_path: Path) -> None:
    report = check_file(written(tmp_path, "(rewrite (Sqrt x) (Square x))"), paper_programs())
    assert not report.sound
    assert [before.workload for before, _ in report.growth] == list(PAPER)
    assert any(after.nodes > before.nodes for before, after in report.growth)


def test_a_refuted_file_that_grows_forever_is_refuted_all_the_same(tmp_path: Path) -> None:
    report = check_file(
        written(tmp_path, "(rewrite (Mul x y) (Mul (Mul x y) (Exp x)))"), paper_programs(), limits=Limits(nodes=2_000)
    )
    assert not report.sound
    assert report.growth == ()
    assert report.unmeasured is not None and "keeps the e-graph growing" in report.unmeasured


def odd(outside: bool) -> Graph:
    """X·tanh(−X), or with the sign drawn out of the tanh."""
    program = KernelGraph()
    x = program.new_input((4, 8), name="X")
    minus = {"factor": Fraction(-1)}
    inner = program.op("tanh", x) if outside else program.op("tanh", program.op("scale", x, **minus))
    program.mark_output(program.mul(x, program.op("scale", inner, **minus) if outside else inner))
    return program.graph()


def test_proofs_use_the_laws_of_a_user_and_name_them(tmp_path: Path) -> None:
    book = load_rules("indexed", [written(tmp_path, TRUE_BUT_NOT_IN_THE_FIELD["tanh is odd"])])
    assert not Prover(odd(False)).prove(odd(True)).proved
    assert Prover(odd(False), book).prove(odd(True)).laws == (book.theories[-1].laws[0].name,)


def test_a_proof_by_laws_that_grow_forever_ends_within_its_limit(tmp_path: Path) -> None:
    book = load_rules("indexed", [written(tmp_path, GROWS_FOREVER)])
    spent = getrusage(RUSAGE_CHILDREN)
    proof = Prover(odd(False), book, Limits(nodes=100_000_000, seconds=1.0)).prove(odd(True))
    assert not proof.proved
    assert "stopped" in str(proof.reason)
    now = getrusage(RUSAGE_CHILDREN)
    assert now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime < 10


def test_a_structure_that_rests_on_a_true_law_outside_the_field_is_proved(tmp_path: Path) -> None:
    kept = "(relation positive (E))\n(rule ((= e (Exp x))) ((positive e)))\n(rewrite (Relu x) x :when ((positive x)))"
    graph = KernelGraph()
    x, w = graph.new_input((16, 64)), graph.new_input((64, 32))
    graph.mark_output(graph.relu(graph.exp(graph.matmul(x, w))))
    program = expand(graph.graph())
    axes = infer_axes(program)
    structures = search(program, axes, load_rules("indexed", [written(tmp_path, kept)]), SearchLimits(4)).structures
    assert structures
    for structure in structures:
        small, candidate = small_instance(structure, program, axes)
        verdict = Reference(small).check(candidate)
        assert verdict.verdict is Equality.UNDECIDED
        assert verdict.worth_full_size(structure.proved)
        assert not verdict.worth_full_size(False)
