"""The library form of a large program needs no float check: its kernels are the ops of the program."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.verify import block_reference
from mirage_eg.verify.block_reference import BlockReference, Timed
from mirage_eg.verify.cuts import pairs_of
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality, FloatCheck


def test_no_numbers_are_drawn_for_the_ops_of_a_large_program(monkeypatch: pytest.MonkeyPatch) -> None:
    p = mi.new_kernel_graph()
    hidden = p.silu(p.new_input((4, 64)) @ p.new_input((64, 128)))
    p.mark_output(hidden @ p.new_input((128, 64)))
    program = expand(p.graph())
    [small] = BlockReference(program, 2, 0).float_checks([program])
    assert small.ok and small.compared
    monkeypatch.setattr(block_reference, "SHOWN", 1 << 8)
    monkeypatch.setattr(block_reference, "float_checks", lambda *_: pytest.fail("numbers were drawn"))
    reference = BlockReference(program, 2, 0)
    [large] = reference.float_checks([program])
    assert large.ok and not large.compared and large.problem is None


def test_a_derived_op_is_its_primitive_ops_and_needs_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    p = mi.new_kernel_graph()
    p.mark_output(p.softmax(p.new_input((4, 64)) @ p.new_input((64, 128)), 1))
    [pair] = pairs_of(expand(p.graph()), p.graph(), seed=0)
    assert pair.by_definition
    monkeypatch.setattr(block_reference._Part, "reference", lambda *_: pytest.fail("inputs were drawn"))
    assert BlockReference(p.graph(), 2, 0).check(p.graph()).equal


def of_product(double: Callable[[Any, Any], Any]) -> Graph:
    """The exponential of a product and a mask, doubled so."""
    p = mi.new_kernel_graph()
    x, w, mask = p.new_input((4, 64)), p.new_input((64, 128)), p.new_input((4, 128))
    p.mark_output(p.exp(x @ w + double(p, mask)))
    return p.graph()


@pytest.mark.parametrize("factor", [2, 3])
def test_a_product_before_an_exponent_is_a_cut(factor: int) -> None:
    program, kernels = of_product(lambda p, x: x + x), of_product(lambda p, x: p.scale(x, factor))
    assert [[item.op for item in pair.program.ops] for pair in pairs_of(program, kernels, seed=0)] == [["add", "add", "exp"]]
    reference = BlockReference(program, 2, 0)
    assert reference.check(kernels).equal is (factor == 2)


def test_what_is_averaged_before_an_exponent_is_a_cut() -> None:
    p = mi.new_kernel_graph()
    hidden = p.new_input((4, 64)) @ p.new_input((64, 128)) + p.new_input((128,))
    p.mark_output(p.exp(p.scale(hidden - p.mean(hidden, 0), 2)))
    q = mi.new_kernel_graph()
    hidden = q.new_input((4, 64)) @ q.new_input((64, 128)) + q.new_input((128,))
    q.mark_output(q.exp(q.scale(hidden, 2) - q.scale(q.mean(hidden, 0), 2)))
    [pair] = pairs_of(p.graph(), q.graph(), seed=0)
    assert [item.op for item in pair.program.ops] == ["mean", "sub", "scale", "exp"]


@pytest.mark.parametrize(("few", "checks"), [(1 << 20, 2), (1, 1)])
def test_a_part_that_floats_refuse_decides_about_a_large_program(
    few: int, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = list[Graph]()

    def refused(reference: Reference, candidates: Sequence[Graph]) -> list[FloatCheck]:
        checked.append(reference.program)
        return [FloatCheck(False, 0.0, 0.0, None) for _ in candidates]

    monkeypatch.setattr(block_reference, "FEW", few)
    monkeypatch.setattr(block_reference, "float_checks", refused)
    reference = BlockReference(of_product(lambda p, x: x + x))
    [check] = reference.float_checks([of_product(lambda p, x: p.scale(x, 2))])
    assert not check.ok and len(checked) == checks


@pytest.mark.parametrize(("few", "checks"), [(1 << 20, 2), (1, 1)])
def test_what_the_field_alone_refuses_is_not_checked_again_where_it_is_large(
    few: int, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maxima of a field do not commute with additions."""

    def largest(adds_first: bool, scale: int = 1) -> Graph:
        p = mi.new_kernel_graph()
        product, bias = p.new_input((4, 64)) @ p.new_input((64, 128)), p.new_input((4, 1))
        p.mark_output(p.max(product + bias, 1) if adds_first else p.scale(p.max(product, 1), scale) + bias)
        return p.graph()

    checked, check_all = list[Graph](), Reference.check_all

    def counted(own: Reference, candidates: Sequence[Graph]) -> list[Timed]:
        checked.append(own.program)
        return check_all(own, candidates)

    monkeypatch.setattr(Reference, "check_all", counted)
    monkeypatch.setattr(block_reference, "FEW", few)
    reference = BlockReference(largest(True))
    assert reference.check(largest(False)).verdict is Equality.UNDECIDED and len(checked) == checks
    assert reference.check(largest(False, scale=2)).verdict is Equality.NOT_EQUAL
