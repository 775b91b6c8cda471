"""Mean and variance of long rows come from those of their parts, in two passes, and the values are the same."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.frontend.long_rows import group_norm, layer_norm
from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.merged_reductions import with_merged_reductions
from mirage_eg.transforms.split_statistics import with_split_statistics


def reduced(p: KernelGraph, op: str, x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in dims:
        x = p.op(op, x, dim=dim)
    return x


def normalized(shape: tuple[int, ...], dims: tuple[int, ...], op: str = "mean", dtype: str = "float32") -> Graph:
    """Outputs: the normalized rows, their mean, and their variance or the sum of squares that it is of."""
    p = new_kernel_graph()
    x = p.new_input(shape, dtype)
    mean = reduced(p, "mean", x, dims)
    squares = reduced(p, op, p.square(x - mean), dims)
    for value in ((x - mean) / p.sqrt(p.shift(squares, 1e-5)), mean, squares):
        p.mark_output(value)
    return p.graph()


def assert_alike(program: Graph, split: Graph) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(kind.shape) + 3 for kind in program.input_types]
    for got, want in zip(evaluate(split, arrays, FloatAlgebra()), evaluate(program, arrays, FloatAlgebra()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert [(kind.shape, kind.dtype) for kind in split.output_types] == [
        (kind.shape, kind.dtype) for kind in program.output_types
    ]


def test_split_statistics_are_those_of_the_rows() -> None:
    shapes = []

    @settings(derandomize=True)  # few shapes have rows that are split
    @given(
        st.lists(st.sampled_from([512, 64, 35, 8, 3, 1]), min_size=2, max_size=4).filter(lambda shape: prod(shape) <= 1 << 17),
        st.data(),
        st.sampled_from(["mean", "sum"]),
        st.sampled_from(["float32", "float16"]),
    )
    def check(shape: list[int], data: st.DataObject, op: str, dtype: str) -> None:
        some = st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True)
        dims = data.draw(st.just([*range(len(shape))]) | some)
        program = normalized(tuple(shape), tuple(dims), op, dtype)
        split, of_merged = (with_split_statistics(form, 256) for form in (program, with_merged_reductions(program)))
        assert (split is None) == (of_merged is None)
        if split is not None and of_merged is not None:
            assert_alike(program, split)
            assert_alike(program, of_merged)
            shapes.append(shape)
        else:
            assert prod(shape[dim] for dim in dims) <= 4096

    check()
    assert len(shapes) >= 3


def passes(graph: Graph, rows: int) -> int:
    """The reductions over elements of the rows that wait for a statistic of whole rows."""
    waiting: set[int] = set()
    found = 0
    for item, values in graph.numbered():
        is_statistic = bool(item.operands) and prod(graph.types[values[0]].shape if values else ()) == rows
        follows = not waiting.isdisjoint(item.operands)
        is_large = bool(item.operands) and prod(graph.types[item.operands[0]].shape) > 4096 * rows
        found += item.op in ("mean", "sum") and is_large and follows
        if is_statistic or follows:
            waiting.update(values)
    return found


@pytest.mark.parametrize(("shape", "dims"), [((4, 40960), (1,)), ((32, 8, 56, 56), (0, 2, 3)), ((2, 1 << 20), (1,))])
def test_no_pass_over_a_row_waits_for_another(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    program = normalized(shape, dims)
    split = with_split_statistics(program, 16_384)
    assert split is not None
    rows = prod(extent for dim, extent in enumerate(shape) if dim not in dims)
    assert passes(program, rows) > 0
    assert passes(split, rows) == 0


def test_partial_statistics_are_float32() -> None:
    split = with_split_statistics(expand(group_norm()), 16_384)
    assert split is not None
    kinds = [split.types[values[0]] for item, values in split.numbered() if item.op == "mean"]
    assert kinds and all(kind.dtype is DType.float32 for kind in kinds)


@pytest.mark.parametrize("name", ["short rows", "a prime number of elements", "parts of two elements"])
def test_other_rows_stay_whole(name: str) -> None:
    programs = {
        "short rows": expand(layer_norm()),
        "a prime number of elements": normalized((4, 16_411), (1,)),
        "parts of two elements": normalized((4, 2 * 8209), (1,)),
    }
    assert with_split_statistics(programs[name], 16_384) is None


@pytest.mark.parametrize("window", [3, 0])
def test_parts_of_images_channels_last_are_short(window: int) -> None:
    """A block holds those of many channels."""
    p = new_kernel_graph()
    x = p.new_input((4, 32, 128, 128), "float32")
    y = p.conv2d(x, p.new_input((32, 32, window, window), "float32", weight=True)) if window else p.relu(x)
    mean = p.mean(p.mean(p.mean(y, 2), 3), 0)
    p.mark_output(p.mean(p.mean(p.mean(p.square(y - mean), 2), 3), 0))
    split = with_split_statistics(p.graph(), 16_384)
    assert split is not None
    parts = [split.types[item.operands[0]].shape[-1] for item in split.nodes if item.op == "mean"]
    assert max(parts) == (882 if window else 4096)
