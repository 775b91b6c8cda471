"""ONNX's types of values: those that the model declares, and those that ONNX infers of a node's operands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mirage_eg.frontend.onnx_values import MisfitError, Value, element_type
from mirage_eg.ir.errors import ProgramError, UnsupportedError

DOMAINS = ("", "ai.onnx")
_SMALL = 1024  # elements of a known value that inference reads
_MOST_ENTRIES = 2**28  # of an input: torch.export needs an example in memory


@dataclass(frozen=True, slots=True)
class ModelTypes:
    """The types that a model declares for its values, where they have all extents, and the versions of its operators.

    `data` has the weights of which extents may depend, such as the scales of a Resize.
    """

    declared: Mapping[str, Any]
    opsets: tuple[Any, ...]
    ir_version: int
    data: Mapping[str, Any]
    schemas: dict[tuple[str, str], Any] = field(default_factory=dict)

    def schema(self, node: Any) -> Any:
        """ONNX's definition of a node's operator, None for one that ONNX does not define."""
        from onnx import defs

        key = node.domain, node.op_type
        if key not in self.schemas:
            version, domain = self.opset(node.domain), "" if node.domain in DOMAINS else node.domain
            found = version and defs.has(node.op_type, version, domain)
            self.schemas[key] = defs.get_schema(node.op_type, version, domain) if found else None
        return self.schemas[key]

    def opset(self, domain: str) -> int:
        """The version of the operators of a domain, 0 if the model does not import it."""
        same = DOMAINS if domain in DOMAINS else (domain,)
        return next((it.version for it in self.opsets if it.domain in same), 0)

    def of_node(self, node: Any, values: Mapping[str, Value]) -> dict[str, Any]:
        """The types of a node's results that are tensors with all extents: by ONNX's inference, else as declared.

        Raises:
            MisfitError: the types of the operands do not fit.
            UnsupportedError: ONNX finds that their shapes or values do not fit.
        """
        from onnx import checker, numpy_helper, shape_inference

        inferred: dict[str, Any] = {}
        schema = self.schema(node)
        if schema is not None:
            known = {name: self.data.get(name, it) for name, it in values.items()}
            small = {name: it for name, it in known.items() if isinstance(it, np.ndarray) and it.size <= _SMALL}
            data = {name: numpy_helper.from_array(it, name) for name, it in small.items()}
            kinds = {name: type_of(it) for name, it in values.items()}
            try:
                written, opsets = _with_defaults(node, schema), list(self.opsets)
                inferred = shape_inference.infer_node_outputs(
                    schema, written, kinds, data, opset_imports=opsets, ir_version=self.ir_version
                )
            except checker.ValidationError:  # of types
                raise MisfitError("ONNX infers no result") from None
            except shape_inference.InferenceError:  # it wants a scalar where evaluators take one number
                raise UnsupportedError("ONNX infers no result") from None
        kinds = {name: self.declared[name] for name in node.output if name in self.declared}
        return kinds | {name: kind for name, kind in inferred.items() if is_complete(kind)}


def _with_defaults(node: Any, schema: Any) -> Any:
    """A node with the attributes that it leaves out: ONNX's inference takes another default for STFT's `onesided`."""
    from onnx import NodeProto

    named = {it.name for it in node.attribute}
    left_out = [it.default_value for it in schema.attributes.values() if it.default_value.type and it.name not in named]
    written = NodeProto()
    written.CopyFrom(node)
    written.attribute.extend(left_out)
    return written


def model_types(model: Any, dims: Mapping[str, int], weights: Mapping[str, Any]) -> ModelTypes:
    """The declared types of a model, whose symbolic dims have these extents."""
    declared = {}
    for it in (*model.graph.value_info, *model.graph.output):
        kind = with_extents(it.type, dims)
        if is_complete(kind):
            declared[it.name] = kind
    data = {name: it for name, it in weights.items() if it.size <= _SMALL}
    return ModelTypes(declared, tuple(model.opset_import), model.ir_version, data)


def with_extents(kind: Any, dims: Mapping[str, int]) -> Any:
    """A type with the extents of its symbolic dims."""
    import onnx

    fixed = onnx.TypeProto()
    fixed.CopyFrom(kind)
    for dim in fixed.tensor_type.shape.dim if kind.HasField("tensor_type") else ():
        if dim.dim_param in dims:
            dim.dim_value = dims[dim.dim_param]
    return fixed


def is_complete(kind: Any) -> bool:
    """Whether a type is a tensor's with all extents."""
    shape = kind.tensor_type.shape if kind.HasField("tensor_type") else None
    if shape is None or not kind.tensor_type.HasField("shape") or not kind.tensor_type.elem_type:
        return False
    return all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in shape.dim)


def shape_of(kind: Any) -> tuple[int, ...]:
    """The extents of a tensor's complete type."""
    return tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)


def type_of(value: Value) -> Any:
    """ONNX's type of a tensor or array."""
    from onnx import helper

    return helper.make_tensor_type_proto(element_type(value), list(value.shape))


def text_of(value: Value) -> str:
    """A value's type for a message, such as float32[2, 3]."""
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def symbols(inputs: Sequence[Any]) -> list[str]:
    """The names of the symbolic dims of inputs; of one without a name, that of its input and place."""
    return list(dict.fromkeys(name for it in inputs for name, extent in _extents(it) if name and extent is None))


def _extents(value: Any) -> Iterator[tuple[str, int | None]]:
    """For each dim of an input: the name by which it gets an extent, and the extent that the model gives."""
    for place, dim in enumerate(value.type.tensor_type.shape.dim):
        given = dim.HasField("dim_value") and dim.dim_value >= 0  # −1 is how some exporters write an unknown extent
        yield dim.dim_param or f"{value.name}.{place}", int(dim.dim_value) if given and not dim.dim_param else None


def shape_of_input(value: Any, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of a model's input. Raises ProgramError: its rank or an extent is not known, or it is too large."""
    if not value.type.tensor_type.HasField("shape"):
        raise ProgramError(f"ONNX: the input {value.name} has no shape, wanted a tensor of known rank")
    shape = []
    for place, (name, extent) in enumerate(_extents(value)):
        found = dims.get(name) if extent is None else extent
        if found is None:
            shown = value.type.tensor_type.shape.dim[place].dim_param or f"number {place}"
            raise ProgramError(
                f"ONNX: the dim {shown} of input {value.name} has no extent; give it, for example dims={{'{name}': 8}}"
            )
        if found < 0:
            raise ProgramError(f"ONNX: got the extent {found} of dim {place} of input {value.name}, wanted at least 0")
        shape.append(int(found))
    if prod(shape) > _MOST_ENTRIES:
        raise ProgramError(
            f"ONNX: got the shape {tuple(shape)} of input {value.name}, wanted at most {_MOST_ENTRIES:,} entries"
        )
    return tuple(shape)
