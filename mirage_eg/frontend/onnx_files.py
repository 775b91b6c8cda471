"""ONNX models as files: read, checked, with their functions inlined and their external data."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import AttributeProto, defs

from mirage_eg.frontend.onnx_evaluators import operator_name
from mirage_eg.frontend.onnx_types import DOMAINS, ModelTypes
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


def first_fault(model: Any) -> str | None:
    """The first node that ONNX's definitions do not allow, or result that is not computed or has no shape, if there is one."""
    types = ModelTypes({}, tuple(model.opset_import), model.ir_version, {})
    functions = {(it.domain, it.name) for it in model.functions}
    return next(chain(_of_graph(model.graph, frozenset(), types, functions), _without_shapes(model.graph)), None)


def _without_shapes(graph: Any) -> Iterator[str]:
    """The inputs and results of a model without the shapes that ONNX wants of them."""
    for what, declared in (("input", graph.input), ("result", graph.output)):
        for it in declared:
            if it.type.HasField("tensor_type") and not it.type.tensor_type.HasField("shape"):
                yield f"the {what} {it.name} has no shape (try: onnx.shape_inference.infer_shapes(model))"


def _of_graph(graph: Any, around: frozenset[str], types: ModelTypes, functions: set[tuple[str, str]]) -> Iterator[str]:
    """The faults of a graph that may read the values `around` it."""
    given = (*graph.input, *graph.initializer, *(it.values for it in graph.sparse_initializer))
    made = {*around, *(it.name for it in given)}
    for node in graph.node:
        place = f"{operator_name(node)} (result {next(filter(None, node.output), 'none')})"
        for name in node.input:
            if name and name not in made:
                yield f"{place} reads {name}, which no node before it computes"
        if (node.domain, node.op_type) not in functions:
            yield from (f"{place}: {it}" for it in _of_node(node, types))
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for it in inner:
                yield from _of_graph(it, frozenset(made), types, functions)
        made.update(node.output)
    for it in graph.output:
        if it.name not in made:
            yield f"no node computes the result {it.name}"


def _of_node(node: Any, types: ModelTypes) -> Iterator[str]:
    """What of a node the definition of its operator does not allow."""
    schema, version = types.schema(node), types.opset(node.domain)
    if schema is None or schema.deprecated:
        domains = {*DOMAINS, *(it.domain for it in defs.get_all_schemas())}
        newest = defs.onnx_opset_version() if node.domain in DOMAINS else version
        if node.domain in domains and 0 < version <= newest:
            yield f"ONNX has no such operator in version {version} of {node.domain or 'its operators'}"
        return
    for what, names, least, most in (
        ("input", node.input, schema.min_input, schema.max_input),
        ("result", node.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            yield f"got {len(names)} {what}s, wanted {least}" + (f" to {most}" if most > least else "")
    allowed = schema.attributes
    for attribute in node.attribute:
        if attribute.name not in allowed:
            yield f"got the attribute {attribute.name}, wanted one of {', '.join(sorted(allowed)) or 'none'}"
            continue
        got, wanted = AttributeProto.AttributeType.Name(attribute.type), allowed[attribute.name].type.name
        if got not in (wanted, "UNDEFINED"):
            yield f"got the attribute {attribute.name} of type {got}, wanted {wanted}"
    given = {it.name for it in node.attribute}
    for name, it in allowed.items():
        if it.required and name not in given:
            yield f"the attribute {name} is missing"
