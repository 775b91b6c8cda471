"""The library's softmax reads a long row three times: on an H200 it took twice as long as a copy. Few rows are few blocks."""

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.ir.graph import Graph


def softmax(rows: int, row: int, dtype: str = "float16") -> Graph:
    program = new_kernel_graph()
    program.mark_output(program.softmax(program.new_input((rows, row), dtype), 1))
    return program.graph()


@pytest.mark.parametrize(("row", "measured"), [(65_536, 133.1), (131_072, 288.3), (262_144, 552.5)])  # benchmarks/clusters.py
def test_softmax_of_long_rows_takes_about_what_was_measured(row: int, measured: float) -> None:
    assert predict_us(softmax(1024, row), DEVICES["H200"]) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("row", "dtype", "times"), [(24_576, "float16", 2), (24_577, "float16", 4), (24_576, "float32", 4)])
def test_a_row_is_read_again_where_it_exceeds_shared_memory(row: int, dtype: str, times: int) -> None:
    graph = softmax(512, row, dtype)
    [cost] = predict(graph, DEVICES["H200"])
    assert cost.dram_bytes == times * graph.types[0].nbytes


def layer_norm(rows: int, row: int) -> Graph:
    program = new_kernel_graph()
    program.mark_output(program.layer_norm(program.new_input((rows, row), "float32"), row, eps=1e-5))
    return program.graph()


def test_few_long_rows_are_few_thread_blocks() -> None:
    few, many = (predict_us(layer_norm(rows, (1 << 26) // rows), DEVICES["H200"]) for rows in (16, 4096))
    assert few > 4 * many
