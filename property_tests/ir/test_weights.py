"""Inputs that are weights: marks that files keep, and the values that are computed once for them."""

import pytest

from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.node import node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.weights import marked_weights, matching_inputs, prepared_values, with_weights, without_weights


def sum_of_weights(returned: bool = False) -> Graph:
    graph = new_kernel_graph()
    x = graph.new_input((4, 8), name="x")
    w, v = (graph.new_input((8, 8), name=name, weight=True) for name in "wv")
    joined = w + v
    graph.mark_output(x @ joined + x @ (graph.transpose(x, (1, 0)) @ x))
    if returned:
        graph.mark_output(joined)
    return graph.graph()


def test_a_file_keeps_the_marks() -> None:
    graph = sum_of_weights()
    assert from_json(to_json(graph)) == graph and '"weight": true' in to_json(graph)
    assert "weight" not in to_json(without_weights(graph))
    with pytest.raises(GraphError, match="got weight = false, wanted true or null"):
        from_json(to_json(graph).replace('"weight": true', '"weight": false'))


def test_values_of_weights_alone_are_prepared() -> None:
    graph = sum_of_weights()
    [added] = (
        values[0] for item, values in graph.numbered() if item.op == "add" and set(item.operands) == marked_weights(graph)
    )
    assert prepared_values(graph) == {added}


def test_nothing_is_prepared_without_marks_or_for_an_output() -> None:
    assert prepared_values(without_weights(sum_of_weights())) == frozenset()
    assert prepared_values(sum_of_weights(returned=True)) == frozenset()


def test_patterns_name_weights_and_marks_add_up() -> None:
    plain = without_weights(sum_of_weights())
    assert with_weights(plain, matching_inputs(plain, ["w", "v*"])) == sum_of_weights()
    assert with_weights(plain, []) is plain
    with pytest.raises(OptionError, match="got 'u', wanted the name of an input: x, w, v"):
        matching_inputs(plain, ["u"])


def test_a_block_graph_has_no_weights() -> None:
    tile = node("input", shape=(4,), dtype="float16", imap=(0,), fmap=-1, weight=True)
    with pytest.raises(GraphError, match="got weight in a block graph"):
        Graph((tile, node("output", 0, omap=(0,))), Level.BLOCK, (4,))


def test_attributes_of_inputs_and_outputs_change_alone() -> None:
    p = new_kernel_graph()
    x, y = p.new_input((8, 4), "float32", "x"), p.new_input((8, 4), "float32", "y")
    p.mark_output(p.add(p.exp(x), y), "sum")
    program = p.graph().keeping_undefined()
    changed = with_attributes(program, [{}, {"weight": True, "name": "z"}], [{"name": None}])
    assert changed.keeps_undefined and changed.input_names == ("x", "z") and changed.ops == program.ops
    assert [item.get("weight") for item in changed.inputs] == [None, True] and changed.outputs[0].get("name") is None
    assert with_attributes(changed, [{}, {"weight": None, "name": "y"}], [{"name": "sum"}]) == program
    assert with_attributes(program) is program
