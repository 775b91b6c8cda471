"""Laws of whole tensors: what holds for all shapes is proved, broken twins are refuted, and conditions that lack are named."""

import json
import random
import re
from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg.egraph.rule_files import TENSOR
from mirage_eg.egraph.rulebook import read_rules
from mirage_eg.egraph.soundness.check_law import Truth
from mirage_eg.egraph.tensor.counterexamples import tried_law
from mirage_eg.egraph.tensor.decide import TensorVerdict, attributes_of, decide
from mirage_eg.egraph.tensor.term import Equation, text
from mirage_eg.egraph.tensor.typing import Attributes, typed
from mirage_eg.egraph.tensor.written import written_laws
from mirage_eg.ir.errors import OptionError, RuleError
from mirage_eg.lab.synthesis.tensor.rule_lines import rewrites
from mirage_eg.testing import assert_law_sound
from mirage_eg.verify.tensor_laws import check_tensor_file, proving_laws
from property_tests.support.command import run_command
from property_tests.support.tensor_laws import AXIOMS, FALSE_EQUATIONS

HOLD = """
(rewrite (Transpose (Matmul A B)) (Matmul (Transpose B) (Transpose A)))
(birewrite (Matmul A (Concat 1 B C)) (Concat 1 (Matmul A B) (Matmul A C)))
(rewrite (Split1 1 n (Matmul A B)) (Matmul A (Split1 1 n B)))
(rewrite (Relu (Concat i x y)) (Concat i (Relu x) (Relu y)))
(rewrite (Relu (Concat 3 x y)) (Concat 3 (Relu x) (Relu y)))
(rewrite (Conv2d window groups "none" x (Add v w)) (Add (Conv2d window groups "none" x v) (Conv2d window groups "none" x w)))
(rewrite (Split0 1 n (Concat 1 x y)) x :when ((= n (vec-get (shape x) 1))))
(rewrite (Matmul (Concat 1 a b) (Concat 0 c d)) (Add (Matmul a c) (Matmul b d))\
 :when ((= (vec-get (shape a) 1) (vec-get (shape c) 0))))
(rewrite (Add (Concat 1 a b) (Concat 1 c d)) (Add (Concat 1 c d) (Concat 1 a b)))
(rule ((= a (Matmul x y)) (= b (Matmul x z))) ((union (Add a b) (Matmul x (Add y z)))))
(rewrite (AvgPool window p q x) (Conv2d window 1 "none" x (Cpool c p q)) :when ((= c (vec-get (shape x) 1))))
(rewrite (Unary "exp" (Add a b)) (Mul (Unary "exp" a) (Unary "exp" b)))
(rewrite (MaxPool window p q (Relu x)) (Relu (MaxPool window p q x)))
(rewrite (Concat i (Unary f x) (Unary f y)) (Unary f (Concat i x y)))
(rewrite (Mul (One d) x) x :when ((= (shape x) d)))
"""
BROKEN = """
(rewrite (Transpose (Matmul A B)) (Matmul (Transpose A) (Transpose B)))
(birewrite (Matmul A (Concat 1 B C)) (Concat 1 (Matmul A C) (Matmul A B)))
(rewrite (Split1 1 n (Matmul A B)) (Matmul A (Split0 1 n B)))
(rewrite (Relu (Add a b)) (Add (Relu a) (Relu b)))
(rewrite (Conv2d window groups "none" x (Mul v w)) (Mul (Conv2d window groups "none" x v) (Conv2d window groups "none" x w)))
(rewrite (Conv2d window 1 "none" x (Iconv c p q)) x)
(rewrite (Split0 1 n (Concat 1 x y)) x)
(rewrite (Matmul (Concat 1 a b) (Concat 0 c d)) (Add (Matmul a c) (Matmul b c))\
 :when ((= (vec-get (shape a) 1) (vec-get (shape b) 1))))
(rewrite (Add (Concat 1 a b) c) (Add (Concat 1 b a) c))
(rule ((= a (Matmul x y)) (= b (Matmul z y))) ((union (Add a b) (Matmul x (Add y y)))))
(rewrite (AvgPool window p q x) (Conv2d window 1 "none" x (Cpool c q p)) :when ((= c (vec-get (shape x) 1))))
(rewrite (Unary "exp" (Add a b)) (Add (Unary "exp" a) (Unary "exp" b)))
(rewrite (MaxPool window p q (Add x y)) (Add (MaxPool window p q x) (MaxPool window p q y)))
(rewrite (Concat i (Split1 i n x) (Split0 i n x)) x)
(rewrite (Unary f (Unary g x)) (Unary g (Unary f x)))
(rewrite (Unary "a" x) (Unary "h" x))
(rewrite (Relu (Unary "leaky_relu slope=1/10" x)) (Unary "leaky_relu slope=1/10" (Relu x)))
(rewrite (Binary f x y) (Binary f y x))
"""


SOME = "\n".join(HOLD.splitlines()[:4]) + "\n"


def verdict(line: str) -> TensorVerdict:
    [law] = read_rules(line, TENSOR).theories[-1].laws
    return decide(law, proving_laws)


@pytest.mark.parametrize("line", HOLD.strip().splitlines())
def test_laws_that_hold_are_proved_wherever_they_match(line: str) -> None:
    found = verdict(line)
    assert found and not found.missing, found


@pytest.mark.parametrize("line", BROKEN.strip().splitlines())
def test_broken_twins_are_refuted_with_a_counterexample(line: str) -> None:
    found = verdict(line)
    assert found.truth is Truth.REFUTED and found.counterexample is not None, found


def lines() -> list[tuple[str, tuple[str, ...]]]:
    """The rules that the house writes for TASO's axioms, and their conditions on sizes."""
    return [(it.line("law"), it.conditions) for pair in AXIOMS for it in rewrites(pair)]


def test_rules_that_are_written_from_proofs_are_proved_everywhere() -> None:
    chosen = lines()[::7]
    assert chosen
    for line, _ in chosen:
        found = verdict(line)
        assert found and not found.missing, (line, found)


def test_a_rule_without_one_of_its_conditions_is_not_proved_everywhere() -> None:
    checked = 0
    for line, conditions in lines():
        for condition in conditions:
            if condition.startswith("(= (vec-") and not condition.startswith("(= e"):
                found = verdict(line.replace(f"{condition} ", "").replace(condition, "").replace(" :when ()", ""))
                assert not found or found.missing, (line, condition)
                checked += 1
        if checked > 4:
            break
    assert checked > 4


def test_conditions_that_lack_are_named_and_suffice() -> None:
    blocks = "(rewrite (Matmul (Concat 1 a b) (Concat 0 c d)) (Add (Matmul a c) (Matmul b d))"
    found = verdict(f"{blocks})")
    assert found and found.missing == ("(= (vec-get (shape b) 1) (vec-get (shape d) 0))",)
    assert not verdict(f"{blocks} :when ({' '.join(found.missing)}))").missing


@pytest.mark.parametrize("pair", AXIOMS[::4] + FALSE_EQUATIONS[::3], ids=lambda it: " = ".join(map(text, it)))
def test_texts_without_sizes_are_decided(pair: Equation) -> None:
    found = mi.equal_for_all_shapes(*map(text, pair))
    assert bool(found) == (pair in AXIOMS) and (found.truth is Truth.REFUTED) == (pair not in AXIOMS), found


@pytest.mark.parametrize(
    ("left", "right", "clash"),
    [
        ("(Smul x (Split0 0 y))", "x", "axis 0 of a tensor of rank 0"),
        ("(Relu (Concat 3 (Matmul x y) z))", "z", "axis 3 of a tensor of rank 2"),
        ("(Add x (Concat 0 x y))", "x", "extents x.0 and x.0 + y.0"),
        ("(Matmul x y)", "(Conv2d x y)", "rank 2, wanted rank 4"),
    ],
)
def test_terms_without_shapes_are_ill_typed(left: str, right: str, clash: str) -> None:
    found = mi.equal_for_all_shapes(left, right)
    assert found.truth is Truth.ILL_TYPED and clash in found.because


def test_a_text_that_is_no_term_is_refused() -> None:
    for wrong in ("(Mul x)", "(Foo x)", "(Add x y", "x y", "(Split0 x)", "()"):
        with pytest.raises(OptionError, match="term"):
            mi.equal_for_all_shapes(wrong, "x")


def test_a_file_is_sound_only_if_all_its_laws_are(tmp_path: Path) -> None:
    file = tmp_path / "laws.egg"
    file.write_text("; domain: tensor\n" + SOME)
    assert check_tensor_file(file).sound
    file.write_text("; domain: tensor\n" + SOME + '(rewrite (Smul x (Split0 0 n y)) x :name "no axis")\n')
    report = check_tensor_file(file)
    assert not report.sound and [it.verdict for it in report.findings if it.law.name == "no axis"] == [
        "ill-typed ((Split0 0 y): axis 0 of a tensor of rank 0)"
    ]
    file.write_text("; domain: tensor\n(rewrite (Frob x) x)\n")
    with pytest.raises(RuleError, match=r"laws\.egg:2: .*Frob"):
        check_tensor_file(file)


def test_assertions_know_laws_of_tensors() -> None:
    assert_law_sound("(rewrite (Transpose (Transpose x)) x)", TENSOR)
    with pytest.raises(AssertionError, match="refuted"):
        assert_law_sound("(rewrite (Transpose (Transpose x)) (Transpose x))", TENSOR)
    with pytest.raises(AssertionError, match="ill-typed"):
        assert_law_sound("(rewrite (Smul x (Split0 0 n y)) x)", TENSOR)


def test_a_law_that_follows_from_others_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "laws.egg"
    file.write_text(
        """; domain: tensor
(rewrite (Transpose (Transpose x)) x :name "twice")
(rewrite (Transpose (Matmul A B)) (Matmul (Transpose B) (Transpose A)) :name "product")
(rewrite (Transpose (Matmul A (Transpose B))) (Matmul B (Transpose A)) :name "follows")
"""
    )
    found = mi.minimize(file)
    assert [(it.law.name, it.laws) for it in found.derived] == [("follows", ("product", "twice"))]
    assert [law.name for law in found.kept] == ["twice", "product"] and '"follows"' not in found.text


def test_impact_says_what_laws_of_tensors_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, program = tmp_path / "laws.egg", tmp_path / "twice.py"
    law = '(rewrite (Mul (Unary "exp" x) (Unary "exp" y)) (Unary "exp" (Add x y)) :name "one exp")'
    file.write_text(f"; domain: tensor\n{law}\n")
    program.write_text(
        """import mirage_eg as mi
def program():
    g = mi.new_kernel_graph()
    x, w = (g.new_input((64, 64), name=name) for name in "xw")
    g.mark_output(g.mul(g.exp(x), g.exp(w)) @ w)
    return g
"""
    )
    code, out, _ = run_command(capsys, "rules", "impact", str(file), str(program), "--json")
    [row] = json.loads(out)["programs"]
    assert code == 0 and row["b"]["matches"] == [["one exp", 2]] and row["b"]["ops"] == row["a"]["ops"] - 1


def test_cuts_at_different_places_are_not_called_ill_typed() -> None:
    assert mi.equal_for_all_shapes("(Split0 0 x)", "(Split0 0 (Split0 0 x))").truth is Truth.HELD
    assert mi.equal_for_all_shapes("(Split0 0 x)", "(Split1 0 (Split0 0 x))").truth is Truth.REFUTED
    beyond = verdict("(rewrite (Split0 0 n x) (Split0 0 n (Split0 0 m x)) :when ((= m (+ n 1))))")
    assert beyond.truth is Truth.HELD and "only the left side has a value" in beyond.because


@pytest.mark.slow
def test_no_changed_law_is_proved_and_false() -> None:
    """Laws with a variable, an op or a condition changed: what is still proved everywhere has no counterexample."""
    draw, proved = random.Random(0), 0
    for line, conditions in lines():
        words = re.findall(r'[()]|"[^"]*"|[^\s()]+', line)
        names = [place for place, word in enumerate(words) if re.fullmatch(r"[xyzuijn]\d?|[01]", word)]
        words[draw.choice(names)] = words[draw.choice(names)]
        source = " ".join(words)
        if conditions and draw.random() < 0.5:
            source = line.replace(draw.choice(conditions), "").replace(" :when ()", "")
        try:
            [law] = read_rules(source, TENSOR).theories[-1].laws
            found = decide(law, lambda equation: None)
        except RuleError:
            continue
        for written in written_laws(law) if found and not found.missing else ():
            known = typed((written.left.term, written.right.term), attributes_of(written) or Attributes())
            ranks = {name: len(dims) for name, dims in known.variables.items()}
            tried = tried_law(written, len(known.left.dims), ranks, seed=1)
            assert tried.counterexample is None and tried.misfit is None, source
            proved += 1
    assert proved > 8


def test_kernels_of_even_extents_are_not_called_odd() -> None:
    """A centred kernel has odd extents: those of a kernel of the left side, or an odd number."""
    law = '(rewrite (Conv2d (Same) 1 "relu" x (Iconv c p q)) (Conv2d (Same) 1 "relu" x (Iconv c {} 1)))'
    assert verdict(law.format("p")) and verdict(law.format("3"))
    assert not verdict(law.format("c")) and not verdict(law.format("2"))


def test_a_quotient_by_itself_is_tested_where_a_condition_gives_its_shape() -> None:
    found = verdict('(rewrite (Binary "div" x x) (One d) :when ((= d (shape x))))')
    assert found.truth is Truth.HELD and found.trials > 10


def test_an_unknown_function_is_any_function_and_named(tmp_path: Path) -> None:
    (file := tmp_path / "typo.egg").write_text('; domain: tensor\n(rewrite (Unary "sqtr" x) (Unary "sqrt" x))\n')
    assert ["sqtr" in it.message for it in check_tensor_file(file).lints] == [True]


def test_minima_and_comparisons_are_decided_by_cases() -> None:
    found = mi.equal_for_all_shapes("(maximum x (minimum x y))", "(Add x (Mul x (less x x)))")
    assert found and "cases" in found.because
    assert mi.equal_for_all_shapes("(less x y)", "(less_equal x y)").truth is Truth.REFUTED  # at ties
