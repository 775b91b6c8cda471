"""Thread graphs: formed where intermediates have one reader, and nothing else changes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.optimizer.thread_graphs import form_threads, thread_graphs, thread_groups
from mirage_eg.pipeline.make_report import optimizer_summary
from mirage_eg.report.rewriting import threads_html
from mirage_eg.testing import EVERY, as_program, block_graphs
from mirage_eg.verify.reference import verify
from property_tests.support.hand_written import HAND_WRITTEN, check_random, in_dtype

PLAIN = EVERY - {"thread"}


def block_of(graph: Graph) -> Graph:
    [block] = [item["graph"] for item in graph.nodes if item.op == "block"]
    assert isinstance(block, Graph)
    return block


@given(block=block_graphs(PLAIN, attempts=14))
def test_forming_threads_keeps_the_function(block: Graph) -> None:
    program = as_program(block)
    formed = form_threads(program)
    inputs = [np.random.default_rng(2).standard_normal(kind.shape) for kind in program.input_types]
    with np.errstate(all="ignore"):
        for got, want in zip(*(evaluate(graph, inputs, FloatAlgebra()) for graph in (formed, program)), strict=True):
            assert np.array_equal(got, want, equal_nan=True)
    assert from_json(to_json(formed)) == formed


@given(block=block_graphs(PLAIN, attempts=14))
def test_a_thread_graph_holds_all_ops_that_only_its_result_needs(block: Graph) -> None:
    """No op is left outside whose only reader is an elementwise op of its phase and shape; none inside has another reader."""
    readers: dict[int, set[int]] = {}
    for position, item in enumerate(block.nodes):
        for operand in item.operands:
            readers.setdefault(operand, set()).add(position)
    group = {position: number for number, members in enumerate(thread_groups(block)) for position in members}
    values = [made for _, made in block.numbered()]
    for position, item in enumerate(block.nodes):
        if OPS[item.op].kind is not Kind.ELEMENTWISE:
            assert position not in group
            continue
        users = readers.get(values[position][0], set())
        one = next(iter(users)) if len(users) == 1 else None
        together = (
            one is not None
            and OPS[block.nodes[one].op].kind is Kind.ELEMENTWISE
            and block.phases[values[one][0]] is block.phases[values[position][0]]
            and block.types[values[one][0]].shape == block.types[values[position][0]].shape
        )
        if together:
            assert one is not None
            assert position in group
            assert group[position] == group.get(one)
        else:
            assert all(position not in group or group[position] != group.get(user) for user in users)


@given(block=block_graphs(PLAIN, attempts=14))
def test_forming_threads_again_changes_nothing(block: Graph) -> None:
    formed = form_threads(as_program(block))
    assert form_threads(formed) == formed


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_graphs_with_threads_pass_the_field_check_and_lower_alike(name: str) -> None:
    graphs = HAND_WRITTEN[name]("float16")
    formed = form_threads(graphs.mugraph)
    assert verify(graphs.program, formed).equal
    assert bool(list(thread_graphs(formed))) == any(
        thread_groups(item["graph"]) for item in graphs.mugraph.nodes if item.op == "block"
    )


def test_some_hand_written_graph_has_a_thread_graph() -> None:
    formed = form_threads(HAND_WRITTEN["n_transformer"]("float16").mugraph)
    assert [len(graph.nodes) > 3 for graph in thread_graphs(formed)] == [True]


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_the_report_shows_the_ops_of_each_block_before_and_after(name: str) -> None:
    graph = HAND_WRITTEN[name]("float16").mugraph
    records = optimizer_summary(optimize_mugraph(graph, DEVICES["H100"])).thread_graphs
    blocks = [item["graph"] for item in graph.nodes if item.op == "block"]
    for block, record in zip(blocks, records, strict=True):
        written = [item.op for item in block.nodes if OPS[item.op].kind is not Kind.BOUNDARY and item.op != "thread"]
        assert Counter(record.before) == Counter(written)
        taken_in = sum(len(chain) - 1 for chain in record.chains)
        assert len(record.before) - len(record.after) == taken_in
        assert record.after.count("thread") == len(record.chains)
    assert bool(threads_html(records)) == any(record.chains for record in records)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(block=block_graphs(PLAIN, attempts=10), seed=st.integers(0, 99))
def test_kernels_with_threads_run_as_they_mean(run_program: RunProgram, block: Graph, seed: int) -> None:
    check_random(run_program, form_threads(as_program(in_dtype(block, "float32"))), seed, Schedule())


def test_ops_in_threads_are_emitted_as_ops_of_the_block() -> None:
    graph = HAND_WRITTEN["rms_norm_linear"]("float16").mugraph
    body = [emit(each).split("@triton.jit")[1].split("# name:")[0] for each in (graph, form_threads(graph))]
    assert sorted(body[0].split()) == sorted(body[1].split())
