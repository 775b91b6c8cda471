"""Marks of results that a program writes into inputs: which are legal, and which rows need no copy."""

from collections.abc import Callable

import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.written_inputs import rows_in_place, with_written_inputs, written_inputs

Body = Callable[[KernelGraph, Tensor, Tensor, Tensor], list[Tensor]]


def updated(body: Body) -> Graph:
    """A program of a cache, an index and a row; its first result is written into the cache."""
    p = KernelGraph()
    cache = p.new_input((8, 4), "float32", "cache")
    for result in body(p, cache, p.new_input((1,), "int64", "place"), p.new_input((1, 4), "float32", "row")):
        p.mark_output(result)
    return with_written_inputs(p.graph(), {0: 0})


IN_PLACE: dict[str, Body] = {
    "a row": lambda p, cache, place, row: [p.index_write(cache, place, row)],
    "a row that is read": lambda p, cache, place, row: [(new := p.index_write(cache, place, row)), p.exp(new)],
    "two rows": lambda p, cache, place, row: [
        p.index_write(p.index_write(cache, place, row), p.op("add", place, place), p.exp(row))
    ],
}
BY_COPY: dict[str, Body] = {
    "the old rows are read": lambda p, cache, place, row: [p.index_write(cache, place, row), p.exp(cache)],
    "the row is one of the cache": lambda p, cache, place, row: [p.index_write(cache, place, p.slice(cache, 0, 0, 1))],
    "rows between two writes are read": lambda p, cache, place, row: [
        p.index_write(first := p.index_write(cache, place, row), p.op("add", place, place), row),
        p.exp(first),
    ],
    "the rows of another tensor": lambda p, cache, place, row: [p.index_write(p.exp(cache), place, row)],
    "a function of the cache": lambda p, cache, place, row: [p.exp(cache)],
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_rows_that_nothing_else_reads_before_are_written_in_place(name: str) -> None:
    program = updated(IN_PLACE[name])
    assert program.outputs[0].operands[0] in rows_in_place(program)
    assert set(rows_in_place(program).values()) == {program.input_values[0]}


@pytest.mark.parametrize("name", BY_COPY)
def test_other_rows_are_not_written_in_place(name: str) -> None:
    assert not rows_in_place(updated(BY_COPY[name]))


def test_a_mark_is_part_of_the_program_and_not_of_its_types() -> None:
    program = updated(IN_PLACE["a row"])
    plain = with_written_inputs(program, {})
    assert written_inputs(program) == {0: 0} and not written_inputs(plain) and not rows_in_place(plain)
    assert program != plain and program.output_types == plain.output_types
    assert from_json(to_json(program)) == program and from_json(to_json(plain)) == plain


CACHE, ROW = node("input", shape=(8, 4), dtype="float32"), node("input", shape=(1, 4), dtype="float32")
ILLEGAL = {
    "another type": ((CACHE, ROW, node("output", 1, into=0)), "wanted equal types"),
    "no such input": ((CACHE, node("output", 0, into=1)), "wanted the place of an input"),
    "an input that comes later": ((CACHE, node("output", 0, into=1), CACHE), "wanted the place of an input"),
    "twice": ((CACHE, node("output", 0, into=0), node("output", 0, into=0)), "no other result is written into"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_mark_is_refused(name: str) -> None:
    nodes, message = ILLEGAL[name]
    with pytest.raises(GraphError, match=message):
        Graph(nodes)
