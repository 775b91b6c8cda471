"""Loops over keys with a constant mask: which iterations run, that the others have no effect, and which masks are none."""

import re
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.block_order import prepared
from mirage_eg.backends.triton.compile import compile_source, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.backends.triton.skipped_iterations import UniformTile, skipped_iterations
from mirage_eg.ir.builder import Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph
from mirage_eg.ir.weights import without_weights
from property_tests.support.fake_driver import FakeArray, FakeDriver, FakeLibrary
from property_tests.support.parameters import few

HEADS, WIDTH = 1, 4
Masked = Callable[[ThreadblockGraph, Tensor, Tensor, Tensor], Tensor]  # of scores, mask, −∞

MASKED: dict[str, tuple[str, Masked]] = {
    "product": ("bool", lambda b, x, m, low: b.mul(b.exp(x), m)),
    "numbers": ("float32", lambda b, x, m, low: b.mul(m, b.exp(x))),
    "choice": ("bool", lambda b, x, m, low: b.where(m, b.exp(x), 0)),
    "filled": ("bool", lambda b, x, m, low: b.exp(b.where(m, x, low))),
    "added": ("float32", lambda b, x, m, low: b.exp(b.add(x, m))),
    "inverse": ("bool", lambda b, x, m, low: b.mul(b.exp(x), b.shift(b.scale(b.cast(m, "float32"), -1), 1))),
}


def attention(
    form: str, queries: int, keys: int, tiles: int, loop: int, parts: int = 1, weights: tuple[str, ...] = ("mask", "low")
) -> Graph:
    """Sums of exp(x) · d · v where a mask is true, over their sum; `d` and `v` may be poisoned where it is not."""
    kernel, (dtype, masked) = new_kernel_graph(), MASKED[form]

    def given(name: str, shape: tuple[int, ...], kind: str = "float32") -> Tensor:
        return kernel.new_input(shape, kind, name, weight=name in weights)

    scores, factors = given("x", (HEADS, queries, keys)), given("d", (HEADS, queries, keys))
    mask, low, values = given("mask", (queries, keys), dtype), given("low", (1,)), given("v", (HEADS, keys, WIDTH))
    block = new_threadblock_graph((HEADS, tiles, parts), forloop_range=loop)
    x, d = (block.new_input(tensor, (0, 1, 2), 2) for tensor in (scores, factors))
    m = block.new_input(mask, (REPLICATED, 0, 1), 1)
    number = block.new_input(low, (REPLICATED,) * 3)
    e = block.mul(masked(block, x, m, number), d)
    sums = [
        block.forloop_accum(block.matmul(e, block.new_input(values, (0, REPLICATED, 1), 1))),
        block.forloop_accum(e, "sum", 2),
    ]
    tensors = [scores, factors, mask, low, values]
    if parts == 1:
        block.new_output(block.div(*sums), (0, 1, REPLICATED))
        kernel.customized(tensors, block)
        return kernel.graph()
    for total in sums:
        block.new_output(total, (0, 1, NEW_DIM))
    partial = kernel.customized(tensors, block)
    combine = new_threadblock_graph((HEADS,))
    totals = [combine.sum(combine.new_input(part, (1,)), 0) for part in partial]
    combine.new_output(combine.reshape(combine.div(*totals), (1, queries, WIDTH)), (0,))
    kernel.customized(partial, combine)
    return kernel.graph()


def as_given(form: str, mask: Any) -> Any:
    """An indicator of what counts, as the program takes it."""
    if form == "inverse":
        return 1 - mask
    return np.where(mask, 0.0, -inf) if form == "added" else mask.astype(float)


def arrays_for(form: str, mask: Any) -> list[Any]:
    random = np.random.default_rng(3)
    shape = (HEADS, *mask.shape)
    values = random.standard_normal((HEADS, mask.shape[1], WIDTH))
    return [random.standard_normal(shape), random.random(shape) + 0.5, as_given(form, mask), np.array([-inf]), values]


def bounds_of(mask: Any, tiles: int, loop: int, of_bool: bool = True) -> Any:
    """For each tile of queries the first iteration with a true entry and the end of the last, and the first and the end of the
    longest run that is true everywhere; parts are equal but the last. Masks of numbers are read in all of them."""
    rows, columns = (-(-extent // count) for extent, count in zip(mask.shape, (tiles, loop), strict=True))
    bounds = []
    for tile in range(tiles):
        seen = [mask[tile * rows : (tile + 1) * rows, i * columns : (i + 1) * columns].sum() for i in range(loop)]
        live = [i for i, count in enumerate(seen) if count]
        first, end = (live[0], live[-1] + 1) if live else (0, 0)
        whole = [not of_bool or seen[i] == rows * columns for i in range(loop)]
        runs = [(i, j) for i in range(first, end) for j in range(i + 1, end + 1) if all(whole[i:j])]
        bounds.append((first, end, *max(runs, key=lambda run: (run[1] - run[0], -run[0]), default=(1, 1))))  # an empty run
    return np.array(bounds)


def causal(queries: int, keys: int) -> Any:
    return np.tril(np.ones((queries, keys)), keys - queries)


def window(queries: int, keys: int) -> Any:
    return causal(queries, keys) - np.tril(np.ones((queries, keys)), keys - queries - 5)


def diagonal_blocks(queries: int, keys: int) -> Any:
    return np.kron(np.eye(2), np.ones((queries // 2, keys // 2)))


def check_poisoned(run: RunProgram, form: str, mask: Any, tiles: int, loop: int, parts: int = 1) -> None:
    """Bit by bit what the whole loop gives, although each entry that only a skipped iteration reads is NaN."""
    graph, arrays = attention(form, *mask.shape, tiles, loop, parts), arrays_for(form, mask)
    wanted = run(emit(without_weights(graph)), arrays)
    rows, columns = -(-mask.shape[0] // tiles), -(-mask.shape[1] // (loop * parts))
    skipped = 0
    for part in range(parts):
        own = mask[:, part * loop * columns : (part + 1) * loop * columns]
        for tile, (first, end, *_) in enumerate(bounds_of(own, tiles, loop)):
            for i in (*range(first), *range(end, loop)):
                start = (part * loop + i) * columns
                arrays[1][:, tile * rows : (tile + 1) * rows, start : start + columns] = np.nan
                skipped += 1
    assert skipped
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(run(emit(graph), arrays), wanted, strict=True))


@pytest.mark.parametrize("form", few(MASKED, 3))
def test_skipped_iterations_read_nothing_and_change_no_bit(run_program: RunProgram, form: str) -> None:
    check_poisoned(run_program, form, causal(16, 16), 4, 8)


@pytest.mark.parametrize(
    ("mask", "tiles", "loop", "parts"),
    few(
        [
            (causal(10, 24), 3, 5, 1),
            (causal(24, 10), 4, 3, 1),  # rows that are masked whole
            (window(20, 20), 5, 7, 1),
            (diagonal_blocks(16, 12), 4, 6, 1),
            (causal(16, 48), 4, 4, 3),
            (window(16, 48), 2, 6, 2),
        ],
        3,
    ),
)
def test_windows_blocks_ragged_sizes_and_parts_of_keys(
    run_program: RunProgram, mask: Any, tiles: int, loop: int, parts: int
) -> None:
    check_poisoned(run_program, "product", mask, tiles, loop, parts)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_bounds_hold_every_iteration_with_an_entry_that_counts(data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    tiles, loop, rows, columns = (data.draw(st.integers(1, 4)) for _ in range(4))
    queries = max(2, data.draw(st.integers((tiles - 1) * rows + 1, tiles * rows)))  # a vector of numbers is no mask
    keys = data.draw(st.integers(loop * columns + 1, (loop + 1) * columns))
    form = data.draw(st.sampled_from(sorted(MASKED)))
    entries = data.draw(st.lists(st.booleans(), min_size=queries * keys, max_size=queries * keys))
    mask = np.array(entries, dtype=int).reshape(queries, keys)
    with loaded(emit(attention(form, queries, keys, tiles, loop + 1))) as module:
        given_mask = torch.from_numpy(as_given(form, mask)).to(getattr(torch, module.INPUTS["mask"][1]))
        others = {"low": torch.tensor([-inf])}
        names = list(module.INPUTS)
        [bounds] = module.prepare(*(given_mask if names[place] == "mask" else others[names[place]] for place in module.WEIGHTS))
    of_bool = MASKED[form][0] == "bool" and form != "inverse"
    assert np.array_equal(bounds.numpy().reshape(tiles, 4), bounds_of(mask, tiles, loop + 1, of_bool))


@pytest.mark.parametrize("form", MASKED)
def test_iterations_where_a_mask_is_true_everywhere_do_not_read_it(form: str) -> None:
    source = emit(attention(form, 16, 16, 4, 8))
    _, *loops = re.split(r"for \w+ in", source[: source.index("tl.store(")])
    reading = ["mask_ptr" in loop for loop in loops]
    assert reading == ([False, True] if form in ("product", "choice", "filled") else [True])


def test_the_longest_loops_start_first_and_few_masked_tiles_have_no_pipeline() -> None:
    for tiles, stages in ((4, 1), (2, 3)):  # tiles of 4 and 8 rows of two keys
        source = emit(attention("choice", 16, 16, tiles, 8))
        assert f"{tiles - 1} - tl.program_id(" in source and f"num_stages={stages})" in source


@pytest.mark.parametrize("form", MASKED)
def test_a_mask_that_is_an_argument_is_not_skipped(form: str) -> None:
    for weights in ((), ("low",), *([("mask",)] if form == "filled" else [])):
        source = emit(attention(form, 8, 8, 2, 4, weights=weights))
        assert "range(4)" in source and "live_iterations" not in source and "first" not in source


def test_a_mask_of_bool_is_applied_once(run_program: RunProgram) -> None:
    block_of = {form: emit(attention(form, 16, 16, 4, 8)) for form in ("product", "numbers")}
    assert "mask * exponential" in block_of["numbers"] and "mask * " not in block_of["product"]
    mask, factors = causal(16, 16), np.random.default_rng(0).choice([-2.0, 0.5, 3.0], (16, 16))
    for form, given_mask in (("product", mask), ("numbers", mask * factors)):  # of numbers the size counts, too
        x, d, _, low, v = arrays_for(form, mask)
        weights = np.exp(x) * given_mask * d
        [got] = run_program(block_of[form], [x, d, given_mask, low, v])
        np.testing.assert_allclose(got, weights @ v / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_an_added_number_that_is_not_infinite_keeps_all_iterations(run_program: RunProgram) -> None:
    graph, mask = attention("added", 16, 16, 4, 8), causal(16, 16)
    arrays = arrays_for("added", mask)
    arrays[2] = np.where(mask, 0.0, -1e4)
    arrays[2][:2] = -1e4  # rows that are masked whole are means of all values
    wanted = run_program(emit(without_weights(graph)), arrays)
    got = run_program(emit(graph), arrays)
    assert np.array_equal(got[0], wanted[0]) and np.isfinite(got[0]).all()


def cases_of(body: Callable[[ThreadblockGraph, Tensor, Tensor], Tensor], kind: str = "float32", accumulate: str = "sum") -> Any:
    """The cases in which an accumulator of the body gets its neutral element, with weights y [8, 8] of a type."""
    kernel, block = new_kernel_graph(), new_threadblock_graph((2,), forloop_range=4)
    x, y = kernel.new_input((8, 8), "float32"), kernel.new_input((8, 8), kind, weight=True)
    value = body(block, block.new_input(x, (0,), 1), block.new_input(y, (0,), 1))
    block.new_output(block.forloop_accum(value, accumulate), (0,))
    kernel.customized([x, y], block)
    found = skipped_iterations(prepared(kernel.graph().blocks[0]), [1])
    return None if found is None else found.cases


def test_a_maximum_needs_minus_infinity_where_a_sum_needs_zero() -> None:
    assert cases_of(lambda b, x, y: b.mul(b.exp(x), y), "bool") == ((UniformTile(1, 0.0),),)
    assert cases_of(lambda b, x, y: b.mul(b.exp(x), y), "bool", "max") is None
    assert cases_of(lambda b, x, y: b.add(x, y), "float32", "max") == ((UniformTile(1, -inf),),)
    assert cases_of(lambda b, x, y: b.sub(x, y), "float32", "max") == ((UniformTile(1, inf),),)


def test_numbers_that_multiply_no_exponential_are_no_mask() -> None:
    for body in (
        lambda b, x, y: b.mul(x, y),
        lambda b, x, y: b.mul(b.square(x), y),
        lambda b, x, y: b.div(y, x),
        lambda b, x, y: b.exp(b.mul(x, y)),
        lambda b, x, y: b.mul(b.exp(x), b.shift(b.exp(y), 1)),
    ):
        assert cases_of(body) is None


@pytest.mark.parametrize("views", [False, True])
def test_equal_kernels_of_two_masks_or_of_views_of_one_have_bounds_each(run_program: RunProgram, views: bool) -> None:
    """Two sums Σ exp(x) m with two masks: inputs, or the upper and the lower rows of one that has a leading dim."""
    torch = pytest.importorskip("torch")
    kernel = new_kernel_graph()
    x = kernel.new_input((8, 16), "float32", "x")
    if views:
        whole = kernel.new_input((1, 16, 16), "bool", "mask", weight=True)
        masks = [kernel.slice(kernel.reshape(whole, (16, 16)), 0, start, start + 8) for start in (0, 8)]
    else:
        masks = [kernel.new_input((8, 16), "bool", name, weight=True) for name in ("upper", "lower")]
    for mask in masks:
        block = new_threadblock_graph((4,), forloop_range=8)
        e = block.mul(block.exp(block.new_input(x, (0,), 1)), block.new_input(mask, (0,), 1))
        block.new_output(block.forloop_accum(e, "sum", 1), (0,))
        kernel.mark_output(kernel.customized([x, mask], block)[0])
    source = emit(kernel.graph(), share=True)
    assert ("as_strided(" in source) == views and source.count("@triton.jit") == (2 if views else 1)
    m, numbers = causal(16, 16), np.random.default_rng(0).standard_normal((8, 16))
    parts = [m[:8], m[8:]]
    arrays = [m[None]] if views else parts
    with loaded(source) as module:
        bounds = module.prepare(*(torch.from_numpy(array).bool() for array in arrays))
    assert [each.tolist() for each in bounds] == [bounds_of(part, 4, 8).tolist() for part in parts]
    for got, part in zip(run_program(source, [numbers, *arrays]), parts, strict=True):
        np.testing.assert_allclose(got, (np.exp(numbers) * part).sum(1, keepdims=True), rtol=1e-5)


def test_the_runtime_passes_the_bounds_after_the_arguments() -> None:
    pytest.importorskip("torch")
    with loaded(emit(attention("product", 16, 16, 4, 8))) as module:
        library, driver = FakeLibrary(), FakeDriver()
        program = RunningProgram(module, list(module.INPUTS), driver=driver)
        arrays = [FakeArray(kind.shape, kind.dtype, kind.strides) for kind in program.inputs]
        [layout] = program.plan.inputs[len(program.inputs) :]
        bounds = FakeArray(layout.shape, layout.dtype, layout.strides)
        assert (layout.shape, layout.dtype) == ((4, 4), "int32") and program.prepares
        given_weights = []
        module.prepared = lambda *weights: given_weights.append(weights) or [bounds]
        program(arrays, library)
        assert given_weights == [(arrays[2],)]  # the mask alone
        assert library.address(bounds) in driver.launched[-1].arguments


@pytest.mark.parametrize("target", few(["sm_90", "gfx942", "sm_80", "sm_100"], 2))
def test_loops_with_bounds_compile_for_every_target(target: str) -> None:
    for form in ("product", "added"):
        records = compile_source(emit(attention(form, 64, 64, 2, 4)), target)
        assert records and all(record.ok for record in records), records
