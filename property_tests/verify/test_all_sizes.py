"""Verdicts for a range of sizes: `equal` at the sizes that were tested alone is `undecided` for the others."""

from collections.abc import Callable
from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.verify.all_sizes import SizesVerdict, verify_sizes
from mirage_eg.verify.verdict import Equality
from property_tests.support.command import run_command

Write = Callable[[KernelGraph, Tensor, Tensor], Tensor]


def over_keys(write: Write) -> Graph:
    """A program that reduces the named dim."""
    graph = mi.new_kernel_graph()
    n = mi.Dim("n", min=2, max=100)
    graph.mark_output(write(graph, graph.new_input((8, n), name="Y"), graph.new_input((n, 16), name="X")), name="O")
    return graph.graph()


def over_rows(write: Write) -> Graph:
    """A program with a named number of rows."""
    graph = mi.new_kernel_graph()
    n = mi.Dim("n", min=2, max=100)
    graph.mark_output(write(graph, graph.new_input((n, 16), name="X"), graph.new_input((16, 8), name="W")), name="O")
    return graph.graph()


def weighted(g: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    return g.matmul(g.softmax(x, 1), y)


def shifted(g: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    """The same with another exponential, which no law shows."""
    e = g.exp(g.sub(x, g.max(x, 1)))
    return g.div(g.matmul(e, y), g.sum(e, 1))


def one_at(g: KernelGraph, n: Tensor, sizes: tuple[int, ...]) -> Tensor:
    factor = g.shift(n, -sizes[0])
    for size in sizes[1:]:
        factor = g.mul(factor, g.shift(n, -size))
    return g.shift(factor, 1)


def times_one_at(dim: int) -> Write:
    """Times 1 + (n − 2)(n − 53)(n − 100), the sizes of tests, with n a sum of ones."""

    def write(g: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
        ones = g.shift(g.scale(g.slice(x, 1 - dim, 0, 1), 0), 1)
        return g.mul(weighted(g, x, y), one_at(g, g.sum(ones, dim), (2, 53, 100)))

    return write


def verdict_of(program: Graph, candidate: Graph, least: int = 2, largest: int = 100) -> SizesVerdict:
    return verify_sizes(program, candidate, {"n": SizeRange(least, largest)})


@pytest.mark.parametrize(("written", "dim"), [(over_keys, 1), (over_rows, 0)])
def test_a_factor_that_is_one_at_the_tested_sizes_is_undecided(written: Callable[[Write], Graph], dim: int) -> None:
    verdict = verdict_of(written(weighted), written(times_one_at(dim)))
    assert verdict.verdict is Equality.UNDECIDED and not verdict.equal
    assert "undecided but for the sizes that were tested" in verdict.text and "n=2, n=53, n=100" in verdict.text
    assert verdict_of(written(weighted), written(times_one_at(dim)), largest=40).verdict is Equality.NOT_EQUAL


def test_an_unproved_graph_is_equal_where_every_size_was_tested() -> None:
    assert verdict_of(over_keys(weighted), over_keys(shifted)).verdict is Equality.UNDECIDED
    verdict = verdict_of(over_keys(weighted), over_keys(shifted), 3, 20)
    assert verdict.equal and not verdict.proof.proved and "tested at every size" in verdict.text
    assert sorted(verdict.tested) == [(("n", n),) for n in range(3, 21)]


def test_rows_that_no_op_combines_need_no_proof() -> None:
    verdict = verdict_of(over_rows(weighted), over_rows(shifted))
    assert verdict.equal and not verdict.proof.proved and "no op combines elements of n" in verdict.text


def broadcast_ones(g: KernelGraph, x: Tensor, y: Tensor) -> Tensor:
    ones = g.broadcast(g.shift(g.scale(g.slice(g.reshape(y, (1, 128)), 1, 0, 1), 0), 1), (1, x.shape[0]))
    return g.mul(weighted(g, x, y), one_at(g, g.sum(ones, 1), (2, 53, 100)))


def test_a_count_of_broadcast_ones_is_undecided_too() -> None:
    assert verdict_of(over_rows(weighted), over_rows(broadcast_ones)).verdict is Equality.UNDECIDED


def test_the_program_itself_is_equal_at_all_sizes() -> None:
    for written in (over_keys, over_rows):
        assert verdict_of(written(weighted), written(weighted)).equal


def test_verify_prints_undecided_and_the_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, graph in (("program", over_keys(weighted)), ("candidate", over_keys(times_one_at(1)))):
        (tmp_path / f"{name}.json").write_text(serialize.to_json(graph), encoding="utf-8")
    files = tmp_path / "program.json", tmp_path / "candidate.json"
    code, out, _ = run_command(capsys, "verify", *files)
    assert code == 1 and "n = 2 … 100: undecided" in out and "n=53" in out
    code, out, _ = run_command(capsys, "verify", *files, "--json")
    assert code == 1 and '"undecided"' in out and '"equal": false' in out


def test_sizes_drawn_at_random_find_a_factor_that_is_one_elsewhere() -> None:
    ranges = {"n": SizeRange(2, 100)}
    wrong = verify_sizes(over_keys(weighted), over_keys(times_one_at(1)), ranges, random_sizes=3)
    assert wrong.verdict is Equality.NOT_EQUAL and not wrong.likely
    right = verify_sizes(over_keys(weighted), over_keys(shifted), ranges, random_sizes=3)
    assert right.likely and not right.equal and right.drawn > 0
