"""Deep programs are cut where no substitution is lost: a recurrent net between its steps; as before if nothing is lost."""

import pytest

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.region_cuts import values_to_cut_at
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.lab.published_models import bert, nasrnn
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.search.partition.regions import regions
from mirage_eg.search.partition.segments import segment_program

H200 = find_device("h200")
MOST = 32


def parts_of(program: Graph, segments: tuple[Segment, ...]) -> list[Graph]:
    return [segment_program(program, segment) for segment in segments]


def cut_at(program: Graph) -> frozenset[int] | None:
    return values_to_cut_at(program, parts_of(program, regions(program, MOST)), H200, 10.0)


def test_a_recurrent_net_is_cut_between_its_steps_alone() -> None:
    program = nasrnn(3, width=16).program
    assert len(set(parts_of(program, regions(program, MOST)))) > 1, "without the cuts a step is no region"
    found = cut_at(program)
    assert found is not None
    steps = parts_of(program, regions(program, MOST, found))
    assert len(steps) == 3 and len(set(steps)) == 1


def test_gates_that_one_product_computes_stay_in_one_region() -> None:
    """The next cell state of an LSTM connects all that is behind it with all before, but for the output gate."""
    program = new_kernel_graph()
    x, h, c = (program.new_input((1, 16), name=name) for name in "xhc")
    wx, wh = ({gate: program.new_input((16, 16), name=f"{kind}{gate}", weight=True) for gate in "ifgo"} for kind in "xh")
    for _ in range(3):
        z = {gate: x @ wx[gate] + h @ wh[gate] for gate in "ifgo"}
        c = program.sigmoid(z["f"]) * c + program.sigmoid(z["i"]) * program.tanh(z["g"])
        h = program.sigmoid(z["o"]) * program.tanh(c)
    program.mark_output(h)
    graph = program.graph()
    assert len(regions(graph, MOST)) == 2
    found = cut_at(graph)
    assert found is not None and len(regions(graph, MOST, found)) == 1


def test_encoder_layers_are_cut_as_before() -> None:
    assert cut_at(bert(3, 8, 16, 2).program) is None


def test_programs_without_weights_are_cut_as_before() -> None:
    program = nasrnn(3, width=16).program
    given = [Node(item.op, item.operands, tuple(it for it in item.attributes if it[0] != "weight")) for item in program.nodes]
    assert cut_at(Graph(tuple(given))) is None


@pytest.mark.parametrize("most", [4, 8, 30])
def test_wanted_cuts_are_the_only_ones_while_regions_stay_small(most: int) -> None:
    program = new_kernel_graph()
    x = program.new_input((4, 4), name="x")
    for number in range(24):
        x = program.relu(x @ program.new_input((4, 4), name=f"w{number}"))
    program.mark_output(x)
    graph = program.graph()
    wanted = frozenset([own[0] for item, own in graph.numbered() if item.op == "relu"][4::5])  # every ten ops
    parts = regions(graph, most, wanted)
    assert {part.outputs[0] for part in parts[:-1]} <= wanted and len(parts) > 1
    assert max(len(part.nodes) for part in parts) <= max(most, 10)
    others = regions(graph, most, frozenset())
    assert max(len(part.nodes) for part in others) <= 4 * most
    assert {i for part in others for i in part.nodes} == {i for part in parts for i in part.nodes}
