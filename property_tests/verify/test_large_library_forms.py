"""The library form of a large program needs no float check: its kernels are the ops of the program."""

import pytest

import mirage_eg as mi
from mirage_eg.ir.expand import expand
from mirage_eg.verify import block_reference
from mirage_eg.verify.block_reference import BlockReference


def test_no_numbers_are_drawn_for_the_ops_of_a_large_program(monkeypatch: pytest.MonkeyPatch) -> None:
    p = mi.new_kernel_graph()
    hidden = p.silu(p.new_input((4, 64)) @ p.new_input((64, 128)))
    p.mark_output(hidden @ p.new_input((128, 64)))
    program = expand(p.graph())
    [small] = BlockReference(program, 2, 0).float_checks([program])
    assert small.ok and small.compared
    monkeypatch.setattr(block_reference, "FEW", 1 << 8)
    monkeypatch.setattr(block_reference, "float_checks", lambda *_: pytest.fail("numbers were drawn"))
    reference = BlockReference(program, 2, 0)
    [large] = reference.float_checks([program])
    assert large.ok and not large.compared and large.problem is None
