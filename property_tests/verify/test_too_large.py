"""A pair that is too large for random inputs is left to proofs: undecided, with the reason, and no refusal of the whole."""

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.verify import block_reference
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.verdict import Equality


def summed(squared: bool, function: str = "square") -> Graph:
    """Sums of squares as such, or as products: other ops, so that sums are not taken to be linear."""
    graph = new_kernel_graph()
    x = graph.new_input((8, 16), "float32", name="X")
    y = graph.op(function, x) if squared else x * x
    graph.mark_output(graph.sum(graph.sum(y, 0), 1))
    return graph.graph()


def test_what_is_too_large_for_tests_is_left_to_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    program, other = summed(True), summed(False)
    assert BlockReference(program).check(other).equal
    monkeypatch.setattr(block_reference, "MAX_ELEMENTS", 100)
    reference = BlockReference(program)
    verdict = reference.check(other)
    assert verdict.verdict is Equality.UNDECIDED and verdict.undecided_because is not None
    assert "129 elements is tested up to 100" in verdict.undecided_because and verdict.evidence == ()
    [check] = reference.float_checks([other])
    assert not check.ok and check.problem == f"not compared: {verdict.undecided_because}"
    assert Prover(program).prove(other).proved and not Prover(program).prove(summed(True, "exp")).proved
