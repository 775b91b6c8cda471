"""The evaluator says of every graph what explicit loops over its blocks and iterations say, in every algebra."""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator import field_semantics, floating_point
from mirage_eg.backends.evaluator.algebra import Algebra
from mirage_eg.backends.evaluator.evaluate import evaluate, evaluate_while
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.slicing import slicing_of
from mirage_eg.ir.arguments import exact
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, Phase, node
from mirage_eg.ir.op.activations import erf
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from mirage_eg.testing import EVERY, TAME, as_program, block_graphs, every_mutant, programs
from mirage_eg.verify.check_state import COARSE
from property_tests.support.abstract_terms import TermAlgebra, TermValue

Read = Callable[[Sequence[Any]], list[np.ndarray]]
SEEDS = st.integers(0, 2**32 - 1)


def read_floats(values: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(value) for value in values]


def read_field(algebra: FieldAlgebra) -> Read:
    """Residues, with not-a-number where undefined."""

    def read(values: Sequence[FieldValue]) -> list[np.ndarray]:
        components = algebra.read(values)
        return [x.residues if x.undefined is None else np.where(x.undefined, np.nan, x.residues) for x in components]

    return read


def offset_slices(block: Graph, item: Node, index: Sequence[int], f: int) -> tuple[slice, ...]:
    """Where block `index` finds its tile in iteration f: each dim split by its grid dims in order, then by the loop."""
    slices = []
    for dim, extent in enumerate(item["shape"]):
        count, place = 1, 0
        steps = zip((*block.grid, block.loop), (*item["imap"], item.get("fmap", -1)), (*index, f), strict=True)
        for parts, target, number in steps:
            if target == dim:
                count, place = count * parts, place * parts + number
        length = next(length for length in range(1, extent + 1) if length * count >= extent)
        slices.append(slice(place * length, min(extent, (place + 1) * length)))
    return tuple(slices)


def extents(block: Graph, value: int, index: Sequence[int], f: int) -> tuple[int, ...]:
    """Those of a tile of block `index` in iteration f."""
    shape = block.types[value].shape
    return tuple(
        extent if cut is None else min(extent, cut.extent - sum((*index, f)[place] * step for place, step in cut.steps))
        for extent, cut in zip(shape, block.cuts.get(value, (None,) * len(shape)), strict=True)
    )


def by_loops(graph: Graph, inputs: Sequence[Any], algebra: Algebra[Any], read: Read) -> list[np.ndarray]:
    """The meaning of a block graph, block by block and iteration by iteration."""
    graph = expand(graph)
    results = [np.full(kind.shape, np.inf) for kind in graph.output_types]
    for index in itertools.product(*map(range, graph.grid)):
        for result, kind, item, tile in zip(
            results, graph.output_types, graph.outputs, read(one_block(graph, inputs, algebra, index)), strict=True
        ):
            omap = item["omap"]
            place: list[Any] = [i for i, target in zip(index, omap, strict=True) if target == NEW_DIM]
            lead = len(place)
            for dim, extent in enumerate(graph.types[item.operands[0]].shape):
                number = 0
                for parts, target, i in zip(graph.grid, omap, index, strict=True):
                    if target == dim:
                        number = number * parts + i
                place.append(slice(number * extent, number * extent + tile.shape[dim]))
            assert result[tuple(place)].shape == tile.shape and lead + tile.ndim == len(kind.shape)
            result[tuple(place)] = tile
    return results


def one_block(graph: Graph, inputs: Sequence[Any], algebra: Algebra[Any], index: Sequence[int]) -> list[Any]:
    """The stored tiles of one block."""
    values: list[list[Any]] = []  # of each value, its tile in each iteration
    outputs = []
    number = 0
    for item, made in graph.numbered():
        operands = [values[i] for i in item.operands]
        if item.op == "output":
            assert graph.phases[item.operands[0]] is not Phase.LOOP
            outputs.append(operands[0][0])
        elif item.op == "input":
            tiles = []
            for f in range(graph.loop):
                slices = offset_slices(graph, item, index, f)
                shape = tuple(piece.stop - piece.start for piece in slices)
                tiles.append(algebra.view(inputs[number], shape, lambda array, slices=slices: array[slices]))
            values.append(tiles)
            number += 1
        elif OPS[item.op].kind is Kind.ACCUMULATOR:
            values.append([accumulated(item, operands[0], algebra)] * graph.loop)
        else:
            if "shape" in item.mapping:
                shaped = [node(item.op, shape=extents(graph, made[0], index, f)) for f in range(graph.loop)]
            else:
                shaped = [item] * graph.loop
            values.append([applied(shaped[f], [tiles[f] for tiles in operands], algebra) for f in range(graph.loop)])
    return outputs


def applied(item: Node, operands: list[Any], algebra: Algebra[Any]) -> Any:
    row, shapes = OPS[item.op], [algebra.shape(x) for x in operands]
    match row.kind:
        case Kind.ELEMENTWISE:
            return algebra.elementwise(item.op, padded(operands, algebra), item.mapping)
        case Kind.MATMUL:
            return algebra.matmul(*padded(operands, algebra))
        case Kind.REDUCTION:
            return algebra.reduce(item.op, operands[0], (item["dim"] - len(shapes[0]),))
        case Kind.REARRANGEMENT:
            return algebra.rearrange(row, operands, 0, item.mapping)
        case _:
            assert item.op == "thread"
            given, values = iter(operands), []
            for inner in item["graph"].nodes:
                if inner.op == "output":
                    return values[inner.operands[0]]
                values.append(
                    next(given) if inner.op == "input" else applied(inner, [values[i] for i in inner.operands], algebra)
                )
            raise AssertionError("a graph without an output")


def padded(operands: list[Any], algebra: Algebra[Any]) -> list[Any]:
    rank = max(len(algebra.shape(x)) for x in operands)
    shapes = [(1,) * (rank - len(algebra.shape(x))) + algebra.shape(x) for x in operands]
    return [algebra.view(x, s, lambda array, s=s: array.reshape(s)) for x, s in zip(operands, shapes, strict=True)]


def accumulated(item: Node, tiles: list[Any], algebra: Algebra[Any]) -> Any:
    """Iteration by iteration, without reductions over a loop dim."""
    shape = algebra.shape(tiles[0])
    dim = item.get("dim")
    if item.op == "accum_strided_sum":
        columns = item["columns"]
        groups = []
        for tile in tiles:
            for k in range(shape[dim] // columns):
                piece = (*[slice(None)] * dim, slice(k * columns, (k + 1) * columns))
                kept = (*shape[:dim], columns, *shape[dim + 1 :])
                groups.append(algebra.view(tile, kept, lambda array, piece=piece: array[piece]))
        tiles, dim = groups, None
    kind = OPS[item.op].reduction
    if dim is not None:
        tiles = [algebra.reduce(kind, algebra.join(tiles, dim), (dim - len(shape),))]
    match kind:
        case "max":
            shape = algebra.shape(tiles[0])
            rows = [algebra.view(tile, (1, *shape), lambda array: array[np.newaxis]) for tile in tiles]
            largest = algebra.reduce("max", algebra.join(rows, 0), (-1 - len(shape),))
            return algebra.view(largest, shape, lambda array: array[0])
        case "sum" | "mean":
            total = tiles[0]
            for tile in tiles[1:]:
                total = algebra.elementwise("add", [total, tile], {})
            factor = Fraction(1, len(tiles))
            return algebra.elementwise("scale", [total], {"factor": factor}) if kind == "mean" else total
        case _:
            raise AssertionError(kind)


def normal_inputs(graph: Graph, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(kind.shape) for kind in graph.input_types]


def field_inputs(graph: Graph, algebra: FieldAlgebra) -> list[FieldValue]:
    return [algebra.input(i, kind.shape) for i, kind in enumerate(graph.input_types)]


def assert_close(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for x, want in zip(got, wanted, strict=True):
        assert x.shape == want.shape
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        np.testing.assert_allclose(x, want, rtol=1e-9, atol=1e-10 * scale)


@given(block_graphs(TAME), SEEDS)
def test_a_block_graph_means_its_explicit_loops_in_float64(graph: Graph, seed: int) -> None:
    inputs = normal_inputs(graph, seed)
    assert_close(evaluate(graph, inputs, FloatAlgebra()), by_loops(graph, inputs, FloatAlgebra(), read_floats))


@given(block_graphs(EVERY), SEEDS)
def test_a_block_graph_means_its_explicit_loops_in_the_field(graph: Graph, seed: int) -> None:
    algebra = FieldAlgebra.of(seed)
    inputs = field_inputs(graph, algebra)
    got = read_field(algebra)(evaluate(graph, inputs, algebra))
    for x, want in zip(got, by_loops(graph, inputs, algebra, read_field(algebra)), strict=True):
        np.testing.assert_array_equal(x, want)


@given(block_graphs(EVERY), SEEDS, st.integers(1, 40))
def test_evaluating_in_slices_of_the_grid_changes_nothing(graph: Graph, seed: int, elements: int) -> None:
    algebra = FieldAlgebra.of(seed)
    inputs = field_inputs(graph, algebra)
    read = read_field(algebra)
    for x, y in zip(read(evaluate(graph, inputs, algebra, elements)), read(evaluate(graph, inputs, algebra)), strict=True):
        np.testing.assert_array_equal(x, y)


@given(st.data(), SEEDS)
def test_a_mutated_block_graph_equal_in_the_field_is_equal_in_float64(data: st.DataObject, seed: int) -> None:
    graph = data.draw(block_graphs(TAME - COARSE - {"relu", "clamp", "accum_max"}, attempts=5))
    others = every_mutant(graph)
    assume(others)
    mutant = data.draw(st.sampled_from(others))
    algebra = FieldAlgebra.of(seed)
    inputs, read = field_inputs(graph, algebra), read_field(algebra)
    pairs = zip(read(evaluate(graph, inputs, algebra)), read(evaluate(mutant, inputs, algebra)), strict=True)
    if all(np.array_equal(x, y, equal_nan=True) for x, y in pairs):
        numbers = normal_inputs(graph, seed)
        assert_close(evaluate(mutant, numbers, FloatAlgebra()), by_loops(graph, numbers, FloatAlgebra(), read_floats))


@given(programs(TAME), SEEDS, st.integers(1, 12))
def test_evaluating_a_program_in_slices_of_an_axis_changes_nothing(program: Graph, seed: int, elements: int) -> None:
    program = expand(program)
    inputs = [np.random.default_rng(seed).standard_normal(kind.shape) for kind in program.input_types]
    whole = evaluate(program, inputs, FloatAlgebra())
    for got, want in zip(evaluate(program, inputs, FloatAlgebra(), elements), whole, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_attention_is_cut_along_its_heads_and_along_no_reduced_axis() -> None:
    program = KernelGraph()
    q, k, v = program.new_input((6, 4, 3)), program.new_input((6, 3, 8)), program.new_input((6, 8, 3))
    program.mark_output(program.matmul(program.softmax(program.matmul(q, k), 2), v))
    plan = slicing_of(expand(program.graph()), 40)
    assert plan is not None and len(plan.slices) == 5 and plan.output_dims == (0,)
    assert plan.slices[0].windows == ((0, 0, 1), (0, 0, 1), (0, 0, 1))
    assert slicing_of(expand(program.graph()), 10_000) is None


@pytest.mark.parametrize(("elements", "slices"), [(40, 5), (10_000, 1)])
def test_evaluation_under_a_condition_ends_at_the_first_slice_that_fails_it(elements: int, slices: int) -> None:
    program = KernelGraph()
    q, k = program.new_input((6, 4, 3)), program.new_input((6, 3, 8))
    program.mark_output(program.exp(program.matmul(q, k)))
    inputs = [np.random.default_rng(0).standard_normal(kind.shape) for kind in program.graph().input_types]
    seen: list[np.ndarray] = []

    def holds(outputs: Sequence[np.ndarray]) -> bool:
        seen.extend(outputs)
        return len(seen) < last

    [whole] = evaluate(program.graph(), inputs, FloatAlgebra())
    for last in range(1, slices + 1):
        seen.clear()
        assert evaluate_while(program.graph(), inputs, FloatAlgebra(), elements, holds) is None and len(seen) == last
    seen.clear()
    last = slices + 1
    results = evaluate_while(program.graph(), inputs, FloatAlgebra(), elements, holds)
    assert results is not None
    [got] = results
    np.testing.assert_allclose(got, whole, rtol=1e-12)
    np.testing.assert_array_equal(np.concatenate(seen, axis=2), got)


@pytest.mark.parametrize("working", [DType.float32, DType.float64])
def test_large_arrays_are_computed_piece_by_piece_to_the_same_numbers(working: DType) -> None:
    x = np.random.default_rng(0).standard_normal((3, 40_000)).astype(np.float32)
    x[0, :3] = np.inf, -np.inf, np.nan
    row, small = x[:, :1], FloatAlgebra(np, working)
    for op, operands in (("div", (x, row)), ("gelu", (x,)), ("sqrt", (x,)), ("mul", (row, x))):
        whole = small.elementwise(op, operands, {})
        parts = [
            small.elementwise(op, [y if y is row else y[:, i : i + 100] for y in operands], {}) for i in range(0, 40_000, 100)
        ]
        assert whole.dtype == np.dtype(str(working))
        np.testing.assert_array_equal(whole, np.concatenate(parts, axis=1))


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_float16_is_rounded_as_numpy_does(numbers: list[float]) -> None:
    x = np.array(numbers, dtype=np.float32)
    x = np.concatenate([x, x * np.float32(1e-5), np.float32(65519) + x, np.float32([2**-14, 2**-25, 65520, 65519.99])])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(FloatAlgebra(np, DType.float32, rounds=True).cast(x, DType.float16), want)


@given(programs(EVERY), SEEDS)
def test_expanding_derived_ops_changes_no_meaning(graph: Graph, seed: int) -> None:
    algebra = FieldAlgebra.of(seed)
    inputs, read = field_inputs(graph, algebra), read_field(algebra)
    for x, y in zip(read(evaluate(graph, inputs, algebra)), read(evaluate(expand(graph), inputs, algebra)), strict=True):
        np.testing.assert_array_equal(x, y)


@given(block_graphs(EVERY))
def test_every_algebra_gives_values_of_the_checked_shapes(block: Graph) -> None:
    graph = as_program(block)
    terms, field = TermAlgebra(), FieldAlgebra.of()
    named = [terms.input(name, kind.shape) for name, kind in zip(graph.input_names, graph.input_types, strict=True)]
    for value, kind in zip(evaluate(graph, named, terms), graph.output_types, strict=True):
        assert terms.shape(value) == kind.shape
    values = evaluate(graph, field_inputs(graph, field), field)
    for value, component, kind in zip(values, field.read(values), graph.output_types, strict=True):
        assert value.shape == component.residues.shape == kind.shape
    for array, kind in zip(evaluate(graph, normal_inputs(graph, 0), FloatAlgebra()), graph.output_types, strict=True):
        assert array.shape == kind.shape


@pytest.mark.parametrize("table", [floating_point.ELEMENTWISE, field_semantics.ELEMENTWISE], ids=["floats", "field"])
def test_every_elementwise_op_of_the_op_table_has_a_meaning_and_no_other(table: dict[str, Any]) -> None:
    assert set(table) == {name for name, row in OPS.items() if row.kind is Kind.ELEMENTWISE}


def test_every_reduction_of_the_op_table_has_a_meaning() -> None:
    assert set(floating_point.REDUCTIONS) == {name for name, row in OPS.items() if row.kind is Kind.REDUCTION}


def strided_sum(columns: int) -> Graph:
    program = KernelGraph()
    x = program.new_input((2, 24))
    block = ThreadblockGraph((1,), forloop_range=2)
    tile = block.new_input(x, (-1,), 1)
    block.new_output(block.forloop_accum_strided(tile, columns, 1), (-1,))
    program.customized([x], block)
    return program.graph()


def test_a_strided_group_sum_adds_every_kth_column_not_contiguous_groups() -> None:
    x = np.random.default_rng(1).standard_normal((2, 24))
    [got] = evaluate(strided_sum(4), [x], FloatAlgebra())
    np.testing.assert_allclose(got, x.reshape(2, 2, 3, 4).sum(axis=(1, 2)))
    assert not np.allclose(got, x.reshape(2, 2, 4, 3).sum(axis=(1, 3)))


def test_a_loop_invariant_value_counts_once_for_each_iteration() -> None:
    program = KernelGraph()
    x = program.new_input((2, 3))
    block = ThreadblockGraph((1,), forloop_range=5)
    block.new_output(block.forloop_accum(block.new_input(x, (-1,))), (-1,))
    program.customized([x], block)
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(evaluate(program.graph(), [array], FloatAlgebra())[0], 5 * array)


def test_two_grid_dims_on_one_data_dim_are_a_mixed_radix_number() -> None:
    program = KernelGraph()
    x = program.new_input((12,))
    block = ThreadblockGraph((2, 3))
    tile = block.new_input(x, (0, 0))
    block.new_output(block.reduction(tile, 0), (NEW_DIM, NEW_DIM))
    program.customized([x], block)
    [got] = evaluate(program.graph(), [np.arange(12.0)], FloatAlgebra())
    np.testing.assert_array_equal(got[:, :, 0], np.arange(12.0).reshape(2, 3, 2).sum(axis=2))


def test_inputs_of_another_number_or_shape_are_refused_with_both_shapes() -> None:
    graph = strided_sum(4)
    with pytest.raises(GraphError, match=r"got \[2, 23\] as input x0, wanted \[2, 24\]"):
        evaluate(graph, [np.zeros((2, 23))], FloatAlgebra())
    with pytest.raises(GraphError, match="got 0 inputs, wanted 1"):
        evaluate(graph, [], FloatAlgebra())


def terms_of(graph: Graph, algebra: TermAlgebra) -> list[Any]:
    values: list[TermValue] = evaluate(graph, [algebra.input(n, t.shape) for n, t in named(graph)], algebra)
    return [value.term for value in values]


def named(graph: Graph) -> list[tuple[str, Any]]:
    return list(zip(graph.input_names, graph.input_types, strict=True))


def test_abstract_terms_forget_indices_and_keep_sizes() -> None:
    program = KernelGraph()
    x, y = program.new_input((2, 6), name="x"), program.new_input((6, 4), name="y")
    program.mark_output(program.scale(program.matmul(program.exp(x), y), Fraction(1, 8)))
    program.mark_output(program.transpose(program.mean(x, 1), (1, 0)))
    program.mark_output(program.split(x, 2, 1)[1])
    assert terms_of(program.graph(), TermAlgebra()) == [
        ("Scale", Fraction(1, 8), ("Sum", 6, ("Mul", ("Exp", ("Var", "x")), ("Var", "y")))),
        ("Mean", 6, ("Var", "x")),
        ("Slice", 1, 3, 6, 1, ("Var", "x")),
    ]


def test_an_accumulator_is_one_sum_over_the_loop_and_the_dim() -> None:
    assert terms_of(strided_sum(4), TermAlgebra()) == [("Sum", 6, ("Var", "x0"))]


@given(programs(EVERY))
def test_equal_terms_of_one_algebra_are_one_object(graph: Graph) -> None:
    algebra = TermAlgebra()
    assert all(x is y for x, y in zip(terms_of(graph, algebra), terms_of(graph, algebra), strict=True))


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=20))
def test_the_error_function_is_exact_to_the_last_digits(numbers: list[float]) -> None:
    got = erf(np, np.array(numbers))
    np.testing.assert_allclose(got, [math.erf(x) for x in numbers], rtol=0, atol=4e-16)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_bfloat16_is_rounded_as_torch_does(numbers: list[float]) -> None:
    torch = pytest.importorskip("torch")
    wanted = torch.tensor(numbers, dtype=torch.float32).to(torch.bfloat16).to(torch.float32).numpy()
    got = FloatAlgebra(working=DType.float32, rounds=True).cast(np.array(numbers, dtype=np.float32), DType.bfloat16)
    np.testing.assert_array_equal(got, wanted)


def test_values_are_rounded_where_the_kernels_store_them_and_nowhere_else() -> None:
    program = KernelGraph()
    x = program.new_input((1,), dtype="float16")
    program.mark_output(program.shift(program.shift(x, 2048), -2048))
    one = np.ones(1)
    rounding = FloatAlgebra(working=DType.float32, rounds=True)
    assert evaluate(program.graph(), [one], rounding)[0] == 0  # 2049 is no float16
    block = ThreadblockGraph((1,))
    tile = block.new_input(x, (REPLICATED,))
    block.new_output(block.shift(block.shift(tile, exact(2048)), exact(-2048)), (REPLICATED,))
    fused = KernelGraph()
    y = fused.new_input((1,), dtype="float16")
    fused.customized([y], block)
    assert evaluate(fused.graph(), [one], rounding)[0] == 1
