"""Operators of ONNX that are no calls of torch: each node is one opaque op, which stays outside of programs.

The op carries its node as a model of its own, with the small values that are known at import; an evaluator of ONNX computes it.
The types of its results are known.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from mirage_eg.frontend.onnx_evaluators import computed
from mirage_eg.frontend.onnx_types import ModelTypes, shape_of, type_of
from mirage_eg.frontend.onnx_values import Value, array, is_torchs, tensor, torch_type
from mirage_eg.ir.errors import ProgramError, UnsupportedError

TARGET = "mirage_eg.onnx_node.default"
_SMALL = 1 << 12  # bytes of a known value that is part of the op; others are operands


def reads(node: Any) -> tuple[str, ...]:
    """The names of all values that a node reads: its inputs, and those that its graphs take from around them."""
    return tuple(dict.fromkeys((*(name for name in node.input if name), *_captured(node))))


def _captured(node: Any) -> Iterator[str]:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
            own = {it.name for it in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in reads(inner) if name not in own)
                own.update(inner.output)
            yield from (it.name for it in graph.output if it.name not in own)


def call_node(
    node: Any, values: Mapping[str, Value], results: Mapping[str, Any], types: ModelTypes, reason: str
) -> list[Value]:
    """The results of a node as tensors of an opaque op; not all of its operands are known, `results` has their types."""
    names = [name for name in node.output if name]
    known = {name: it for name, it in values.items() if isinstance(it, np.ndarray)}
    operands = {name: it for name, it in values.items() if name not in known or (it.nbytes > _SMALL and is_torchs(it))}
    kept = {name: it for name, it in known.items() if name not in operands}
    text = _text_of(node, operands, kept, [results[name] for name in names], types, reason)
    like = next(it for it in operands.values() if not isinstance(it, np.ndarray))
    found = iter(node_op()([tensor(it, like) for it in operands.values()], text))
    return [next(found) if name else None for name in node.output]


def evaluated(node: Any, values: Mapping[str, Value], types: ModelTypes) -> list[Value]:
    """The results of a node of known operands. Raises UnsupportedError: no evaluator computes them."""
    model = model_of([node], [], [name for name in node.output if name], values, types)
    try:
        found = iter(computed(model, {}))
    except ProgramError as error:
        raise UnsupportedError(str(error).removeprefix("ONNX: ")) from None
    return [next(found) if name else None for name in node.output]


def is_computed(node: Any, values: Mapping[str, Value], types: ModelTypes) -> bool:
    """Whether an evaluator computes a node for its known operands and zeros for others."""
    import torch

    tried = {
        name: it if isinstance(it, np.ndarray) else array(torch.zeros_like(it, device="cpu")) for name, it in values.items()
    }
    try:
        with np.errstate(all="ignore"):
            evaluated(node, tried, types)
    except UnsupportedError:
        return False
    return True


def model_of(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], known: Mapping[str, Any], types: ModelTypes
) -> Any:
    """A model of these nodes; `inputs` and `outputs` are declarations, outputs may be names alone; `known` has initializers."""
    from onnx import ValueInfoProto, helper, numpy_helper

    declared = [ValueInfoProto(name=it) if isinstance(it, str) else it for it in outputs]
    tensors = [numpy_helper.from_array(it, name) for name, it in known.items()]
    graph = helper.make_graph(list(nodes), "part", list(inputs), declared, tensors)
    return helper.make_model(graph, opset_imports=types.opsets, ir_version=types.ir_version)


def _text_of(
    node: Any, operands: Mapping[str, Value], known: Mapping[str, Value], results: Sequence[Any], types: ModelTypes, reason: str
) -> str:
    """The node as the text of a model, whose inputs are the operands and whose description is the reason."""
    from onnx import helper

    inputs = [helper.make_value_info(name, type_of(it)) for name, it in operands.items()]
    names = [name for name in node.output if name]
    outputs = [helper.make_value_info(name, kind) for name, kind in zip(names, results, strict=True)]
    model = model_of([node], inputs, outputs, known, types)
    model.doc_string = reason
    return b64encode(model.SerializeToString(deterministic=True)).decode()


def reason_of(text: str) -> str:
    """The reason why a node is an opaque op."""
    return str(_parsed(text).doc_string)


@cache
def _parsed(text: str) -> Any:
    import onnx

    return onnx.ModelProto.FromString(b64decode(text))


def _computed(operands: Sequence[Any], text: str) -> list[Any]:
    model = _parsed(text)
    feeds = {it.name: array(value) for it, value in zip(model.graph.input, operands, strict=True)}
    found = computed(model, feeds)
    return [tensor(np.asarray(it)).to(operands[0].device) for it in found]


@cache
def node_op() -> Any:
    """The op, registered with torch: `onnx_node(Tensor[] operands, str model) -> Tensor[]`."""
    import torch

    def fake(operands: Sequence[Any], model: str) -> list[Any]:
        return [
            operands[0].new_empty(shape_of(it.type), dtype=torch_type(it.type.tensor_type.elem_type))
            for it in _parsed(model).graph.output
        ]

    op = torch.library.custom_op(
        "mirage_eg::onnx_node", _computed, mutates_args=(), schema="(Tensor[] operands, str model) -> Tensor[]"
    )
    op.register_fake(fake)
    return torch.ops.mirage_eg.onnx_node.default
