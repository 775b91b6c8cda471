"""Bits of two tensors of integers are inside, in all their types, and fused where no sum of theirs may wrap."""

from collections.abc import Callable

import pytest
import torch

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.search.partition.segments import barriers
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.torch_import import imported

OPS = ("bitwise_and", "bitwise_or", "bitwise_xor")
TYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_bits_of_two_tensors_are_those_of_torch(dtype: torch.dtype) -> None:
    low, high = (0, 2) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(low, high, (7, 5), generator=generator).to(dtype) for _ in range(2))
    for name in OPS:
        function = getattr(torch, name)
        for other in (y, y[:1]):
            it = imported(function, x, other)
            assert it.outside == ()
            assert torch.equal(it.run(x, other), function(x, other))


def _program(write: Callable[[KernelGraph, Tensor, Tensor], Tensor]) -> Graph:
    g = new_kernel_graph()
    g.mark_output(g.cast(write(g, *(g.new_input((8, 16), "int32") for _ in range(2))), "float32"))
    return g.graph()


@pytest.mark.parametrize("name", OPS)
def test_bits_of_two_integers_are_fused_and_commute(name: str) -> None:
    program = _program(lambda g, x, y: g.op(name, x, y))
    assert not barriers(program)
    assert Reference(program).check(_program(lambda g, x, y: g.op(name, y, x))).verdict is Equality.EQUAL
    for other in {*OPS} - {name}:
        assert Reference(program).check(_program(lambda g, x, y, op=other: g.op(op, x, y))).verdict is Equality.NOT_EQUAL
