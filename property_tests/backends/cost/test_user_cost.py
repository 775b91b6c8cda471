"""A user's cost takes the place of predicted times in the search, sees what a kernel does, and is never below them."""

import re
from collections.abc import Callable
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.cost.user_cost import CostedKernel, priced, user_cost
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.expand import expand
from mirage_eg.pipeline.run.cache_lookup import identity, run_request
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.plan_records import SegmentKernels
from mirage_eg.search.partition.segment_search import Task, find_kernels
from mirage_eg.search.structure_search import SearchLimits

H100 = DEVICES["H100"]
Cost = Callable[[CostedKernel], float]


def program() -> mi.Graph:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16, 1024), name="X"), graph.new_input((1024, 64), name="W")
    graph.mark_output(graph.exp(graph.matmul(x, w)), name="O")
    return expand(graph.graph())


def one_block(kernel: CostedKernel) -> float:
    return kernel.us + 100.0 * (prod(kernel.grid) > 1)


def best(cost: Cost | None) -> SegmentKernels:
    device = priced(H100, None if cost is None else user_cost(cost))
    task = Task(load_rules(), device, SearchLimits(max_states=2_000), Filters(), 0)
    [found] = find_kernels(task, [program()])
    return next(it for it in found.kernels if it.fused and it.count == 1)


def test_a_users_cost_changes_the_winner() -> None:
    given, own = best(None), best(one_block)
    assert prod(given.graph.blocks[0].grid) > 1 and prod(own.graph.blocks[0].grid) == 1
    assert own.us == pytest.approx(predict_us(own.graph, H100))
    assert own.us > given.us


def test_a_cost_sees_ops_attributes_and_extents() -> None:
    seen = list[CostedKernel]()

    def noted(kernel: CostedKernel) -> float:
        seen.append(kernel)
        return kernel.us

    graph = mi.new_kernel_graph()
    graph.mark_output(graph.sum(graph.div(graph.new_input((16, 64)), graph.new_input((16, 64))), 1))
    costs = predict(graph.graph(), priced(H100, user_cost(noted)))
    assert costs == predict(graph.graph(), H100)
    ops = [it for kernel in seen for it in kernel.ops]
    assert [(it.op, it.result) for it in ops] == [("div", (16, 64)), ("sum", (16, 1))]
    assert ops[1].attributes == {"dim": 1} and ops[1].operands == ((16, 64),)


def test_a_division_before_a_sum_costs_more_by_the_cost_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how_to" / "running.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)

    def graph(before: bool) -> mi.Graph:
        own = mi.new_kernel_graph()
        x, y = own.new_input((4096, 64)), own.new_input((4096, 1))
        own.mark_output(own.sum(own.div(x, y), 1) if before else own.div(own.sum(x, 1), y))
        return own.graph()

    device = priced(H100, user_cost(names["cost"]))
    assert predict_us(graph(True), device) > 200 + predict_us(graph(False), device)


@pytest.mark.parametrize("value", [0.0, float("nan"), True, "1"])
def test_a_cost_below_the_prediction_is_refused(value: float) -> None:
    with pytest.raises(OptionError, match="wanted at least its predicted"):
        predict(program(), priced(H100, user_cost(lambda kernel: value)))


def test_a_cost_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.py"
    path.write_text("def twice(kernel):\n    return 2 * kernel.us\n", encoding="utf-8")
    options = Options(cost=f"{path}:twice")
    assert predict_us(program(), options.device_record) == pytest.approx(2 * predict_us(program(), H100))
    found = identity("p", program(), options)["options"]
    assert found["cost"].startswith(f"{path}:twice") and found["gpu"] == asdict(H100)
    assert run_request("p", program(), options, on_gpu=False).cache is None
    for wrong in (f"{path}:thrice", f"{tmp_path / 'other.py'}:twice", "twice"):
        with pytest.raises(OptionError, match="cost: "):
            Options(cost=wrong)
