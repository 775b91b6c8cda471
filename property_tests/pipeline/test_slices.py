"""Programs of models that slice and concatenate are fused as others are: proved, right in the interpreter, without copies."""

import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.hand_written import inputs_of, worst
from property_tests.support.sliced_programs import joined_weights, rotary_scores, rotated


def rotary_projection() -> Graph:
    """Keys from a product with weights, with rotary embeddings, as an output."""
    p = new_kernel_graph()
    x, w = p.new_input((16, 32), "float32", "X"), p.new_input((32, 2 * 16), "float32", "W")
    cos, sin = (p.new_input((16, 16), "float32", name) for name in ("cos", "sin"))
    keys = p.transpose(p.reshape(p.matmul(x, w), (16, 2, 16)), (1, 0, 2))
    p.mark_output(rotated(p, keys, cos, sin), "keys")
    return p.graph()


PROGRAMS = {
    "rotary scores": rotary_scores(tokens=16, keys=32, size=32),
    "joined weights": joined_weights(tokens=16, width=32, keys=32, size=16),
    "long product with joined weights": joined_weights(tokens=16, width=1024, keys=32, size=16),
    "rotary projection": rotary_projection(),
}

LONG = ("rotary scores", "long product with joined weights")  # the others have their moves


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in PROGRAMS])
def test_slices_and_concatenations_are_no_kernels(run_program: RunProgram, name: str) -> None:
    program = PROGRAMS[name]
    result = optimize(name, program, Options(device="cpu", jobs=1, cache=False, top=2))
    fused = [candidate for candidate in result.candidates if candidate.fused]
    assert fused
    arrays = inputs_of(program)
    wanted = evaluate(program, arrays, FloatAlgebra())
    for candidate in fused:
        assert candidate.verdict.equal
        assert "proved" in candidate.verdict.evidence
        source = emit(candidate.graph)
        assert worst(run_program(source, arrays), wanted) < 1e-4
        assert "torch.cat" not in source
        assert all("torch.matmul" in line for line in source.splitlines() if "contiguous" in line)  # no copy of a product


def pooled_twice(size: int) -> Graph:
    """Maxima of windows of 2, then of 3 after the last one is left out, of rows with a bias."""
    p = new_kernel_graph()
    rows = p.add(p.new_input((16, size), "float32", "X"), p.new_input((16, 1), "float32", "b"))
    for window in (2, 3):
        count = rows.shape[1] // window
        windows = p.reshape(p.slice(rows, 1, 0, count * window), (16, count, window))
        rows = p.reshape(p.max(windows, 2), (16, count))
    p.mark_output(rows)
    return p.graph()


def test_laws_of_order_behind_a_partition_without_proof_are_tested() -> None:
    program = pooled_twice(15)
    result = optimize("pooled twice", program, Options(device="cpu", jobs=1, cache=False, top=2))
    moved = [it for it in result.candidates if it.verdict.undecided_because is not None]
    assert moved and result.candidates[0].fused
    for candidate in moved:  # max(x) + b is in no field the maximum of x + b
        assert candidate.verdict.equal and candidate.verdict.evidence == ("tested",)
        [got], [wanted] = (evaluate(graph, inputs_of(program), FloatAlgebra()) for graph in (candidate.graph, program))
        assert worst([got], [wanted]) < 1e-6
