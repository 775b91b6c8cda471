"""ONNX models as files: read, checked, with their functions inlined and their external data."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from mirage_eg.frontend.onnx_checks import first_fault
from mirage_eg.frontend.onnx_types import DOMAINS
from mirage_eg.ir.errors import ProgramError

_LARGEST_FILE = 2**31 - 1  # bytes of a message of protobuf


def read_model(model: Any) -> Any:
    """The checked onnx.ModelProto of a path or of itself. Raises ProgramError: the model is not valid."""
    path = Path(model) if isinstance(model, str | Path) else None
    name = path or "model"
    try:
        if path is not None:
            if path.stat().st_size > _LARGEST_FILE:
                raise ValueError("got 2 GiB or more, of which the weights must be external data")
            model = onnx.load(path, load_external_data=False)
        elif not isinstance(model, onnx.ModelProto):
            raise TypeError(f"got the {type(model).__name__} {str(model)[:40]!r}")
        if (fault := first_fault(model)) is not None:
            raise ValueError(fault)
        onnx.checker.check_model(model if path is None else str(path))
        external = any(map(onnx.external_data_helper.uses_external_data, _tensors(model)))
        if external and path is None:
            raise ValueError("got external data of a model without a file, give its path")
        opset = next((it.version for it in model.opset_import if it.domain in DOMAINS), 0)
        newest = onnx.defs.onnx_opset_version()
        if opset > newest:
            raise ValueError(f"got opset {opset}, which onnx {onnx.__version__} does not know, wanted at most {newest}")
        made = onnx.inliner.inline_local_functions(model)
        if external and path is not None:
            onnx.load_external_data_for_model(made, str(path.parent))
        return made
    except (OSError, DecodeError, onnx.checker.ValidationError, RuntimeError, TypeError, ValueError) as error:
        message = " ".join(str(error).split())[:300]
        raise ProgramError(f"{name}: {message}; wanted an ONNX model") from None


def _tensors(model: Any) -> Iterator[Any]:
    """All tensors of a model: initializers and attributes."""
    yield from model.graph.initializer
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in _within(nodes):
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors, *attribute.g.initializer)


def _within(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes, and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _within(graph.node)
