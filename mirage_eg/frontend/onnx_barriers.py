"""Operators of ONNX that are no calls of torch: each node is one opaque op, which stays outside of programs.

The op carries its node as a model of its own, with the values that are known at import, and onnx's reference evaluator computes
it, if it is an operator of ONNX. Its results must have shapes that ONNX infers, or that the model gives for other operators.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from mirage_eg.frontend.onnx_values import Value, array, tensor, torch_type
from mirage_eg.ir.errors import UnsupportedError

TARGET = "mirage_eg.onnx_node.default"
_LARGEST = 1 << 20  # bytes of a node's known values: they are part of the graph


def inferred_types(model: Any, dims: Mapping[str, int]) -> dict[str, Any]:
    """ONNX's types of the tensors of a model whose shapes are known, where its symbolic dims have these extents.

    What the model itself says of a value counts for results of operators that are not ONNX's own.
    """
    import onnx

    declared = {it.name: it for it in (*model.graph.value_info, *model.graph.output)}
    others = {name for node in model.graph.node if node.domain not in ("", "ai.onnx") for name in node.output}
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for given in fixed.graph.input:
        for dim in given.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    for name in declared.keys() - others:
        declared.pop(name)
    del fixed.graph.value_info[:]
    fixed.graph.value_info.extend(declared.values())
    for result in fixed.graph.output:
        result.ClearField("type")
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    found = declared | {it.name: it for it in (*inferred.value_info, *inferred.output)}
    return {name: it for name, it in found.items() if _has_shape(it.type)}


def _has_shape(kind: Any) -> bool:
    dims = kind.tensor_type.shape.dim
    return kind.HasField("tensor_type") and kind.tensor_type.HasField("shape") and all(dim.dim_value > 0 for dim in dims)


def may_be_opaque(source: Any, types: Mapping[str, Any]) -> bool:
    """Whether a node may become an opaque op: its results have known shapes, and it reads its operands alone."""
    reads_others = any(attribute.HasField("g") or attribute.graphs for attribute in source.attribute)  # as If and Loop may
    return not reads_others and all(name in types for name in source.output if name)


def call_node(source: Any, operands: Sequence[Value], types: Mapping[str, Any], opsets: Sequence[Any]) -> Sequence[Value]:
    """The results of a node: known ones of known operands, else tensors of an opaque op.

    Raises:
        UnsupportedError: known operands too large to keep in the graph.
    """
    outputs = [name for name in source.output if name]
    tensors = [it for it in operands if it is not None and not isinstance(it, np.ndarray)]
    text = _model_of(source, operands, [types[name] for name in outputs], opsets)
    results = node_op()(tensors, text) if tensors else [array(it) for it in _computed([], text)]
    found = iter(results)
    return [next(found) if name else None for name in source.output]


def _model_of(source: Any, operands: Sequence[Value], results: Sequence[Any], opsets: Sequence[Any]) -> str:
    """The node as the text of a model: tensors are inputs, known operands are initializers."""
    from onnx import helper, numpy_helper

    names = [name for name, it in zip(source.input, operands, strict=True) if it is not None]
    given = dict(zip(names, (it for it in operands if it is not None), strict=True))
    known = [numpy_helper.from_array(it, name) for name, it in given.items() if isinstance(it, np.ndarray)]
    if sum(len(it.raw_data) for it in known) > _LARGEST:
        raise UnsupportedError(f"no operator {source.op_type} is known, and its known values have more than {_LARGEST:,} bytes")
    inputs = [
        helper.make_tensor_value_info(name, _onnx_type(it.dtype), list(it.shape))
        for name, it in given.items()
        if not isinstance(it, np.ndarray)
    ]
    graph = helper.make_graph([source], "node", inputs, list(results), known)
    model = helper.make_model(graph, opset_imports=opsets)
    return b64encode(model.SerializeToString(deterministic=True)).decode()


def _onnx_type(dtype: Any) -> int:
    from onnx import TensorProto

    names = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT32", "INT64", "BOOL", "INT8", "UINT8", "INT16")
    kinds = [int(TensorProto.DataType.Value(name)) for name in names]
    return next(kind for kind in kinds if torch_type(kind) is dtype)


def operator_of(text: str) -> str:
    """The name of the operator of an opaque op, with its domain if that is not ONNX's."""
    [node] = _parsed(text).graph.node
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


@cache
def _parsed(text: str) -> Any:
    import onnx

    return onnx.ModelProto.FromString(b64decode(text))


def _computed(operands: Sequence[Any], text: str) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    model = _parsed(text)
    feeds = {it.name: array(value.detach().cpu()) for it, value in zip(model.graph.input, operands, strict=True)}
    device = operands[0].device if operands else "cpu"
    return [tensor(np.asarray(it)).to(device) for it in ReferenceEvaluator(model).run(None, feeds)]


@cache
def node_op() -> Any:
    """The op, registered with torch: `onnx_node(Tensor[] operands, str model) -> Tensor[]`."""
    import torch

    def fake(operands: Sequence[Any], model: str) -> list[Any]:
        kinds = [it.type.tensor_type for it in _parsed(model).graph.output]
        return [
            operands[0].new_empty([dim.dim_value for dim in kind.shape.dim], dtype=torch_type(kind.elem_type)) for kind in kinds
        ]

    op = torch.library.custom_op(
        "mirage_eg::onnx_node", _computed, mutates_args=(), schema="(Tensor[] operands, str model) -> Tensor[]"
    )
    op.register_fake(fake)
    return torch.ops.mirage_eg.onnx_node.default


__all__ = ["TARGET", "call_node", "inferred_types", "may_be_opaque", "node_op", "operator_of"]
