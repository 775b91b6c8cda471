"""ONNX models in: each node becomes a call of torch, and the importer of PyTorch programs reads what torch.export records.

The nodes run twice: on the meta device, which computes shapes, and all values that depend on constants and shapes alone; then
under torch.export, without the nodes of known results. Functions of a model, and operators of ONNX that are functions and not
in the table, are replaced by their bodies.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_eg.frontend.imported import Imported, OnnxNames
from mirage_eg.frontend.onnx_barriers import call_node, inferred_types, may_be_opaque
from mirage_eg.frontend.onnx_constants import CONSTANTS
from mirage_eg.frontend.onnx_gelu import with_gelu
from mirage_eg.frontend.onnx_ops import FIRST_RESULT_ALONE, NEUTRAL, OPERATORS, WITHOUT_INFLUENCE
from mirage_eg.frontend.onnx_values import Value, array, tensor, torch_type
from mirage_eg.frontend.torch_export import import_program
from mirage_eg.ir.errors import ProgramError, UnsupportedError

OLDEST = 13  # opset: from here on axes are inputs and softmax has one axis
_DOMAINS = ("", "ai.onnx")
_LARGEST_FILE = 2**31 - 1  # bytes of a message of protobuf
_MOST_ENTRIES = 2**28  # of an input: torch.export needs an example in memory


def import_model(model: Any, *, dims: Mapping[str, int] = MappingProxyType({})) -> Imported:
    """The programs of an ONNX model, given as a path or an onnx.ModelProto; `dims` gives the extents of its symbolic dims.

    Initializers of floating-point types with more than one element are weights. Nodes that the IR cannot express stay outside,
    with torch; one that torch cannot compute either is outside as an opaque op, if ONNX infers the shapes of its results.

    Raises:
        ProgramError: a package is not installed, the model is not valid, a dim has no extent, or a node is not supported.
    """
    checked = _read(model)
    exported, weights = _exported(checked, dims)
    found = import_program(exported)
    signature = exported.graph_signature
    names = {node: weights[target] for node, target in signature.inputs_to_parameters.items()}
    names |= zip(signature.user_inputs, _given(checked.graph), strict=True)
    return replace(found, onnx_names=OnnxNames(names, tuple(it.name for it in checked.graph.output)))


def _read(model: Any) -> Any:
    """The checked model with its functions inlined and its external data read."""
    try:
        import onnx
        import onnx.inliner
        import torch  # noqa: F401
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise ProgramError(f"{error.name} is not installed; try: pip install 'mirage-eg[onnx]'") from None
    path = Path(model) if isinstance(model, str | Path) else None
    name = path or "model"
    try:
        if path is not None:
            if path.stat().st_size > _LARGEST_FILE:
                raise ValueError("got 2 GiB or more, of which the weights must be external data")
            model = onnx.load(path, load_external_data=False)
        elif not isinstance(model, onnx.ModelProto):
            raise TypeError(f"got the {type(model).__name__} {str(model)[:40]!r}")
        onnx.checker.check_model(model if path is None else str(path))
        external = any(map(onnx.external_data_helper.uses_external_data, _tensors(model)))
        if external and path is None:
            raise ValueError("got external data of a model without a file, give its path")
        opset, newest = _opset(model), onnx.defs.onnx_opset_version()
        if opset > newest:
            raise ValueError(f"got opset {opset}, which onnx {onnx.__version__} does not know, wanted at most {newest}")
        if opset < OLDEST:
            model = onnx.version_converter.convert_version(model if path is None else onnx.load(path), OLDEST)
        model = onnx.inliner.inline_local_functions(model)
        unknown = {node.op_type for node in model.graph.node if node.domain in _DOMAINS} - OPERATORS.keys() - CONSTANTS.keys()
        bodies = [("", it) for it in sorted(unknown)]
        _write_defaults(model, unknown)
        typed = onnx.shape_inference.infer_shapes(model) if unknown else model  # bodies may depend on types
        model = onnx.inliner.inline_selected_functions(typed, bodies, inline_schema_functions=True)
        if external and path is not None:
            onnx.load_external_data_for_model(model, str(path.parent))
        return model
    except (OSError, DecodeError, onnx.checker.ValidationError, RuntimeError, TypeError, ValueError) as error:
        message = " ".join(str(error).split())[:300]
        raise ProgramError(f"{name}: {message}; wanted an ONNX model of opset {OLDEST} or later") from None


def _opset(model: Any) -> int:
    """The version of ONNX's own operators."""
    return next((it.version for it in model.opset_import if it.domain in _DOMAINS), 0)


def _write_defaults(model: Any, ops: Set[str]) -> None:
    """Write the default attributes of these operators into their nodes: ONNX's inliner copies explicit attributes alone."""
    from onnx import AttributeProto, defs

    opset = _opset(model)
    for node in model.graph.node:
        if node.op_type in ops and node.domain in _DOMAINS and defs.has(node.op_type, opset, ""):
            given = {it.name for it in node.attribute}
            for name, attribute in defs.get_schema(node.op_type, opset, "").attributes.items():
                if name not in given and attribute.default_value.type != AttributeProto.UNDEFINED:
                    node.attribute.append(attribute.default_value)


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


def _given(graph: Any) -> dict[str, Any]:
    """The inputs of a graph by name, without initializers."""
    own = {it.name for it in graph.initializer}
    return {it.name: it for it in graph.input if it.name not in own}


def _exported(model: Any, dims: Mapping[str, int]) -> tuple[Any, dict[str, str]]:
    """The model as torch.export records it, and the name of the initializer of each parameter."""
    import torch

    known, weights = _initializers(model.graph)
    nodes = tuple(_nodes(with_gelu(model.graph)))
    if any(node.is_barrier for node in nodes):
        types = inferred_types(model, dims)
        opsets = tuple(model.opset_import)
        nodes = tuple(replace(node, types=types, opsets=opsets) if node.is_barrier else node for node in nodes)
    if problems := sorted({problem for node in nodes if (problem := node.problem())}):
        raise ProgramError(f"ONNX: {'; '.join(problems[:8])}" + (f"; and {len(problems) - 8} more" if problems[8:] else ""))
    given = _given(model.graph)
    places = {name: _identifier(name, place) for place, name in enumerate(weights)}
    try:
        inputs = {name: _example(it, dims) for name, it in given.items()}
    except UnsupportedError as error:
        raise ProgramError(f"ONNX: {error}") from None
    if unknown := sorted(set(dims) - set(_symbols(given.values()))):
        raise ProgramError(f"ONNX: got the dim {unknown[0]!r}, wanted one of {', '.join(_symbols(given.values())) or 'none'}")

    class Model(torch.nn.Module):  # type: ignore[misc]
        """The nodes as calls of torch; parameters are named as initializers, a dot in a name is an underscore."""

        def __init__(self) -> None:
            super().__init__()
            for name, weight in weights.items():
                self.register_parameter(places[name], torch.nn.Parameter(tensor(weight), requires_grad=False))

        def forward(self, **arguments: Any) -> Any:
            given = known | arguments | {name: getattr(self, place) for name, place in places.items()}
            values = _run([node for node in nodes if node.outputs[0] not in known], given)
            return tuple(tensor(values[it.name]) for it in model.graph.output)

    try:
        with torch.no_grad():
            on_meta = {name: tensor(it).to("meta") for name, it in (weights | inputs).items()}
            found = _run(nodes, known | on_meta)
            known = {name: it for name, it in found.items() if isinstance(it, np.ndarray)}
            exported = torch.export.export(Model(), (), inputs, strict=False)
            return exported, {place: name for name, place in places.items()}
    except UnsupportedError as error:
        raise ProgramError(f"ONNX: {error}") from None
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ProgramError(f"ONNX: {' '.join(str(error).split())[:300]}") from error


def _run(nodes: Sequence["OnnxNode"], values: Mapping[str, Value]) -> dict[str, Value]:
    """The values with those that nodes compute, each by its name."""
    found = {"": None, **values}
    for node in nodes:
        found |= zip(node.outputs, node.results([found[name] for name in node.inputs]), strict=False)
    return found


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node: its operator, the names of inputs and outputs, its attributes, and its form in the file."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    source: Any
    types: Mapping[str, Any] = field(default_factory=dict)  # of the values of the model, for a barrier
    opsets: tuple[Any, ...] = ()  # of the model, likewise

    @property
    def is_barrier(self) -> bool:
        """Whether no function computes the node."""
        return self.op not in OPERATORS and self.op not in CONSTANTS

    def problem(self) -> str | None:
        """The reason why the node cannot be imported, or None."""
        if self.is_barrier and not may_be_opaque(self.source, self.types):
            return f"no operator {self.op} is known"
        if self.op in FIRST_RESULT_ALONE and any(self.outputs[1:]):
            return f"{self.op} with more than its first result is not supported"
        return None

    def results(self, operands: Sequence[Value]) -> Sequence[Value]:
        """The results for these operands: known ones of known operands, else tensors.

        Raises:
            UnsupportedError: an input or attribute that the operator's function does not have, or cannot honour.
        """
        if self.is_barrier:
            return call_node(self.source, operands, self.types, self.opsets)
        function = OPERATORS.get(self.op) or CONSTANTS[self.op]
        on_host = self.op in OPERATORS and all(it is None or isinstance(it, np.ndarray) for it in operands)
        if on_host:
            operands = [tensor(it) for it in operands]
        attributes = {name: it for name, it in self.attributes.items() if not _is_neutral(name, it)}
        if self.op == "Conv":
            attributes.pop("kernel_shape", None)  # that of the weights
        if self.op == "Split":
            attributes["results"] = len(self.outputs)
        try:
            bound = inspect.signature(function).bind(*operands, **attributes)
        except TypeError as error:
            raise UnsupportedError(f"{self.op} {self._place()}: {error}") from None
        try:
            result = function(*bound.args, **bound.kwargs)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.op} {self._place()}: {error}") from None
        results = result if isinstance(result, tuple | list) else [result]
        return [array(it) for it in results] if on_host else results

    def _place(self) -> str:
        return f"(result {self.outputs[0]})"


def _is_neutral(name: str, value: Any) -> bool:
    return name in WITHOUT_INFLUENCE or (name in NEUTRAL and value == NEUTRAL[name])


def _nodes(sources: Sequence[Any]) -> Iterator[OnnxNode]:
    from onnx import helper

    for source in sources:
        op = source.op_type if source.domain in _DOMAINS else f"{source.domain}::{source.op_type}"
        attributes = {}
        for attribute in source.attribute:
            value = helper.get_attribute_value(attribute)
            attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        yield OnnxNode(op, tuple(source.input), tuple(source.output), attributes, source)


def _initializers(graph: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Initializers that are known at import, and weights: those of a floating-point type with more than one element."""
    from onnx import numpy_helper

    arrays = {}
    for it in graph.initializer:
        try:
            arrays[it.name] = numpy_helper.to_array(it)
        except (ValueError, TypeError) as error:
            raise ProgramError(f"ONNX: the initializer {it.name}: {error}; wanted {list(it.dims)} numbers") from None
    weights = {name: it for name, it in arrays.items() if it.size > 1 and it.dtype.kind not in "iub"}
    return {name: it for name, it in arrays.items() if name not in weights}, weights


def _symbols(inputs: Any) -> list[str]:
    shapes = (it.type.tensor_type.shape.dim for it in inputs)
    return list(dict.fromkeys(dim.dim_param for shape in shapes for dim in shape if dim.dim_param))


def _example(value: Any, dims: Mapping[str, int]) -> Any:
    """A tensor of the meta device's cost: zeros that take one element of memory."""
    import torch

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ProgramError(f"ONNX: the input {value.name} has no shape, wanted a tensor of known rank")
    shape = []
    for place, dim in enumerate(kind.shape.dim):
        extent = dims.get(dim.dim_param) if dim.dim_param else dim.dim_value
        if not extent:
            name = dim.dim_param or f"number {place}"
            raise ProgramError(
                f"ONNX: the dim {name} of input {value.name} has no extent; give it, for example dims={{'{name}': 8}}"
            )
        if extent < 0:
            raise ProgramError(f"ONNX: got the extent {extent} of dim {place} of input {value.name}, wanted at least 1")
        shape.append(int(extent))
    if prod(shape) > _MOST_ENTRIES:
        raise ProgramError(
            f"ONNX: got the shape {tuple(shape)} of input {value.name}, wanted at most {_MOST_ENTRIES:,} entries"
        )
    return torch.zeros((), dtype=torch_type(kind.elem_type)).expand(shape).contiguous()


def _identifier(name: str, place: int) -> str:
    cleaned = "".join(it if it.isalnum() else "_" for it in name)
    return f"{cleaned}_{place}"


__all__ = ["import_model"]
