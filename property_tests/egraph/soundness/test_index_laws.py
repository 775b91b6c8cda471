"""The laws of slices and concatenations: each is true in the model, and fails there without what it says of indices."""

import pytest

from mirage_eg.egraph.expression import constructor
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.check_law import Truth, check_law
from mirage_eg.ir.ops import OPS, Kind
from property_tests.support.parameters import few

SLICES = "35_slices"
SPLIT = "(Slice i h 0 1 x)"
NO_H = "(= a (axes z)) (= b (members h)) (= c (members k)) (= 0 (set-length (set-intersect a (set-union b c))))"


def slices() -> dict[str, Law]:
    return {law.name: law for theory in load_rules("indexed").theories if theory.name == SLICES for law in theory.laws}


def one_law(tmp_path, text: str) -> tuple[Law, Rulebook]:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.egg"
    path.write_text(f'; domain: indexed\n(rewrite {text} :name "mine")\n')
    book = load_rules("indexed", [path])
    return book.laws[-1], book


FALSE = {
    "another start": "(Slice h g u v (Slice i h s t x)) (Slice i g (+ s u) (* t v) x)",
    "an index that x has": "(Slice h g u v (Slice i h s t x)) (Slice i g (+ s (* t u)) (* t v) x)",
    "a reduction of the sliced part": "(Slice i h s t (Sum j x)) (Sum j (Slice i h s t x))",
    "the other operand": "(Slice i g s t (Concat i h k n x y)) (Slice k g s t y)",
    "joined in the other order": f"(Concat i h k n (Slice i k n 1 x) {SPLIT}) x",
    "one range": f"(Sum i z) (SumOver h (Slice i h 0 1 z)) :when ((= e (Concat i h k n x y)) {NO_H})",
    "ranges that z varies with": "(Sum i z) (Add (SumOver h (Slice i h 0 1 z)) (SumOver k (Slice i k n 1 z))) "
    ":when ((= e (Concat i h k n x y)))",
    "slow parts at any start": "(Slice i h s 1 x) (Slice b d 0 1 (Slice a c (/ s n) 1 x)) "
    ":when ((fastest i a b) (fastest h c d) (= n (extent b)) (= n (extent d)))",
    "steps of another size": '(Slice i h s t x) (Slice b "" (% s t) 1 (Slice a h (/ s t) 1 x)) :when ((fastest i a b))',
    "slices in any order": "(Slice h g s t (Slice i k u v x)) (Slice i k u v (Slice h g s t x))",
}


@pytest.mark.parametrize("text", few(FALSE.values(), 4), ids=[*FALSE])
def test_false_laws_of_slices_are_refuted(tmp_path, text: str) -> None:  # type: ignore[no-untyped-def]
    law, book = one_law(tmp_path, text)
    finding = check_law(law, "indexed", book.signatures, 1_500)
    assert finding.truth is Truth.REFUTED
    assert finding.counterexample is not None


def test_every_elementwise_op_has_a_law_for_its_slices() -> None:
    texts = [law.text for law in slices().values()]
    for row in OPS.values():
        if row.kind is Kind.ELEMENTWISE:
            assert any(f"(Slice i h s t ({constructor(row.name)} " in text for text in texts), row.name
