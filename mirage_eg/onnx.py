"""`mirage_eg.onnx`: ONNX models in and out. Import one as programs, export a result as a model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mirage_eg.api import MuGraph
from mirage_eg.frontend.exponential_groups import FunctionValues
from mirage_eg.frontend.onnx_export import export_graph
from mirage_eg.ir.builder import KernelGraph, graph_words
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Level

if TYPE_CHECKING:
    from mirage_eg.frontend.onnx_import import import_model

_HOMES = {"frontend.onnx_import": ("import_model",), "onnx": ("export_model",)}  # for the reference


def export_model(result: Any, weights: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The onnx.ModelProto of a program, a `MuGraph` or the result of `optimize_graph`; any runtime of opset 18 runs it.

    Each kernel is a model-local function of the domain `mirage_eg`. Its body says in plain ONNX what the kernel computes, in
    float32 or float64. The model has the inputs and outputs of the program. `weights` are arrays of inputs by name: they become
    initializers, and a prologue of which all inputs are given is run. `onnx.save` writes the model to a file.

    Raises:
        GraphError: no such result.
        ProgramError: onnx is not installed, an array that no input takes, or an op without a form in ONNX.
    """
    if isinstance(result, MuGraph | KernelGraph):
        result = result.graph if isinstance(result, MuGraph) else result.graph()
    if isinstance(result, Graph) and result.level is Level.KERNEL:
        return export_graph(result, arrays=weights)
    from mirage_eg.graph_optimizer.optimize_graph import OptimizedGraph  # loads egglog

    if not isinstance(result, OptimizedGraph):
        raise GraphError(f"export_model: got {graph_words(result)}, wanted a program, a MuGraph or what optimize_graph returns")
    kernels = [FunctionValues(frozenset(it.values), it.results) for it in result.report.kernels]
    inputs = list(zip(result.program.input_names, result.program.input_types, strict=True))
    return export_graph(result.graph, kernels, result.prologue, inputs, weights)


def __getattr__(name: str) -> Any:
    if name != "import_model":
        raise AttributeError(f"module 'mirage_eg.onnx' has no attribute {name!r}")
    from mirage_eg.frontend.onnx_import import import_model  # loads torch

    return import_model


__all__ = ["export_model", "import_model"]
