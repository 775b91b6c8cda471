"""Attention of any length, causal or not, with grouped heads or not: right at every size, in guarded memory."""

from functools import cache
from math import sqrt

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.at_sizes import at_sizes
from property_tests.support.hand_written import inputs_of, worst
from property_tests.support.parameters import AMPLE

LARGEST = 70
TILE = 16
FEW = (1, TILE, TILE + 1, 67)
KINDS = {"one head a key": (False, False), "causal": (True, False), "grouped": (False, True), "causal, grouped": (True, True)}
CHEAP = "causal, grouped"


def attention(causal: bool, grouped: bool) -> mi.Graph:
    """Four heads of queries over four or two heads of keys; the mask is given, as import adds it."""
    graph, n = mi.new_kernel_graph(), mi.Dim("n", min=1, max=LARGEST)
    heads = ((2, 2), (2, 1)) if grouped else ((4,), (4,))
    q = graph.new_input((*heads[0], n, 8), "float32", "Q")
    k, v = (graph.new_input((*heads[1], *shape), "float32", name) for name, shape in (("K", (8, n)), ("V", (n, 8))))
    mask = graph.new_input((n, n), "bool", "mask") if causal else None
    scores = graph.scale(q @ k, 1 / sqrt(8))
    graph.mark_output(graph.softmax(scores, len(heads[0]) + 1, mask) @ v, "O")
    return graph.graph()


@cache
def made(kind: str) -> mi.SizedMuGraph:
    """The kernels for all sizes; a search of a few seconds."""
    options = {"top": 2, "device": "cpu", "jobs": 1, "cache": False, "budget": AMPLE}
    return mi.superoptimize(attention(*KINDS[kind]), sizes=[{"n": TILE}, {"n": 2 * TILE}], **options)


def check(run: RunProgram, kind: str, n: int) -> None:
    """The fused kernels of a size against the program in float64."""
    result, program = made(kind), at_sizes(made(kind).program, {"n": n})
    arrays = inputs_of(program)
    if KINDS[kind][0]:
        arrays[-1] = np.tri(n, dtype=arrays[-1].dtype)
    candidate = result.bucket(n=n).candidate
    assert candidate.fused or n == 1
    assert worst(run(candidate.source, arrays), evaluate(program, arrays, FloatAlgebra())) < 1e-5


@pytest.mark.parametrize("kind", [kind if kind == CHEAP else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def test_attention_is_right_at_sizes_around_a_tile(run_guarded: RunProgram, kind: str) -> None:
    for n in FEW[kind == CHEAP :]:
        check(run_guarded, kind, n)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_right_at_every_size(run_guarded: RunProgram, kind: str) -> None:
    for n in range(1, LARGEST + 1):
        check(run_guarded, kind, n)
