"""Any program goes through the measurements: whole where one block graph may hold it, else in segments."""

import pytest

from mirage_eg.frontend.workloads import STANDARD, WORKLOADS
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.lab.bench.search_programs import search_programs
from mirage_eg.search.partition.segments import counts
from mirage_eg.transforms.simplify import primitive_form


@pytest.mark.parametrize("workload", STANDARD)
def test_a_program_of_one_block_graph_is_searched_whole(workload: str) -> None:
    program = WORKLOADS[workload](1)
    [part] = search_programs(workload, program)
    assert part.name == workload and part.parted_because is None
    assert sum(map(counts, part.program.nodes)) == sum(map(counts, primitive_form(expand(program)).nodes))


@pytest.mark.parametrize("workload", ["mlp_block", "decoder_layer"])
def test_the_segments_of_a_larger_program_compute_all_its_ops(workload: str) -> None:
    program = WORKLOADS[workload](1)
    parts = search_programs(workload, program)
    assert len(parts) > 1 and len({part.program for part in parts}) == len(parts)
    assert len({part.parted_because for part in parts} - {None}) == 1
    ops = {item.op for part in parts for item in part.program.nodes if counts(item)}
    assert ops == {item.op for item in primitive_form(expand(program)).nodes if counts(item)}


def test_a_program_of_library_ops_alone_is_refused() -> None:
    program = new_kernel_graph()
    program.mark_output(program.cumsum(program.new_input((4, 8), name="x"), 1))
    with pytest.raises(UnsupportedError, match="no segment can be searched"):
        search_programs("sums", program.graph())
