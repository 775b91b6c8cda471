"""JSON for graphs: exact round trips, and one line for every mistake."""

import copy
import json
import pickle
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM
from mirage_eg.ir.serialize import LARGEST_FILE, LATER_FIELDS, from_json, load, to_json
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.ir.weights import without_weights

EXTENTS = st.sampled_from([1, 2, 3, 4, 6])
NAMES = st.none() | st.text("abcXYZ_αβ 01'\"\\", min_size=1, max_size=8)
RATIONALS = st.fractions(min_value=-100, max_value=100, max_denominator=1000)


@st.composite
def kernel_graphs(draw: st.DrawFn) -> Graph:
    """Small programs that use every kind of attribute, some with a hand-written block graph."""
    program = new_kernel_graph()
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    values = [
        program.new_input(shape, draw(st.sampled_from(["float16", "float32"])), name=draw(NAMES))
        for _ in range(draw(st.integers(1, 3)))
    ]
    for _ in range(draw(st.integers(1, 6))):
        values.append(draw(one_more(program, values)))
    if draw(st.booleans()):
        values.append(program.add(*block(draw, program, values[0])))
    for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique_by=lambda value: value.position)):
        program.mark_output(value, draw(NAMES))
    return program.graph()


@st.composite
def one_more(draw: st.DrawFn, program: KernelGraph, values: list[Tensor]) -> Tensor:
    x = draw(st.sampled_from(values))
    same = [value for value in values if value.shape == x.shape]
    dim = draw(st.integers(0, len(x.shape) - 1))
    match draw(
        st.sampled_from(["binary", "unary", "constant", "reduce", "reshape", "norm", "concat", "slice", "split", "transpose"])
    ):
        case "binary":
            return program.op(draw(st.sampled_from(["add", "sub", "mul", "div"])), x, draw(st.sampled_from(same)))
        case "unary":
            return program.op(draw(st.sampled_from(["exp", "silu", "sqrt", "square"])), x)
        case "constant":
            return program.shift(program.scale(x, draw(RATIONALS)), draw(RATIONALS))
        case "reduce":
            return program.op(draw(st.sampled_from(["sum", "mean", "max", "softmax"])), x, dim=dim)
        case "reshape":
            return program.reshape(x, (1, *x.shape))
        case "norm":
            return program.rms_norm(x, x.shape[-1], eps=draw(st.sampled_from([Fraction(0), Fraction(1, 1000)])))
        case "concat":
            return program.concat([x, draw(st.sampled_from(same))], dim)
        case "slice":
            return program.slice(x, dim, draw(st.integers(0, x.shape[dim] - 1)), x.shape[dim], draw(st.integers(1, 2)))
        case "split":
            return program.split(x, x.shape[dim], dim)[0]
        case _:
            return program.transpose(x, draw(st.permutations(range(len(x.shape)))))


def block(draw: st.DrawFn, program: KernelGraph, x: Tensor) -> list[Tensor]:
    """A kernel of two equal outputs that walks dim 0 of x in a loop and sums it, with partial results over a grid dim of 1."""
    inner = new_threadblock_graph((1, 2), (64, 1, 1), x.shape[0])
    tile = inner.new_input(x, (-1, -1), 0)
    total = inner.forloop_accum(inner.exp(tile), draw(st.sampled_from([None, "sum", "mean", "rms"])))
    for _ in range(2):
        inner.new_output(total, (NEW_DIM, -1))
    return program.customized([x], inner)


@given(kernel_graphs())
def test_a_graph_survives_the_way_through_json_exactly(graph: Graph) -> None:
    assert from_json(to_json(graph)) == graph
    assert from_json(to_json(graph).encode()) == graph
    assert to_json(from_json(to_json(graph))) == to_json(graph)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("batch", [1, 8, 16])
def test_workloads_survive_the_way_through_json(name: str, batch: int) -> None:
    graph = WORKLOADS[name](batch)
    assert from_json(to_json(graph)) == graph


def test_different_graphs_have_different_json() -> None:
    texts = {to_json(workload(batch)) for workload in WORKLOADS.values() for batch in (1, 2)}
    assert len(texts) == 2 * len(WORKLOADS)


def objects(data: Any) -> Iterator[dict[str, Any]]:
    """Every object in JSON data, outermost first."""
    if isinstance(data, dict):
        yield data
        for value in data.values():
            yield from objects(value)
    elif isinstance(data, list):
        for value in data:
            yield from objects(value)


def refusal(data: Any) -> str:
    """The one line with which the reader refuses."""
    with pytest.raises(GraphError) as caught:
        from_json(data if isinstance(data, str | bytes) else json.dumps(data), "some.json")
    message = str(caught.value)
    assert message.startswith("some.json: "), message
    assert "\n" not in message and len(message) < 800
    return message


@given(kernel_graphs(), st.data())
def test_deleting_any_field_is_noticed(graph: Graph, data: st.DataObject) -> None:
    whole = json.loads(to_json(graph))
    fields = [(entry, name) for entry in objects(whole) for name in entry if (entry.get("op"), name) not in LATER_FIELDS]
    assert len(fields) > 10
    owner, name = fields[data.draw(st.integers(0, len(fields) - 1))]
    del owner[name]
    message = refusal(whole)
    assert name in message or "format" in message


def test_a_file_from_before_a_field_was_there_is_read() -> None:
    whole = json.loads(to_json(WORKLOADS["lora"](1)))
    for entry in objects(whole):
        for op, name in LATER_FIELDS:
            if entry.get("op") == op:
                entry.pop(name, None)
    assert from_json(json.dumps(whole)) == without_weights(WORKLOADS["lora"](1))


@given(kernel_graphs(), st.data())
def test_a_field_of_a_wrong_type_is_noticed(graph: Graph, data: st.DataObject) -> None:
    whole = json.loads(to_json(graph))
    places = [(entry, name) for entry in objects(whole) for name in entry]
    owner, name = places[data.draw(st.integers(0, len(places) - 1))]
    owner[name] = data.draw(st.sampled_from([True, 1.5, {"a": 1}, [[1]], [None], -7.0]))
    refusal(whole)


@given(kernel_graphs(), st.data())
def test_a_shape_that_contradicts_its_op_is_noticed(graph: Graph, data: st.DataObject) -> None:
    whole = json.loads(to_json(graph))
    results = [entry for entry in objects(whole) if "id" in entry and "shape" in entry]
    result = data.draw(st.sampled_from(results))
    result["shape"] = data.draw(st.sampled_from([result["shape"] + [1], [extent + 1 for extent in result["shape"]], []]))
    assert "but the op makes" in refusal(whole)


@given(kernel_graphs(), st.data())
def test_a_dangling_id_is_noticed(graph: Graph, data: st.DataObject) -> None:
    whole = json.loads(to_json(graph))
    users = [entry for entry in objects(whole) if entry.get("operands")]
    user = data.draw(st.sampled_from(users))
    user["operands"][0] = data.draw(st.sampled_from([-1, 10_000]))
    assert re.search(r"node \d+: .*no id of a result before this node", refusal(whole))


@given(kernel_graphs(), st.data())
def test_a_file_cut_anywhere_is_noticed(graph: Graph, data: st.DataObject) -> None:
    text = to_json(graph).rstrip()
    refusal(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.binary() | st.text())
def test_noise_is_no_graph(noise: bytes | str) -> None:
    refusal(noise)


def test_ids_need_not_be_in_order() -> None:
    graph = WORKLOADS["lora"](1)
    data = json.loads(to_json(graph))
    for entry in objects(data):
        if "id" in entry:
            entry["id"] = 900 - entry["id"]
        if "operands" in entry:
            entry["operands"] = [900 - operand for operand in entry["operands"]]
    assert from_json(json.dumps(data)) == graph


def test_minus_two_in_an_omap_may_be_written_new() -> None:
    program = new_kernel_graph()
    x = program.new_input((4, 6))
    inner = new_threadblock_graph((2,), forloop_range=3)
    inner.new_output(inner.forloop_accum(inner.new_input(x, (0,), 1), "sum", 1), (NEW_DIM,))
    program.customized([x], inner)
    text = to_json(program.graph())
    assert '"omap": [-2]' in text
    assert from_json(text.replace('"omap": [-2]', '"omap": ["new"]')) == program.graph()


GOOD: dict[str, Any] = json.loads(to_json(WORKLOADS["rmsnorm"](1)))


def changed(**fields: Any) -> dict[str, Any]:
    return copy.deepcopy(GOOD) | fields


def with_node(at: int, **fields: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    data["graph"]["nodes"][at] |= fields
    return data


MISTAKES = {
    "an empty file": ("", "not JSON"),
    "a list": ([], "got a list of 0"),
    "another format": (changed(format="onnx"), '"mirage_eg.graph"'),
    "a later version": (changed(version=2), "got version 2, wanted 1"),
    "a version that is a text": (changed(version="1"), 'got version "1", wanted 1'),
    "a field too many": (changed(comment="hello"), 'unknown field "comment"'),
    "an unknown op": (with_node(3, op="rms_nrom"), 'node 3: got op "rms_nrom"'),
    "an unknown attribute": (with_node(4, dim=1), 'node 4: matmul: got unknown field "dim"'),
    "an unknown dtype": (with_node(0, dtype="float17"), "node 0: input: got dtype 'float17'"),
    "operands that do not fit": (with_node(4, operands=[0, 1]), "node 4: matmul: got [2, 4096] and [4096]"),
    "too few operands": (with_node(4, operands=[3]), "node 4: matmul: got 1 operand, wanted 2"),
    "a result too many": (with_node(5, results=[{"id": 9, "shape": [1]}]), "node 5: output: got 1 results, wanted 0"),
    "an id twice": (with_node(1, results=[{"id": 0, "shape": [4096]}]), "node 1: input: got result id 0 a second time"),
    "a rational that is a number": (with_node(3, eps=0.1), "node 3: rms_norm: got eps = 0.1"),
    "a denominator of 0": (with_node(3, eps="1/0"), "node 3: rms_norm: got eps"),
    "a level below": (changed(graph=GOOD["graph"] | {"level": "block"}), "field `grid` is missing"),
    "a name of two lines": (with_node(0, name="a\nb"), "node 0: input: got name"),
    "a name with half a character": (with_node(0, name="\ud800"), "node 0: input: got name"),
    "a field twice": ('{"format": "mirage_eg.graph", "version": 1, "version": 1}', 'field "version" occurs twice'),
    "a thousand brackets": ("[" * 100_000, "nested too deeply"),
    "NaN": ('{"format": NaN}', "got NaN"),
    "a number of 5,000 digits": ("1" * 5000, "not JSON that can be read"),
    "an extent of 3,000 digits": (with_node(0, shape=[10**3000, 1]), "node 0: input: got shape = a list of 2"),
    "bytes that are no text": (b"\xff\xfe{}", "byte 0 is not UTF-8"),
    "too large a file": (" " * (LARGEST_FILE + 1), "got more than 16 MiB"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_names_the_mistake_and_its_place(mistake: str) -> None:
    data, wanted = MISTAKES[mistake]
    assert wanted in refusal(data)


def test_a_mistake_inside_a_block_graph_is_found_by_both_nodes() -> None:
    program = new_kernel_graph()
    x = program.new_input((4, 6))
    inner = new_threadblock_graph((2,), forloop_range=3)
    inner.new_output(inner.forloop_accum(inner.new_input(x, (0,), 1)), (0,))
    program.customized([x], inner)
    text = to_json(program.graph())
    assert "node 1: block: node 0: input: got 5 parts of dim 0 of [4, 6]" in refusal(text.replace('"grid": [2]', '"grid": [5]'))


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json", tmp_path / ("long" * 200)):
        with pytest.raises(GraphError, match=f"{path}: cannot be read: "):
            load(path)


@given(kernel_graphs(), st.booleans())
def test_a_graph_is_sent_to_other_processes_without_its_derived_values(graph: Graph, derived: bool) -> None:
    before = pickle.dumps(graph)
    if derived:
        names = [name for name, value in vars(Graph).items() if isinstance(value, cached_property)]
        assert {getattr(graph, name) is not None for name in names} == {True}
    assert pickle.dumps(graph) == before
    again = pickle.loads(before)
    assert (again, again.types, hash(again)) == (graph, graph.types, hash(graph))
