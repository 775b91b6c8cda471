"""Sizes that are chosen later: expressions are the numbers that they stand for, and resized graphs keep their meaning."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.at_sizes import at_sizes, dims_of, sizes_of
from mirage_eg.ir.builder import KernelGraph, new_kernel_graph
from mirage_eg.ir.errors import GraphError, TiedToSizeError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.sizes import Dim, SizeExpression, SizeRange, divisor, most, parts_of, read_dim

EXTENTS = st.integers(1, 50)


@given(EXTENTS, EXTENTS, st.lists(st.tuples(st.sampled_from("*+|"), EXTENTS), max_size=5))
def test_a_size_is_the_value_of_its_text_and_its_divisor_divides_it(low: int, high: int, steps: list[tuple[str, int]]) -> None:
    size: int = SizeExpression(low, "n", max(low, high))
    for sign, number in steps:
        size = size * number if sign == "*" else number + size if sign == "+" else parts_of(size, number)
    assert eval(str(size), {"n": low}) == size and eval(f"{size}", {"n": max(low, high)}) == most(size)
    assert size % divisor(size) == 0


@given(st.integers(1, 99), st.integers(1, 999), st.integers(1, 40))
def test_a_dim_is_read_back_from_its_declaration(least: int, more: int, multiple: int) -> None:
    dim = Dim("n", min=least, max=least + more + multiple, multiple_of=multiple)
    assert read_dim(dim.declaration).declaration == dim.declaration
    assert dim.check(dim.hint) == dim.hint and dim.min >= least and dim.max % multiple == 0


def attention() -> KernelGraph:
    graph = new_kernel_graph()
    n, b = Dim("n", max=512), Dim("b", max=9)
    q, k, v = (graph.new_input(shape, "float32") for shape in ((b, 4, 6), (b, 6, n), (b, n, 6)))
    x = graph.matmul(graph.softmax(graph.matmul(q, k), 2), v)
    graph.mark_output(graph.reshape(x, (b * 4, 6)))
    return graph


@given(st.integers(1, 40), st.integers(1, 9))
def test_a_program_at_other_sizes_is_the_program_written_there(n: int, b: int) -> None:
    program = attention().graph()
    there = at_sizes(program, {"n": n, "b": b})
    assert sizes_of(there) == {"n": n, "b": b} and at_sizes(there, sizes_of(program)) == program
    arrays = [np.random.default_rng(0).standard_normal(kind.shape) for kind in there.input_types]
    scores = np.exp(arrays[0] @ arrays[1])
    wanted = (scores / scores.sum(2, keepdims=True)) @ arrays[2]
    [got] = evaluate(there, arrays, FloatAlgebra())
    np.testing.assert_allclose(got, wanted.reshape(4 * b, 6), rtol=1e-9)


def test_a_program_keeps_its_dims_in_json() -> None:
    program = attention().graph()
    assert from_json(to_json(program)) == program
    assert {name: dim.declaration for name, dim in dims_of(program).items()} == {"b": "b=2:9", "n": "n=2:512"}


def test_a_sum_over_a_dim_divided_by_it_is_its_mean() -> None:
    graph, n = new_kernel_graph(), Dim("n", max=100)
    x = graph.new_input((3, n), "float32")
    mean = graph.sum(x, 1) / x.shape[1]
    assert [item.op for item in graph.nodes] == ["input", "sum", "mean"] and mean.shape == (3, 1)
    assert [item.op for item in graph.graph().nodes] == ["input", "mean", "output"]
    with pytest.raises(GraphError, match="got the size n as divisor"):
        _ = graph.square(x) / n
    with pytest.raises(GraphError, match="got the size n as a constant"):
        _ = x + n  # type: ignore[operator]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("n", 9, 3, 1), "Dim n: got min 9 above max 3, wanted min ≤ max"),
        (("n", 0, 3, 1), "Dim n: got min 0, wanted an int of at least 1"),
        (("n", 9, 15, 8), "Dim n: got no multiple of 8 from 9 to 15; wanted one at least"),
        (("2n", 1, 3, 1), "Dim: got name '2n', wanted an identifier, such as n"),
    ],
)
def test_a_dim_that_stands_for_nothing_is_refused(arguments: tuple[str, int, int, int], message: str) -> None:
    name, least, largest, multiple = arguments
    with pytest.raises(GraphError) as error:
        Dim(name, min=least, max=largest, multiple_of=multiple)
    assert str(error.value) == message


def test_extents_of_a_constant_are_sizes_in_order_where_they_agree_now() -> None:
    program = new_kernel_graph()
    n, m = Dim("n"), Dim("m")
    x, one = program.new_input((n, m), name="x"), program.new_input((1,), name="one")
    program.mark_output(program.add(x, program.exp(program.broadcast(one, (n, m)))))
    there = at_sizes(at_sizes(program.graph(), {"n": 16, "m": 16}), {"n": 5, "m": 7})
    assert [kind.shape for kind in there.output_types] == [(5, 7)]


def repeated_along(n: Dim, m: Dim) -> Graph:
    """The input x [n, m], and a constant repeated along m."""
    program = new_kernel_graph()
    x, one = program.new_input((n, m), name="x"), program.new_input((1,), name="one")
    program.mark_output(program.exp(x))
    program.mark_output(program.exp(program.broadcast(one, (m,))))
    return program.graph()


def test_a_constant_along_one_of_two_sizes_is_no_other_or_refused() -> None:
    dims = [Dim(f"m{number}") for number in range(40)]  # more than there are numbers to write them at
    for m in dims[1:]:
        program = repeated_along(dims[0], m)
        if m.hint == dims[0].hint:
            with pytest.raises(TiedToSizeError, match=f"which may be {dims[0].name} or {m.name}; rename one of them"):
                at_sizes(program, {dims[0].name: 5, m.name: 7})
        else:
            there = at_sizes(program, {dims[0].name: 5, m.name: 7})
            assert [kind.shape for kind in there.output_types] == [(5, 7), (7,)]
    assert dims[0].hint in {m.hint for m in dims[1:]}


@pytest.mark.parametrize("largest", [64, 8192])
def test_an_extent_that_a_constant_does_not_keep_is_refused(largest: int) -> None:
    n = Dim("n", max=largest)
    for extent, kept in ((n, True), (2 * n, largest > 66), (n + 1, False)):
        program = new_kernel_graph()
        x = program.new_input((n, 4), "float32", "x")
        program.mark_output(program.add(x, program.sum(program.cast(program.iota(extent), "float32"), 0)))
        if kept:
            assert at_sizes(program.graph(), {"n": 5}).node_of[1]["extent"] == 5 * extent // n
        else:
            with pytest.raises(UnsupportedError, match="which a constant does not keep at other sizes"):
                program.graph()


def test_a_constant_that_took_another_size_has_no_text_for_all() -> None:
    program, sizes = repeated_along(Dim("n"), Dim("m")), {name: SizeRange(2, 16) for name in ("n", "m")}
    assert "def launch" in emit_for_sizes(program, sizes, program=program)
    with pytest.raises(TiedToSizeError, match="another size than in the program"):
        emit_for_sizes(at_sizes(program, {"n": 16, "m": 16}), sizes, program=program)


def test_a_size_that_no_input_has_is_refused() -> None:
    program = new_kernel_graph()
    x, one = program.new_input((Dim("n"), 4), name="x"), program.new_input((1,), name="one")
    program.mark_output(program.add(x, program.reduction(program.broadcast(one, (Dim("m"), 4)), 0)))
    with pytest.raises(UnsupportedError, match="got the size m, which is a dim of no input"):
        program.graph()


def test_what_is_tied_to_the_present_size_is_refused() -> None:
    graph, n = new_kernel_graph(), Dim("n", max=100)
    x = graph.new_input((n, 4))
    graph.mark_output(graph.slice(x, 0, 0, 3))
    with pytest.raises(UnsupportedError, match="slice: got stop 3 of n=2:100, wanted at most"):
        at_sizes(graph.graph(), {"n": 8})
    other = new_kernel_graph()
    other.mark_output(other.add(other.new_input((n, 4)), other.new_input((n.hint, 4))))
    with pytest.raises(TiedToSizeError, match="aligned at the last dim"):
        at_sizes(other.graph(), {"n": 8})


def spread_sums() -> Graph:
    """Row sums and maxima of x, over 4 blocks of 4 iterations of 4 elements; a second kernel joins the parts."""
    first = Graph(
        (
            node("input", shape=(3, 64), dtype="float32", imap=(1,), fmap=1),
            node("sum", 0, dim=1),
            node("accum_sum", 1),
            node("max", 0, dim=1),
            node("accum_max", 3),
            node("output", 2, omap=(NEW_DIM,)),
            node("output", 4, omap=(NEW_DIM,)),
        ),
        Level.BLOCK,
        (4,),
        4,
    )
    last = Graph(
        (
            node("input", shape=(4, 3, 1), dtype="float32", imap=(-1,), fmap=-1),
            node("input", shape=(4, 3, 1), dtype="float32", imap=(-1,), fmap=-1),
            node("sum", 0, dim=0),
            node("max", 1, dim=0),
            node("mul", 2, 3),
            node("output", 4, omap=(-1,)),
        ),
        Level.BLOCK,
        (1,),
    )
    x = node("input", shape=(3, 64), dtype="float32", name="X", dims=",n=1:64")
    return Graph((x, node("block", 0, graph=first), node("block", 1, 2, graph=last), node("output", 3)))


@pytest.mark.parametrize("n", range(1, 65))
def test_blocks_and_iterations_without_elements_count_for_nothing(n: int) -> None:
    there = at_sizes(spread_sums(), {"n": n})
    assert there.blocks[0].grid == (-(-n // 16),) and there.blocks[0].loop == 4
    x = np.random.default_rng(n).standard_normal((3, n)) - 9
    [got] = evaluate(there, [x], FloatAlgebra())
    np.testing.assert_allclose(got, (x.sum(1) * x.max(1)).reshape(1, 3, 1), rtol=1e-12)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 33, 64])
def test_kernels_skip_what_is_empty(run_guarded: RunProgram, n: int) -> None:
    source = emit_for_sizes(spread_sums(), {"n": SizeRange(1, 64)})
    x = np.random.default_rng(n).standard_normal((3, n)) - 9
    [got] = run_guarded(source, [x])
    np.testing.assert_allclose(got, (x.sum(1) * x.max(1)).reshape(1, 3, 1), rtol=1e-5)


def held_rows() -> Graph:
    """Exponentials of rows in one tile of 16, which a second kernel adds to them, one row a block."""
    read = {"shape": (16, 8), "dtype": "float32", "fmap": -1}
    first = Graph((node("input", imap=(-1,), **read), node("exp", 0), node("output", 1, omap=(-1,))), Level.BLOCK, (1,))
    inputs = (node("input", imap=(0,), **read),) * 2
    last = Graph((*inputs, node("add", 0, 1), node("output", 2, omap=(0,))), Level.BLOCK, (16,))
    x = node("input", shape=(16, 8), dtype="float32", name="X", dims="n=2:16,")
    return Graph((x, node("block", 0, graph=first), node("block", 0, 1, graph=last), node("output", 2)))


@pytest.mark.parametrize("n", [2, 15, 16])
def test_one_tile_may_hold_all_sizes_of_a_dim(run_guarded: RunProgram, n: int) -> None:
    [kind] = at_sizes(held_rows(), {"n": SizeExpression(16, "n", 16)}).output_types
    assert isinstance(kind.shape[0], SizeExpression)
    x = np.random.default_rng(n).standard_normal((n, 8))
    [got] = run_guarded(emit_for_sizes(held_rows(), {"n": SizeRange(2, 16)}), [x])
    np.testing.assert_allclose(got, x + np.exp(x), rtol=1e-5)


def colliding() -> Graph:
    """Extents 16 and 32 of features beside n: rows, a product, heads by a reshape, a broadcast, a transpose."""
    graph = new_kernel_graph()
    x = graph.new_input((Dim("n", max=64), 16), name="X")
    y = graph.matmul(x, graph.new_input((16, 16), name="W"))
    heads = graph.op("transpose", graph.reshape(y, (Dim("n", max=64), 2, 8)), permutation=(1, 0, 2))
    scaled = heads * graph.broadcast(graph.new_input((2, 1, 8), name="S"), heads.shape)
    graph.mark_output(scaled, name="H")
    graph.mark_output(graph.transpose(graph.matmul(y, graph.new_input((16, 32), name="V")), (1, 0)), name="T")
    return graph.graph()


@given(st.sampled_from((2, 8, 16, 32)), st.integers(2, 64))
def test_sizes_that_agree_with_features_do_not_mix_with_them(first: int, second: int) -> None:
    program = colliding()
    assert at_sizes(at_sizes(program, {"n": first}), {"n": second}) == at_sizes(program, {"n": second})


@pytest.mark.parametrize("largest", [11, 16, 32, 64, 66, 128])
def test_a_program_is_written_at_a_prime_size(largest: int) -> None:
    hint = Dim("n", max=largest).hint
    assert hint <= largest and all(hint % number for number in range(2, hint))
    assert hint > 2 * largest // 3 or hint > 64  # kernels of small sizes are chosen near the largest


def test_a_program_without_meaning_at_a_size_is_tied_to_its_own() -> None:
    graph, n = new_kernel_graph(), Dim("n", min=1, max=64)
    x = graph.new_input((n, 8))
    graph.mark_output(graph.add(x, graph.new_input((n.hint, 8))))  # equal extents at the present size only
    with pytest.raises(TiedToSizeError):
        at_sizes(graph.graph(), {"n": 7})
    with pytest.raises(KeyError):  # a mistake of the caller is no property of the program
        at_sizes(graph.graph(), {"m": 7})


@pytest.mark.parametrize("first", [16, 67])
@pytest.mark.parametrize("second", [15, 16, 4])
def test_extents_that_ops_make_are_multiples_of_a_size_where_shapes_need_it(first: int, second: int) -> None:
    graph, n = new_kernel_graph(), Dim("n", max=128)
    x, table = graph.new_input((n, 4), "float32"), graph.new_input((32, 4), "float32")
    rows = graph.gather(x, graph.op("floor_divide", graph.iota(2 * n), divisor=2))
    graph.mark_output(rows + graph.reshape(graph.new_input((n, 2, 4), "float32"), (2 * n, 4)))
    graph.mark_output(graph.gather(table, graph.iota(8)) + graph.slice(table, 0, 0, 8))
    written = at_sizes(at_sizes(graph.graph(), {"n": first}), {"n": SizeExpression(second, "n", 128, 1)})
    assert [str(item["extent"]) for item in written.nodes if item.op == "iota"] == ["n * 2", "8"]
