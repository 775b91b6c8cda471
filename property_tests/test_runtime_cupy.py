"""Library kernels on CuPy compute what torch computes; shown on the CPU, with NumPy in CuPy's place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.compile import loaded
from mirage_eg.backends.emit import emit
from mirage_eg.backends.emit_ops import ELEMENTWISE, torch_call
from mirage_eg.backends.runtime_cupy import CupyTorch, Tensor
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS
from property_tests.graphs import kernel_programs
from property_tests.hand_written import ROUNDING, in_dtype, inputs_of


def on_both(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """What the program's library kernels give on torch, and on CuPy's functions."""
    import torch

    with loaded(emit(graph)) as module:
        kinds = list(module.INPUTS.values())
        tensors = [torch.from_numpy(array).to(getattr(torch, kind[1])) for array, kind in zip(arrays, kinds, strict=True)]
        theirs = module.launch(*tensors, torch)
        ours = module.launch(*(Tensor(np, tensor.numpy().copy()) for tensor in tensors), CupyTorch(np))
    as_tuple = ours if isinstance(ours, tuple) else (ours,)
    return [x.numpy() for x in (theirs if isinstance(theirs, tuple) else (theirs,))], [x.data for x in as_tuple]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where a root or a quotient is undefined
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@given(data=st.data(), seed=st.integers(0, 99))
def test_library_kernels_on_cupy_give_what_torch_gives(dtype: str, data: st.DataObject, seed: int) -> None:
    graph = in_dtype(data.draw(kernel_programs()), dtype)
    arrays = inputs_of(graph, seed)
    module = emit(graph)
    if "torch" not in module.split("def launch")[1].split("):")[0]:
        return  # nothing but views of the arguments' names
    for theirs, ours in zip(*on_both(graph, arrays), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        finite = np.isfinite(theirs)
        assert np.array_equal(finite, np.isfinite(ours)) or dtype == "float16"  # overflow is a matter of one rounding
        both = finite & np.isfinite(ours)
        largest = max(float(np.abs(theirs[both]).max(initial=0.0)), 1e-3)
        error = np.abs(theirs[both].astype(np.float64) - ours[both].astype(np.float64)).max(initial=0.0)
        assert error <= 16 * ROUNDING.get(dtype, 1e-12) * largest


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_every_elementwise_op_of_the_table_has_a_counterpart(name: str) -> None:
    import torch

    attributes = {"exponent": 2, "low": -0.5, "high": 0.5, "factor": 0.25, "offset": 0.75}
    values = np.linspace(0.1, 2.0, 12, dtype=np.float32).reshape(3, 4)
    arity = OPS[name].arity[0]
    text = torch_call(name, ["x", "y"][:arity], attributes, [(3, 4)] * arity)
    theirs = eval(text, {"torch": torch, "x": torch.from_numpy(values), "y": torch.from_numpy(values[::-1].copy())})
    ours = eval(text, {"torch": CupyTorch(np), "x": Tensor(np, values), "y": Tensor(np, values[::-1])})
    np.testing.assert_allclose(ours.data, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_an_op_without_a_counterpart_says_so() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.special.*pip install torch"):
        _ = CupyTorch(np).special


def test_norms_with_weight_and_bias() -> None:
    program = new_kernel_graph()
    x = program.new_input((4, 32), name="x")
    weight, bias = program.new_input((32,), name="w"), program.new_input((32,), name="b")
    program.mark_output(program.layer_norm(x, 32, weight, bias, eps=1e-5))
    program.mark_output(program.rms_norm(x, 32, weight, eps=1e-5))
    program.mark_output(program.softmax(x, 1))
    graph = in_dtype(program.graph(), "float32")
    for theirs, ours in zip(*on_both(graph, inputs_of(graph)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
