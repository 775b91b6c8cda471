"""Graph substitutions inside `optimize`: the better prediction wins, the result is verified against the program as given."""

from functools import cache

import numpy as np

from mirage_eg.api import MuGraph
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.runtime.launch_plan import launch_plan_of
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.weights import prepared_values
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result
from mirage_eg.report.rewriting import rewriting_html, rewriting_lines
from mirage_eg.search.partition.regions import regions
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.transforms.simplify import primitive_form


def row_sums(weight: bool = True) -> Graph:
    """Σ (x W) over the columns: x ΣW for a weight W."""
    graph = new_kernel_graph()
    x, w = graph.new_input((16, 512), name="x"), graph.new_input((512, 8192), name="w", weight=weight)
    graph.mark_output(graph.sum(x @ w, 1))
    return graph.graph()


@cache
def searched(weight: bool, named: bool = False) -> Result:
    options = Options(cache=False, device="cpu", jobs=1, top=2, trials=1, weights=("w*",) if named else ())
    return optimize("row sums", row_sums(weight), options)


def test_the_sum_of_a_product_is_a_product_with_a_sum_of_weights() -> None:
    result = searched(True)
    best, [summary] = result.candidates[0], result.report.rewriting
    assert prepared_values(best.graph) and best.verdict.equal and best.float_check.ok and best.compile.ok
    assert summary.rewritten_us == best.predicted_us < summary.as_written_us
    assert summary.prologue_bytes == 512 * 2 and "sum of a product" in summary.laws
    assert summary.optimal and summary.extracted_bound_us <= summary.extracted_us * (1 + 1e-6)
    assert summary.rewritten_us <= summary.extracted_us * (1 + 1e-6) and summary.kernels_searched > 0
    assert best.predicted_us < 0.7 * searched(False).candidates[0].predicted_us


def test_a_mean_of_a_transposed_convolution_collapses() -> None:
    """The laws have a reduction for each dim. KernelBench's problem 44 of level 2: 46 µs, as written 460."""
    graph = new_kernel_graph()
    x, w = graph.new_input((16, 64, 64, 64), "float32"), graph.new_input((64, 128, 3, 3), "float32")
    graph.mark_output(graph.mean(graph.mean(graph.conv_transpose2d(x, w, strides=2, pads=1, output_pads=1), 2), 3))
    program = graph.graph()
    assert sum(item.op == "mean" for item in primitive_form(expand(program)).nodes) == 1
    result = optimize("means", program, Options(cache=False, device="cpu", gpu="h200", jobs=1, top=1, trials=1))
    [summary] = result.report.rewriting
    assert result.candidates[0].predicted_us < summary.as_written_us / 2


def test_without_a_mark_nothing_is_prepared_and_a_name_is_a_mark() -> None:
    plain = searched(False)
    assert not any(prepared_values(it.graph) for it in plain.candidates)
    named = searched(False, named=True)
    assert named.candidates[0].graph == searched(True).candidates[0].graph


def test_the_emitted_file_and_the_evaluator_take_the_given_inputs() -> None:
    best, draw = searched(True).candidates[0], np.random.default_rng(0)
    arrays = [draw.standard_normal(kind.shape).astype(np.float16) / 8 for kind in row_sums().input_types]
    [wanted] = evaluate(row_sums(), [array.astype(float) for array in arrays], FloatAlgebra())
    assert np.allclose(MuGraph(best)(*arrays), wanted, atol=0.05)
    with loaded(best.source) as module:
        assert list(module.INPUTS) == ["x", "w"] and module.WEIGHTS == (1,) and callable(module.prepare)


def test_regions_keep_the_marks_of_weights() -> None:
    graph = new_kernel_graph()
    x, w, v = graph.new_input((4, 64), name="x"), *(graph.new_input((64, 64), name=name, weight=True) for name in "wv")
    y = x + graph.relu(x @ w)
    graph.mark_output(y + graph.relu(y @ v))
    program = graph.graph()
    parts = [segment_program(program, part) for part in regions(program, 3)]
    assert len(parts) == 2 and all(sum(bool(item.get("weight")) for item in part.inputs) == 1 for part in parts)


def test_the_report_and_the_terminal_say_what_was_rewritten() -> None:
    result = searched(True)
    [line] = rewriting_lines(result.report.rewriting)
    assert (
        line.startswith("graph substitutions: 2 ops, 1 rewritten; ")
        and "1 tensor of weights computed once, 1,024 bytes" in line
    )
    assert "sum of a product" in rewriting_html(result.report.rewriting) and rewriting_html(()) == ""
    assert "sum" not in kernel_summary(result.candidates[0].graph)


def test_a_generated_kernel_reads_what_is_prepared(run_program: RunProgram) -> None:
    fused = [it for it in searched(True).candidates if it.fused and prepared_values(it.graph)]
    assert fused
    draw = np.random.default_rng(1)
    arrays = [draw.standard_normal(kind.shape).astype(np.float16) / 8 for kind in row_sums().input_types]
    [wanted] = evaluate(row_sums(), [array.astype(float) for array in arrays], FloatAlgebra())
    [got] = run_program(fused[0].source, arrays)
    assert np.allclose(got, wanted, atol=0.05)
    with loaded(fused[0].source) as module:
        plan = launch_plan_of(module)
    assert [layout.name for layout in plan.inputs] == [*module.INPUTS, *module.PREPARED]
    assert plan.launches and len(module.INPUTS) in plan.launches[0].values
