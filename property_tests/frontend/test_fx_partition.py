"""Partition of random FX graphs: programs and outside nodes in some order compute what torch computes."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.ir.ops import OPS, Kind
from property_tests.support.torch_import import AsModule, exported, relative_error

UNARY: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.tanh(),
    lambda x: torch.atan(x),  # no op of the IR
    lambda x: x.t(),
    lambda x: x[:, 1:].sigmoid() @ x[1:],
    lambda x: torch.cat([x.chunk(2)[1], x.chunk(2)[0].tanh()]),
    lambda x: x.max(1, keepdim=True).values - x.sum(0),
    lambda x: torch.atan(x).t().contiguous(),
    lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: x + y,
    lambda x, y: x @ y.t(),
    lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, y: torch.atan2(x, y),  # no op of the IR
    lambda x, y: torch.stack([x, y]).mean(0),
)
Step = tuple[int, int, int]  # an op, and the values that it takes


class RandomModel(torch.nn.Module):
    """Steps on a list of values that begins with an argument, a weight and a buffer; the last three values are returned."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.steps = steps
        self.weight = torch.nn.Parameter(torch.randn(4, 4, generator=generator))
        self.register_buffer("table", torch.randn(4, 4, generator=generator))

    def forward(self, x: Any) -> Any:
        values = [x, self.weight, self.table]
        for op, first, second in self.steps:
            x, y = values[first % len(values)], values[second % len(values)]
            result = UNARY[op](x) if op < len(UNARY) else BINARY[op - len(UNARY)](x, y)
            values.append(result / (result.abs().max() + 1))  # so that no value grows
        return tuple(values[-3:])


@given(st.lists(st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 99), st.integers(0, 99)), max_size=12))
@settings(max_examples=settings.default.max_examples // 2)
def test_a_random_graph_computes_what_torch_computes(steps: list[Step]) -> None:
    model = RandomModel(steps)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    it = mi.torch.import_program(exported(model, x))
    with torch.no_grad():
        wanted = RandomModel(steps).double()(x.double())
    with torch.no_grad():
        assert relative_error(it.run(x), wanted) <= 1e-4
    for graph in it.programs:
        read = {operand for item in graph.nodes for operand in item.operands}
        assert all(values[0] in read for item, values in graph.numbered() if item.op == "input")
        assert any(OPS[item.op].kind not in (Kind.BOUNDARY, Kind.REARRANGEMENT) for item in graph.nodes)


def test_a_random_value_of_weights_is_computed_once_a_call() -> None:
    weight = torch.nn.Linear(4, 4)
    it = mi.torch.import_program(exported(AsModule(lambda x: _noise(weight.weight, x)), torch.randn(4, 4)))
    assert {node.op for node in it.outside} == {"aten.rand_like.default", "aten.atan.default"}
    first, second = it.run(torch.zeros(4, 4))
    assert (first == second).all() and (it.run(torch.zeros(4, 4))[0] != first).any()


def _noise(weight: Any, x: Any) -> Any:
    noise = torch.rand_like(weight) + weight
    return noise * 2 + x, torch.atan(x) + noise * 2


def test_a_chain_without_outside_nodes_is_one_program() -> None:
    it = mi.torch.import_program(exported(AsModule(lambda x: (x.tanh() @ x.t()).sigmoid()), torch.randn(4, 4)))
    assert len(it.programs) == 1 and it.outside == ()
