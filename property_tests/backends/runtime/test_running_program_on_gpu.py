"""On a GPU: µGraphs run on torch tensors and CuPy arrays, on the caller's stream, in CUDA graphs, and without torch."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_eg.api import MuGraph
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.targets import why_no_clusters
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.multi_gpu import multi_gpu_timer
from property_tests.backends.runtime.test_running_program import between
from property_tests.backends.triton.test_clusters import in_clusters
from property_tests.backends.triton.test_schedule import CHOICES
from property_tests.support.hand_written import HAND_WRITTEN, gated_mlp, inputs_of, split_attention, worst

pytestmark = pytest.mark.gpu
PAIR = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8)
TOLERANCE = 2e-2
LONG = 50_000_000  # cycles, some 30 ms: what is not ordered behind this comes too early


PLAIN = Schedule()


def mugraph(graph: Graph, schedule: Schedule = PLAIN) -> MuGraph:
    return MuGraph(SimpleNamespace(graph=graph, source=emit(graph, schedule=schedule)))  # type: ignore[arg-type]


def on_gpu(graph: Graph, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    import torch

    return [
        torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, str(kind.dtype))).cuda()
        for array, kind in zip(arrays, graph.input_types, strict=True)
    ]


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def off_gpu(results: Any) -> list[np.ndarray[Any, Any]]:
    return [
        result.double().cpu().numpy() if hasattr(result, "cpu") else result.get().astype(np.float64)
        for result in as_tuple(results)
    ]


def wanted(program: Graph, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    return list(evaluate(program, arrays, FloatAlgebra()))


@pytest.mark.parametrize("name", HAND_WRITTEN)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_mugraph_computes_its_program_on_torch_tensors(name: str, dtype: str) -> None:
    pair = HAND_WRITTEN[name](dtype)
    arrays = inputs_of(pair.program)
    got = off_gpu(mugraph(pair.mugraph)(*on_gpu(pair.mugraph, arrays)))
    assert worst(got, wanted(pair.program, arrays)) < (1e-1 if dtype == "bfloat16" else TOLERANCE)


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_a_mugraph_computes_the_same_on_cupy_arrays_as_on_torch_tensors(name: str) -> None:
    import cupy

    pair = HAND_WRITTEN[name]("float16")
    tensors = on_gpu(pair.mugraph, inputs_of(pair.program))
    made = mugraph(pair.mugraph)
    results = as_tuple(made(*(cupy.asarray(tensor) for tensor in tensors)))
    assert all(isinstance(result, cupy.ndarray) for result in results)
    for ours, theirs in zip(off_gpu(results), off_gpu(made(*tensors)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_a_choice_of_the_tuner_changes_no_result(name: str, choice: str) -> None:
    import cupy

    pair = HAND_WRITTEN[name]("float16")
    arrays = inputs_of(pair.program)
    tensors = on_gpu(pair.program, arrays)
    made = mugraph(pair.mugraph, CHOICES[choice])
    assert worst(off_gpu(made(*tensors)), wanted(pair.program, arrays)) < TOLERANCE
    assert worst(off_gpu(made(*map(cupy.asarray, tensors))), wanted(pair.program, arrays)) < TOLERANCE


def test_kernels_run_on_torchs_current_stream() -> None:
    import torch

    arrays = inputs_of(PAIR.program)
    tensors, made = on_gpu(PAIR.mugraph, arrays), mugraph(PAIR.mugraph)
    made(*tensors)
    late = [torch.zeros_like(tensor) for tensor in tensors]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(LONG)
        for target, source in zip(late, tensors, strict=True):
            target.copy_(source)
        result = made(*late)
    torch.cuda.synchronize()
    assert worst(off_gpu(result), wanted(PAIR.program, arrays)) < TOLERANCE


def test_kernels_run_on_cupys_current_stream_and_not_on_torchs() -> None:
    import cupy
    import torch

    arrays = inputs_of(PAIR.program)
    tensors, made = on_gpu(PAIR.mugraph, arrays), mugraph(PAIR.mugraph)
    given = [cupy.asarray(tensor) for tensor in tensors]
    made(*given)
    torch.cuda.synchronize()
    blocked, free = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(blocked):
        torch.cuda._sleep(20 * LONG)
        with free:
            result = made(*given)
            free.synchronize()
        assert not blocked.query()  # torch's stream is still asleep, and we are done
    torch.cuda.synchronize()
    assert worst(off_gpu(result), wanted(PAIR.program, arrays)) < TOLERANCE


def test_many_calls_on_many_streams_and_threads_do_not_disturb_each_other() -> None:
    import torch

    made = mugraph(PAIR.mugraph)
    problems = []
    for seed in range(6):
        arrays = inputs_of(PAIR.program, seed)
        problems.append((on_gpu(PAIR.mugraph, arrays), wanted(PAIR.program, arrays)))
    torch.cuda.synchronize()

    def work(number: int) -> float:
        tensors, right = problems[number]
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            results = [made(*tensors) for _ in range(50)]
            stream.synchronize()
        return max(worst(off_gpu(result), right) for result in results)

    with ThreadPoolExecutor(6) as executor:
        assert max(executor.map(work, range(6))) < TOLERANCE


def test_out_is_written_and_given_back() -> None:
    import cupy
    import torch

    arrays = inputs_of(PAIR.program)
    tensors, made = on_gpu(PAIR.mugraph, arrays), mugraph(PAIR.mugraph)
    kind = PAIR.mugraph.output_types[0]
    buffer = torch.empty(kind.shape, dtype=torch.float16, device="cuda")
    assert made(*tensors, out=buffer) is buffer
    assert worst(off_gpu(buffer), wanted(PAIR.program, arrays)) < TOLERANCE
    other = cupy.empty(kind.shape, dtype=cupy.float16)
    assert made(*map(cupy.asarray, tensors), out=other) is other
    np.testing.assert_array_equal(off_gpu(other)[0], off_gpu(buffer)[0])


def test_a_call_with_buffers_takes_no_more_memory_and_keeps_none() -> None:
    import torch

    tensors, made = on_gpu(PAIR.mugraph, inputs_of(PAIR.program)), mugraph(PAIR.mugraph)
    buffer = made(*tensors)
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(5):
        made(*tensors, out=buffer)
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


# --- CUDA graphs ----------------------------------------------------------------------------------------------------------


def test_a_call_can_be_captured_by_torch() -> None:
    import torch

    made = mugraph(PAIR.mugraph)
    tensors = on_gpu(PAIR.mugraph, inputs_of(PAIR.program, 0))
    made(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = made(*tensors)
    for seed in (1, 2):
        arrays = inputs_of(PAIR.program, seed)
        for target, source in zip(tensors, on_gpu(PAIR.mugraph, arrays), strict=True):
            target.copy_(source)
        graph.replay()
        made(*on_gpu(PAIR.mugraph, inputs_of(PAIR.program, 9)))  # must not disturb what the graph uses
        torch.cuda.synchronize()
        assert worst(off_gpu(result), wanted(PAIR.program, arrays)) < TOLERANCE


def test_a_call_can_be_captured_by_cupy() -> None:
    import cupy

    made = mugraph(PAIR.mugraph)
    arrays = inputs_of(PAIR.program)
    given = [cupy.asarray(tensor) for tensor in on_gpu(PAIR.mugraph, arrays)]
    buffer = cupy.empty_like(made(*given))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        made(*given, out=buffer)
        graph = stream.end_capture()
        buffer.fill(0)
        graph.launch(stream)
        stream.synchronize()
    assert worst(off_gpu(buffer), wanted(PAIR.program, arrays)) < TOLERANCE


@pytest.mark.parametrize("library", ["torch", "cupy", "whatever is there"])
def test_a_cuda_graph_has_static_inputs_and_outputs(library: str) -> None:
    import cupy
    import torch

    made = mugraph(PAIR.mugraph)
    tensors = on_gpu(PAIR.mugraph, inputs_of(PAIR.program, 0))
    given = {"torch": tensors, "cupy": [cupy.asarray(tensor) for tensor in tensors]}.get(library, [])
    graph = made.to_cuda_graph(*given)
    assert all(static is array for static, array in zip(graph.inputs, given, strict=False))
    for seed in (1, 2, 3):
        arrays = inputs_of(PAIR.program, seed)
        for static, source in zip(graph.inputs, on_gpu(PAIR.mugraph, arrays), strict=True):
            static[...] = source if library != "cupy" else cupy.asarray(source)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        cupy.cuda.runtime.deviceSynchronize()
        assert worst(off_gpu(graph.outputs), wanted(PAIR.program, arrays)) < TOLERANCE


# --- Library kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_library_kernels_between_generated_ones(library: str) -> None:
    import cupy

    graph = between()
    arrays = inputs_of(graph)
    tensors = on_gpu(graph, arrays)
    given = tensors if library == "torch" else [cupy.asarray(tensor) for tensor in tensors]
    made = mugraph(graph)
    right = wanted(graph, arrays)
    for _ in range(3):
        assert worst(off_gpu(made(*given)), right) < 2 * TOLERANCE
    captured = made.to_cuda_graph(*given)
    captured.replay()
    cupy.cuda.runtime.deviceSynchronize()
    assert worst(off_gpu(captured.outputs), right) < 2 * TOLERANCE


def test_a_program_of_library_kernels_alone_runs() -> None:
    pair = gated_mlp("float16", 8, 64, 64, 2, 2)
    arrays = inputs_of(pair.program)
    got = mugraph(pair.program)(*on_gpu(pair.program, arrays))
    assert worst(off_gpu(got), wanted(pair.program, arrays)) < TOLERANCE


# --- Refusals, and no torch -----------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named() -> None:
    import cupy
    import torch

    made = mugraph(PAIR.mugraph)
    right = on_gpu(PAIR.mugraph, inputs_of(PAIR.program))
    q = PAIR.mugraph.input_names[0]
    shape = tuple(right[0].shape)
    flat = torch.empty(right[0].numel() + 1, dtype=torch.float16, device="cuda")[1:]
    cases: dict[str, Any] = {
        "on the CPU": right[0].cpu(),
        "library": cupy.asarray(right[0]),
        "library (NumPy's": right[0].cpu().numpy(),
        "wanted float16": right[0].float(),
        "strides": right[0].transpose(1, 2).contiguous().transpose(1, 2),
        "multiple of 16": flat.view(shape),
        "got shape": right[0][:, :-1],
        "torch.no_grad": right[0].clone().requires_grad_(),
        "got list": [1, 2],
    }
    for words, wrong in cases.items():
        with pytest.raises(GraphError, match="argument ") as told:
            made(wrong, *right[1:])
        assert words in str(told.value)
        assert q in str(told.value) or "library" in words
    if torch.cuda.device_count() > 1:
        with pytest.raises(GraphError, match="device 1"):
            made(right[0], *(tensor.to("cuda:1") for tensor in right[1:]))
        elsewhere = [tensor.to("cuda:1") for tensor in right]
        assert torch.equal(made(*elsewhere).cpu(), made(*right).cpu())


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, Refuse())
from types import SimpleNamespace
import cupy, numpy as np
from mirage_eg.api import MuGraph
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir import serialize
graph = serialize.from_json(sys.stdin.read())
made = MuGraph(SimpleNamespace(graph=graph, source=emit(graph)))
generator = np.random.default_rng(0)
arrays = [generator.standard_normal(kind.shape).astype(str(kind.dtype)) for kind in graph.input_types]
def error(results):
    pairs = zip(results, as_tuple(made(*arrays)), strict=True)
    return max(abs(got.get().astype(np.float64) - want).max() / abs(want.astype(np.float64)).max() for got, want in pairs)
def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)
given = [cupy.asarray(array) for array in arrays]
print(max(error(as_tuple(made(*given))) for _ in range(3)))
captured = made.to_cuda_graph(*given)
captured.replay()
cupy.cuda.runtime.deviceSynchronize()
print(error(captured.outputs))
print("torch" in sys.modules)
"""


def without_torch(graph: Graph) -> "subprocess.CompletedProcess[str]":
    from mirage_eg.ir import serialize

    text = serialize.to_json(graph)
    return subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=text, capture_output=True, text=True, check=False)


def test_without_torch_library_kernels_say_what_to_install() -> None:
    assert "which torch runs, and torch is not installed: pip install torch" in without_torch(between()).stderr


def test_without_torch_in_the_process_cupy_arrays_run() -> None:
    done = without_torch(PAIR.mugraph)
    assert done.returncode == 0, done.stderr
    *errors, torch_there = done.stdout.split()
    assert errors and all(float(error) < 2 * TOLERANCE for error in errors) and torch_there == "False"


def test_candidates_are_timed_in_a_process_on_a_gpu() -> None:
    source = emit(PAIR.mugraph, program=PAIR.program)
    with multi_gpu_timer(["0"], emit(PAIR.program, program=PAIR.program), 0) as timer:
        outcomes = list(timer.quick_all([source, "no program", source], lambda: float("inf")))
    assert [outcome is not None and outcome.us is not None for outcome in outcomes] == [True, False, True]


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_a_row_in_a_cluster_is_right_or_refused_in_one_line(cluster: int) -> None:
    graph = in_clusters(8, 131_072, cluster, 512)
    arrays = inputs_of(graph)
    if (why := why_no_clusters("sm_90")) is not None:
        with pytest.raises(UnsupportedError, match=why):
            mugraph(graph)(*on_gpu(graph, arrays))
        return
    results = off_gpu(mugraph(graph)(*on_gpu(graph, arrays)))
    assert worst(results, wanted(graph, arrays)) < TOLERANCE
