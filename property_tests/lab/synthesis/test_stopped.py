"""A synthesis that is stopped leaves a rule file of the laws found so far; one that ends leaves only its own file."""

from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg.cli.synthesis import _left_if_stopped
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.lab.synthesis.synthesize import synthesize
from mirage_eg.lab.synthesis.tensor.synthesize import synthesize_tensor_laws


def test_a_stopped_synthesis_leaves_a_rule_file_that_loads(tmp_path: Path) -> None:
    def stop_after_the_first(line: str) -> None:
        keep(line)
        raise KeyboardInterrupt

    told = pytest.raises(KeyboardInterrupt, match=r"found\.partial\.egg has the 1 law found so far")
    with told, _left_if_stopped(tmp_path / "found.egg", "indexed") as keep:
        synthesize(["Exp", "Log"], 2, on_law=stop_after_the_first)
    assert len(load_rules("indexed", [tmp_path / "found.partial.egg"]).theories[-1].laws) == 1


def test_a_stopped_synthesis_of_tensor_laws_has_told_its_laws() -> None:
    found: list[str] = []
    synthesize_tensor_laws(["Relu", "Transpose"], 2, on_law=found.append)
    assert any("Transpose" in line for line in found)


def test_a_synthesis_that_ends_leaves_no_partial_file(tmp_path: Path) -> None:
    with _left_if_stopped(tmp_path / "found.egg", "indexed") as keep:
        keep("(rewrite (Exp (Log x)) x)")
        assert (tmp_path / "found.partial.egg").exists()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("beside", ["Scale", "Abs"])
def test_laws_of_a_registered_op_are_found_beside_packaged_ops(beside: str) -> None:
    mi.register_op("softsign_here", definition=lambda b, x: b.div(x, b.shift(b.abs(x), 1)))
    try:
        found = synthesize(["softsign_here", beside], 2)
        assert found.funnel.refuted + found.funnel.kept + found.funnel.derived > 0
    finally:
        REGISTRY.pop("softsign_here", None)
