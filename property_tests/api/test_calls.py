"""Calling a µGraph: NumPy arrays run here as the kernels compute; what is no argument of the program is named and refused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.api import MuGraph
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.runtime import library_lookup
from mirage_eg.backends.runtime.cuda_driver import cuda_driver
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, MirageError
from mirage_eg.ir.graph import Graph
from property_tests.support.hand_written import HAND_WRITTEN, inputs_of, rms_norm_linear, split_attention, worst

PAIR = split_attention("float16", 2, 8, 16, 32, 8, 2, 1, 8)


def mugraph(graph: Graph) -> MuGraph:
    return MuGraph(SimpleNamespace(graph=graph, source=emit(graph)))  # type: ignore[arg-type]


def arguments(graph: Graph, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    return [
        array.astype("float32" if str(kind.dtype) == "bfloat16" else str(kind.dtype))
        for array, kind in zip(inputs_of(graph, seed), graph.input_types, strict=True)
    ]


@settings(max_examples=20)
@given(
    name=st.sampled_from(sorted(HAND_WRITTEN)),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    seed=st.integers(0, 9),
)
def test_numpy_arrays_give_what_the_program_gives(name: str, dtype: str, seed: int) -> None:
    pair = HAND_WRITTEN[name](dtype)
    got = mugraph(pair.mugraph)(*arguments(pair.mugraph, seed))
    results = got if isinstance(got, tuple) else (got,)
    held = "float32" if dtype == "bfloat16" else dtype
    assert all(result.dtype == held for result in results)
    right = evaluate(pair.program, inputs_of(pair.program, seed), FloatAlgebra())
    assert worst([result.astype(np.float64) for result in results], list(right)) < (0.1 if dtype == "bfloat16" else 0.02)


@pytest.mark.parametrize("name", [name for name in HAND_WRITTEN if name.startswith("attention")])
def test_numpy_arrays_are_computed_with_exponentials_shifted_as_kernels_do(name: str) -> None:
    """As in README: scores with a standard deviation of 8 and more, whose exponentials float16 does not hold."""
    graph = HAND_WRITTEN[name]("float16").mugraph
    far = [(8 * array).astype(np.float16) for array in arguments(graph)]
    got = mugraph(graph)(*far)
    results = got if isinstance(got, tuple) else (got,)
    exact = ShiftedFloats(FloatAlgebra())
    right = [exact.number(x) for x in evaluate(graph, far, exact)]
    assert worst([result.astype(np.float64) for result in results], right) < 0.02
    assert not all(np.isfinite(x).all() for x in evaluate(graph, far, FloatAlgebra(working=DType.float32, rounds=True)))


def test_a_librarys_exponential_is_not_shifted_on_numpy_either() -> None:
    program = KernelGraph()
    weights = program.exp(program.new_input((2, 8)))
    program.mark_output(program.div(weights, program.sum(weights, 1)))
    assert not np.isfinite(mugraph(program.graph())(np.full((2, 8), 40, np.float16))).any()


def test_float64_programs_are_computed_in_float64() -> None:
    pair = rms_norm_linear("float64", 5, 60, 40, 2, 3)
    got = mugraph(pair.mugraph)(*arguments(pair.mugraph))
    assert worst([got], list(evaluate(pair.program, inputs_of(pair.program), FloatAlgebra()))) < 1e-12


def test_out_is_written_and_given_back() -> None:
    made, arrays = mugraph(PAIR.mugraph), arguments(PAIR.mugraph)
    result = made(*arrays)
    buffer = np.empty_like(result)
    for given_as in (buffer, (buffer,), [buffer]):
        buffer[...] = 7
        assert made(*arrays, out=given_as) is buffer
        np.testing.assert_array_equal(buffer, result)


def changed(place: int, change: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda arrays: [*arrays[:place], change(arrays[place]), *arrays[place + 1 :]]


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(array)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda arrays: arrays[:2], "got 2 arrays, wanted 3: "),
        (lambda arrays: [*arrays, arrays[0]], "got 4 arrays, wanted 3: "),
        (lambda arrays: [], "got 0 arrays, wanted 3: "),
        (changed(1, lambda array: array[:1]), r"argument {1}: got shape \(1, 16, 32\), wanted \(2, 16, 32\)"),
        (changed(2, lambda array: array.astype(np.float64)), r"argument {2}: got float64, wanted float16.*\.astype"),
        (changed(0, lambda array: array.astype(np.int32)), "argument {0}: got int32, wanted float16"),
        (
            changed(0, lambda array: array.tolist()),
            "argument {0}: got list, wanted a torch tensor, a CuPy array, a NumPy array",
        ),
        (changed(1, lambda array: None), "argument {1}: got NoneType"),
        (
            changed(1, as_tensor),
            "argument {1}: got a torch tensor, but argument {0} is a NumPy array; wanted all of one library",
        ),
        (
            lambda arrays: list(map(as_tensor, arrays)),
            "argument {0}: got a torch tensor on the CPU, wanted one on a CUDA device",
        ),
        (
            lambda arrays: [as_tensor(arrays[0]).double(), *map(as_tensor, arrays[1:])],
            "argument {0}: got float64, wanted float16",
        ),
    ],
)
def test_what_is_no_argument_is_named(change: Callable[[list[Any]], list[Any]], words: str) -> None:
    names = PAIR.mugraph.input_names
    for number, name in enumerate(names):
        words = words.replace(f"{{{number}}}", name)
    with pytest.raises(GraphError, match=words):
        mugraph(PAIR.mugraph)(*change(list(arguments(PAIR.mugraph))))


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ((), "got 0 buffers in out, wanted 1"),
        (np.empty((2, 8, 16), np.float32), "out O: got float32, wanted float16"),
        (np.empty((2, 8), np.float16), "out O: got shape"),
        ([None], "out O: got NoneType"),
        (as_tensor(np.empty((2, 8, 16), np.float16)), "another array library than the arguments"),
    ],
)
def test_what_is_no_output_buffer_is_named(out: Any, words: str) -> None:
    name = PAIR.mugraph.output_names[0]
    with pytest.raises(GraphError, match=words.replace("out O", f"out {name}")):
        mugraph(PAIR.mugraph)(*arguments(PAIR.mugraph), out=out)


def test_a_cuda_graph_of_numpy_arrays_is_refused() -> None:
    with pytest.raises(GraphError, match="got a NumPy array, wanted CuPy arrays or CUDA torch tensors"):
        mugraph(PAIR.mugraph).to_cuda_graph(*arguments(PAIR.mugraph))


def test_without_a_driver_a_cuda_graph_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError

    monkeypatch.setattr("ctypes.CDLL", missing)
    cuda_driver.cache_clear()
    with pytest.raises(MirageError, match=r"no NVIDIA driver \(libcuda\.so\.1\) on this machine"):
        mugraph(PAIR.mugraph).to_cuda_graph()


def test_without_torch_and_cupy_a_cuda_graph_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(library_lookup, "torch_library", missing)
    monkeypatch.setattr(library_lookup, "cupy_library", missing)
    monkeypatch.setattr(RunningProgram, "require_driver", lambda program: None)
    with pytest.raises(MirageError, match="neither torch nor CuPy is installed; install"):
        mugraph(PAIR.mugraph).to_cuda_graph()
