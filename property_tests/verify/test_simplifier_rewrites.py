"""Rewrites of the kinds that simplifiers of tensor compilers have, each beside a broken twin: proved, or shown to differ.

`n` is a named dim of all sizes from 2. A pair is (program, candidate, broken twin) on inputs x [n, 4], y [n, 4], w [4, 3].
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.errors import TiedToSizeError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.partial_equivalence.size_families import with_fixed_sizes
from mirage_eg.verify.all_sizes import verify_sizes
from mirage_eg.verify.box_proof import proved_by_boxes, proved_sizes
from mirage_eg.verify.evidence import verify_candidates
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.command import run_command

Written = Callable[..., mi.Tensor]
PADS = [(1, 2), (0, 1)]


def whole(g: mi.KernelGraph, x: mi.Tensor) -> mi.Tensor:
    """x as it is, as an op of its own."""
    return g.scale(x, 1)


# moves and sums of products: boxes of positions decide them for all sizes
FOR_ALL_SIZES: dict[str, tuple[Written, Written, Written]] = {
    "flip twice": (lambda g, x, y, w: g.flip(g.flip(x, 0), 0), lambda g, x, y, w: whole(g, x), lambda g, x, y, w: g.flip(x, 0)),
    "flips commute": (
        lambda g, x, y, w: g.flip(g.flip(x, 0), 1),
        lambda g, x, y, w: g.flip(x, (0, 1)),
        lambda g, x, y, w: g.flip(g.flip(x, 1), 1),
    ),
    "flip of a sum": (
        lambda g, x, y, w: g.flip(g.add(x, y), 0),
        lambda g, x, y, w: g.add(g.flip(x, 0), g.flip(y, 0)),
        lambda g, x, y, w: g.add(g.flip(x, 0), y),
    ),
    "flip of a function": (
        lambda g, x, y, w: g.flip(g.exp(x), 0),
        lambda g, x, y, w: g.exp(g.flip(x, 0)),
        lambda g, x, y, w: g.exp(x),
    ),
    "flip of a transpose": (
        lambda g, x, y, w: g.flip(g.transpose(x, (1, 0)), 1),
        lambda g, x, y, w: g.transpose(g.flip(x, 0), (1, 0)),
        lambda g, x, y, w: g.transpose(g.flip(x, 1), (1, 0)),
    ),
    "flip of a product": (
        lambda g, x, y, w: g.flip(g.matmul(x, w), 0),
        lambda g, x, y, w: g.matmul(g.flip(x, 0), w),
        lambda g, x, y, w: g.matmul(g.flip(x, 1), w),
    ),
    "flip of the summed axis": (
        lambda g, x, y, w: g.matmul(g.flip(x, 1), g.flip(w, 0)),
        lambda g, x, y, w: g.matmul(x, w),
        lambda g, x, y, w: g.matmul(x, g.flip(w, 0)),
    ),
    "sum of a flip": (
        lambda g, x, y, w: g.sum(g.flip(x, 1), 1),
        lambda g, x, y, w: g.sum(x, 1),
        lambda g, x, y, w: g.sum(g.flip(x, 0), 1),
    ),
    "pad of a pad": (
        lambda g, x, y, w: g.pad(g.pad(x, PADS), PADS),
        lambda g, x, y, w: g.pad(x, [(2, 4), (0, 2)]),
        lambda g, x, y, w: g.pad(x, [(3, 3), (0, 2)]),
    ),
    "pad of a sum": (
        lambda g, x, y, w: g.pad(g.add(x, y), PADS),
        lambda g, x, y, w: g.add(g.pad(x, PADS), g.pad(y, PADS)),
        lambda g, x, y, w: g.add(g.pad(x, PADS), g.pad(y, PADS, 1)),
    ),
    "pad of a product of entries": (
        lambda g, x, y, w: g.pad(g.mul(x, y), PADS),
        lambda g, x, y, w: g.mul(g.pad(x, PADS), g.pad(y, PADS, 7)),
        lambda g, x, y, w: g.mul(g.pad(x, PADS, 1), g.pad(y, PADS, 7)),
    ),
    "pad of relu": (
        lambda g, x, y, w: g.pad(g.relu(x), PADS),
        lambda g, x, y, w: g.relu(g.pad(x, PADS)),
        lambda g, x, y, w: g.relu(g.pad(x, PADS, 1)),
    ),
    "pad of a maximum": (
        lambda g, x, y, w: g.pad(g.maximum(x, y), PADS),
        lambda g, x, y, w: g.maximum(g.pad(x, PADS), g.pad(y, PADS, -1)),
        lambda g, x, y, w: g.maximum(g.pad(x, PADS), g.pad(y, PADS, 1)),
    ),
    "pad of rows before a product": (
        lambda g, x, y, w: g.pad(g.matmul(x, w), [(1, 0), (0, 0)]),
        lambda g, x, y, w: g.matmul(g.pad(x, [(1, 0), (0, 0)]), w),
        lambda g, x, y, w: g.matmul(g.pad(x, [(0, 1), (0, 0)]), w),
    ),
    "pads of the summed axis": (
        lambda g, x, y, w: g.matmul(g.pad(x, [(0, 0), (1, 0)]), g.pad(w, [(1, 0), (0, 0)], 5)),
        lambda g, x, y, w: g.matmul(x, w),
        lambda g, x, y, w: g.matmul(g.pad(x, [(0, 0), (1, 0)], 1), g.pad(w, [(1, 0), (0, 0)], 5)),
    ),
    "sum of a padded axis": (
        lambda g, x, y, w: g.sum(g.pad(x, [(0, 0), (2, 1)]), 1),
        lambda g, x, y, w: g.sum(x, 1),
        lambda g, x, y, w: g.sum(g.pad(x, [(0, 0), (2, 1)], 1), 1),
    ),
    "slice of a pad": (
        lambda g, x, y, w: g.slice(g.pad(x, [(0, 0), (2, 1)]), 1, 2, 6),
        lambda g, x, y, w: whole(g, x),
        lambda g, x, y, w: g.slice(g.pad(x, [(0, 0), (2, 1)]), 1, 1, 5),
    ),
    "slice of a slice": (
        lambda g, x, y, w: g.slice(g.slice(x, 1, 1, 4), 1, 1, 3),
        lambda g, x, y, w: g.slice(x, 1, 2, 4),
        lambda g, x, y, w: g.slice(x, 1, 1, 3),
    ),
    "strided slices": (
        lambda g, x, y, w: g.slice(g.flip(x, 1), 1, 1, 4, 2),
        lambda g, x, y, w: g.flip(g.slice(x, 1, 0, 3, 2), 1),
        lambda g, x, y, w: g.flip(g.slice(x, 1, 1, 4, 2), 1),
    ),
    "slice of a concat": (
        lambda g, x, y, w: g.slice(g.concat([x, y], 1), 1, 2, 6),
        lambda g, x, y, w: g.concat([g.slice(x, 1, 2, 4), g.slice(y, 1, 0, 2)], 1),
        lambda g, x, y, w: g.concat([g.slice(y, 1, 2, 4), g.slice(x, 1, 0, 2)], 1),
    ),
    "concat of slices": (
        lambda g, x, y, w: g.concat([g.slice(x, 1, 0, 1), g.slice(x, 1, 1, 4)], 1),
        lambda g, x, y, w: whole(g, x),
        lambda g, x, y, w: g.concat([g.slice(x, 1, 3, 4), g.slice(x, 1, 0, 3)], 1),
    ),
    "concat of functions": (
        lambda g, x, y, w: g.concat([g.exp(x), g.exp(y)], 0),
        lambda g, x, y, w: g.exp(g.concat([x, y], 0)),
        lambda g, x, y, w: g.exp(g.concat([y, x], 0)),
    ),
    "concat with zeros is a pad": (
        lambda g, x, y, w: g.concat([x, g.fill(y, 0)], 1),
        lambda g, x, y, w: g.pad(x, [(0, 0), (0, 4)]),
        lambda g, x, y, w: g.pad(x, [(0, 0), (4, 0)]),
    ),
    "concat of rows before a product": (
        lambda g, x, y, w: g.matmul(g.concat([x, y], 0), w),
        lambda g, x, y, w: g.concat([g.matmul(x, w), g.matmul(y, w)], 0),
        lambda g, x, y, w: g.concat([g.matmul(y, w), g.matmul(x, w)], 0),
    ),
    "concat of the summed axis": (
        lambda g, x, y, w: g.matmul(g.concat([x, y], 1), g.concat([w, w], 0)),
        lambda g, x, y, w: g.add(g.matmul(x, w), g.matmul(y, w)),
        lambda g, x, y, w: g.add(g.matmul(x, w), g.matmul(x, w)),
    ),
    "transpose of a product": (
        lambda g, x, y, w: g.transpose(g.matmul(x, w), (1, 0)),
        lambda g, x, y, w: g.matmul(g.transpose(w, (1, 0)), g.transpose(x, (1, 0))),
        lambda g, x, y, w: g.matmul(g.transpose(w, (1, 0)), g.transpose(y, (1, 0))),
    ),
    "transpose twice": (
        lambda g, x, y, w: g.transpose(g.transpose(x, (1, 0)), (1, 0)),
        lambda g, x, y, w: whole(g, x),
        lambda g, x, y, w: whole(g, y),
    ),
    "product is linear": (
        lambda g, x, y, w: g.matmul(g.add(x, g.scale(y, 2)), w),
        lambda g, x, y, w: g.add(g.matmul(x, w), g.scale(g.matmul(y, w), 2)),
        lambda g, x, y, w: g.add(g.matmul(x, w), g.scale(g.matmul(y, w), 3)),
    ),
    "square of a sum": (
        lambda g, x, y, w: g.square(g.add(x, y)),
        lambda g, x, y, w: g.add(g.add(g.square(x), g.square(y)), g.scale(g.mul(x, y), 2)),
        lambda g, x, y, w: g.add(g.square(x), g.square(y)),
    ),
    "shift of a shift": (
        lambda g, x, y, w: g.shift(g.shift(x, 2), 3),
        lambda g, x, y, w: g.shift(x, 5),
        lambda g, x, y, w: g.shift(x, 6),
    ),
    "full of a sum": (
        lambda g, x, y, w: g.sum(g.fill(x, 3), 1),
        lambda g, x, y, w: g.fill(g.sum(x, 1), 12),
        lambda g, x, y, w: g.fill(g.sum(x, 1), 9),
    ),
    "repeat of a sum": (
        lambda g, x, y, w: g.repeat(g.add(x, y), 2, 1),
        lambda g, x, y, w: g.add(g.repeat(x, 2, 1), g.repeat(y, 2, 1)),
        lambda g, x, y, w: g.add(g.repeat(x, 2, 1), g.repeat(x, 2, 1)),
    ),
    "repeat is a concat": (
        lambda g, x, y, w: g.repeat(x, 2, 1),
        lambda g, x, y, w: g.concat([g.slice(x, 1, at // 2, at // 2 + 1) for at in range(8)], 1),
        lambda g, x, y, w: g.concat([x, x], 1),
    ),
}
# minima, maxima, comparisons and selections: decided by cases, ties among them
PIECEWISE: dict[str, tuple[Written, Written, Written]] = {
    "clamp is a minimum of a maximum": (
        lambda g, x, y, w: g.clamp(x, -1, 2),
        lambda g, x, y, w: g.minimum(g.maximum(x, -1), 2),
        lambda g, x, y, w: g.minimum(g.maximum(x, -1), 3),
    ),
    "clamp is a maximum of a minimum": (
        lambda g, x, y, w: g.clamp(x, -1, 2),
        lambda g, x, y, w: g.maximum(g.minimum(x, 2), -1),
        lambda g, x, y, w: g.maximum(g.minimum(x, 2), 0),
    ),
    "maximum of negatives": (
        lambda g, x, y, w: g.maximum(-x, -y),
        lambda g, x, y, w: -g.minimum(x, y),
        lambda g, x, y, w: -g.maximum(x, y),
    ),
    "minimum of negatives": (
        lambda g, x, y, w: g.minimum(-x, -y),
        lambda g, x, y, w: -g.maximum(x, y),
        lambda g, x, y, w: -g.minimum(x, y),
    ),
    "maximum of itself": (lambda g, x, y, w: g.maximum(x, x), lambda g, x, y, w: whole(g, x), lambda g, x, y, w: whole(g, y)),
    "maximum commutes": (
        lambda g, x, y, w: g.maximum(x, y),
        lambda g, x, y, w: g.maximum(y, x),
        lambda g, x, y, w: g.minimum(y, x),
    ),
    "absorption": (
        lambda g, x, y, w: g.maximum(x, g.minimum(x, y)),
        lambda g, x, y, w: whole(g, x),
        lambda g, x, y, w: whole(g, y),
    ),
    "comparison turned": (
        lambda g, x, y, w: g.shift(g.scale(g.less(x, y), -1), 1),
        lambda g, x, y, w: g.less_equal(y, x),
        lambda g, x, y, w: g.less(y, x),
    ),
    "comparison of differences": (
        lambda g, x, y, w: g.less(g.shift(x, 1), g.shift(y, 1)),
        lambda g, x, y, w: g.less(x, y),
        lambda g, x, y, w: g.less_equal(x, y),
    ),
    "comparison of negatives": (
        lambda g, x, y, w: g.less(-x, -y),
        lambda g, x, y, w: g.less(y, x),
        lambda g, x, y, w: g.less_equal(y, x),
    ),
    "select of equal values": (
        lambda g, x, y, w: g.where(g.less(x, y), x, x),
        lambda g, x, y, w: whole(g, x),
        lambda g, x, y, w: g.maximum(x, y),
    ),
    "select of the smaller one": (
        lambda g, x, y, w: g.where(g.less(x, y), x, y),
        lambda g, x, y, w: g.minimum(x, y),
        lambda g, x, y, w: g.maximum(x, y),
    ),
    "select turned": (
        lambda g, x, y, w: g.where(g.less(x, y), x, y),
        lambda g, x, y, w: g.where(g.less_equal(y, x), y, x),
        lambda g, x, y, w: g.where(g.less_equal(y, x), x, y),
    ),
    "abs of a negative": (lambda g, x, y, w: g.abs(-x), lambda g, x, y, w: g.abs(x), lambda g, x, y, w: g.relu(x)),
}
# functions with algebra: the laws of elements prove them
BY_LAWS: dict[str, tuple[Written, Written, Written]] = {
    "product of exponentials": (
        lambda g, x, y, w: g.mul(g.exp(x), g.exp(y)),
        lambda g, x, y, w: g.exp(g.add(x, y)),
        lambda g, x, y, w: g.exp(g.mul(x, y)),
    )
}
PAIRS = FOR_ALL_SIZES | PIECEWISE | BY_LAWS


def graph(write: Written) -> Graph:
    g = mi.new_kernel_graph()
    n = mi.Dim("n", min=2, max=4096)
    x, y = (g.new_input((n, 4), "float32", name=name) for name in "xy")
    g.mark_output(write(g, x, y, g.new_input((4, 3), "float32", name="w")))
    return g.graph()


def ranges(program: Graph) -> dict[str, SizeRange]:
    return {name: SizeRange(dim.min, dim.max, dim.multiple_of) for name, dim in dims_of(program).items()}


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in BY_LAWS])
def test_a_rewrite_is_proved_for_all_sizes_and_its_twin_is_not_equal(name: str) -> None:
    program, candidate, twin = map(graph, PAIRS[name])
    assert list(map(str, proved_sizes(program, candidate, ranges(program)))) == ["all n ≥ 2"]
    assert proved_by_boxes(program, twin) is None and not proved_sizes(program, twin, ranges(program))
    assert verify(program, twin).verdict is Equality.NOT_EQUAL


@pytest.mark.parametrize("name", BY_LAWS)
def test_functions_with_algebra_are_left_to_the_laws(name: str) -> None:
    program, candidate, twin = map(graph, PAIRS[name])
    assert proved_by_boxes(program, candidate) is None
    right, wrong = verify_candidates(program, {"candidate": candidate, "twin": twin}, steps=False)
    assert "proved" in right[0].evidence and right[0].laws and wrong[0].verdict is Equality.NOT_EQUAL


SLICES_OF_A_NAMED_DIM: dict[str, tuple[Written, Written, Written]] = {
    "rows after the first, reversed": (
        lambda g, x, y, w: g.slice(g.flip(x, 0), 0, 1, x.shape[0]),
        lambda g, x, y, w: g.flip(g.slice(x, 0, 0, -1), 0),
        lambda g, x, y, w: g.flip(g.slice(x, 0, 1, x.shape[0]), 0),
    ),
    "first row and the others": (
        lambda g, x, y, w: g.concat([g.slice(x, 0, 0, 1), g.slice(x, 0, 1, x.shape[0])], 0),
        lambda g, x, y, w: whole(g, x),
        lambda g, x, y, w: g.concat([g.slice(x, 0, -1, x.shape[0]), g.slice(x, 0, 0, -1)], 0),
    ),
    "differences of neighbours": (
        lambda g, x, y, w: g.sub(g.slice(x, 0, 1, x.shape[0]), g.slice(x, 0, 0, -1)),
        lambda g, x, y, w: g.neg(g.sub(g.slice(x, 0, 0, -1), g.slice(x, 0, 1, x.shape[0]))),
        lambda g, x, y, w: g.sub(g.slice(x, 0, 0, -1), g.slice(x, 0, 1, x.shape[0])),
    ),
}


@pytest.mark.parametrize("name", SLICES_OF_A_NAMED_DIM)
def test_slices_of_a_named_dim_move_with_its_end(name: str) -> None:
    program, candidate, twin = map(graph, SLICES_OF_A_NAMED_DIM[name])
    small = {"n": SizeRange(2, 4096)}
    verdict = verify_sizes(program, candidate, small)
    assert verdict.verdict is Equality.EQUAL and "proved for all n ≥ 2, by boxes of positions" in verdict.text
    assert verify_sizes(program, twin, small).verdict is Equality.NOT_EQUAL


def test_a_bound_above_the_least_size_is_tied_to_the_present_one() -> None:
    half = graph(lambda g, x, y, w: g.slice(x, 0, 0, x.shape[0] // 2))  # a number, which does not move with n
    with pytest.raises(TiedToSizeError, match="wanted at most its least size"):
        at_sizes(half, {"n": 10})


def test_verify_says_what_boxes_prove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, candidate, _ = map(graph, PAIRS["maximum of negatives"])
    for name, it in (("program", program), ("candidate", candidate)):
        (tmp_path / f"{name}.json").write_text(mi.to_json(it))
        (tmp_path / f"{name}_of_71.json").write_text(mi.to_json(with_fixed_sizes(it)))
    code, out, _ = run_command(capsys, "verify", tmp_path / "program_of_71.json", tmp_path / "candidate_of_71.json")
    assert code == 0 and "equal (proved;" in out and "proved without laws" in out
    code, out, _ = run_command(capsys, "verify", tmp_path / "program.json", tmp_path / "candidate.json")
    assert code == 0 and "proved for all n ≥ 2, by boxes of positions" in out


def of_two_dims(write: Callable[[mi.KernelGraph, mi.Tensor, mi.Tensor], mi.Tensor]) -> Graph:
    g = mi.new_kernel_graph()
    n, m = mi.Dim("n", min=2, max=64), mi.Dim("m", min=2, max=64)
    g.mark_output(write(g, g.new_input((n, m)), g.new_input((m, 3))))
    return g.graph()


def test_several_dims_are_proved_together() -> None:
    def padded(before: int, other: int) -> Graph:
        widths = [(0, 0), (before, 0)], [(other, 0), (0, 0)]
        return of_two_dims(lambda g, x, y: g.matmul(g.pad(x, widths[0]), g.pad(y, widths[1])))

    program = padded(0, 0)
    assert list(map(str, proved_sizes(program, padded(1, 1), ranges(program)))) == ["all n ≥ 2 and m ≥ 2"]
    verdict = verify_sizes(program, padded(1, 1), ranges(program))
    assert verdict.verdict is Equality.EQUAL and "proved for all n ≥ 2 and m ≥ 2" in verdict.text
    wrong = of_two_dims(lambda g, x, y: g.matmul(g.flip(x, 1), y))
    assert not proved_sizes(program, wrong, ranges(program))


def test_dims_that_are_proved_one_by_one_are_not_called_proved_together() -> None:
    def turned(back: bool) -> Graph:
        def write(g: mi.KernelGraph, x: mi.Tensor, y: mi.Tensor) -> mi.Tensor:
            flat = g.reshape(x, (x.shape[0] * x.shape[1],))  # a product of two sizes is not affine in both
            return g.flip(g.flip(flat, 0), 0) if back else g.scale(flat, 1)

        return of_two_dims(write)

    program = turned(False)
    found = proved_sizes(program, turned(True), ranges(program))
    assert [it.sizes[0][0] for it in found] == ["n", "m"] and all(it.others for it in found)
    verdict = verify_sizes(program, turned(True), ranges(program))
    assert verdict.verdict is Equality.UNDECIDED and "not for all of them together" in verdict.text


OPS: dict[str, Callable[..., Any]] = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": lambda x, y: (x < y) * 1.0,
    "less_equal": lambda x, y: (x <= y) * 1.0,
    "add": np.add,
    "mul": np.multiply,
}


def test_no_random_pair_is_proved_and_differs() -> None:
    """Random terms over two elements, and all that the cases call equal is equal on a grid with ties."""
    draw = random.Random(1)
    x, y = (it.astype(float) for it in np.meshgrid(range(-2, 3), range(-2, 3)))
    proved = 0
    for _ in range(250):
        g, h = mi.new_kernel_graph(), mi.new_kernel_graph()
        values = []
        for own in (g, h):
            terms = [(own.new_input((5, 5), "float32", name=name), value) for name, value in (("x", x), ("y", y))]
            for _ in range(2):
                op = draw.choice(list(OPS))
                (one, left), (other, right) = draw.choice(terms), draw.choice(terms)
                terms.append((own.op(op, one, other), OPS[op](left, right)))
            own.mark_output(terms[-1][0])
            values.append(terms[-1][1])
        if g.graph().nodes != h.graph().nodes and proved_by_boxes(g.graph(), h.graph()) is not None:
            proved += 1
            assert (values[0] == values[1]).all(), (str(g), str(h))
    assert proved > 3
