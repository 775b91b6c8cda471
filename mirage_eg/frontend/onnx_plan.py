"""Which nodes of an ONNX model become calls of torch, which are barriers between programs, and which run last.

The nodes run once on the meta device: shapes are computed, and all values that depend on constants and shapes alone. A node is
computed by a function of torch, else by the nodes of its definition, if each of these has a function, else by an opaque op.
Its results must have the types that ONNX infers. *Late* is a node of results that torch cannot hold (a sequence, text) or whose
shapes depend on values, and each node that reads one: these run after all others, as one model.
"""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from mirage_eg.frontend.onnx_barriers import call_node, evaluated, is_computed, reads
from mirage_eg.frontend.onnx_expansion import body_of, branch_of
from mirage_eg.frontend.onnx_nodes import OnnxNode, nodes_of
from mirage_eg.frontend.onnx_types import ModelTypes, shape_of, text_of
from mirage_eg.frontend.onnx_values import MisfitError, Value, element_type, torch_type
from mirage_eg.ir.errors import UnsupportedError

_SHOWN = 8  # entries of a known value that a message shows


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A node with tensors as results; `barrier` is the reason why it is an opaque op, whose `results` have these types.

    `caller` is the node of the model of whose definition this one is a part.
    """

    node: OnnxNode
    barrier: str | None = None
    results: Mapping[str, Any] = field(default_factory=dict)
    caller: OnnxNode | None = None

    def run(self, values: Mapping[str, Value], types: ModelTypes) -> dict[str, Value]:
        """The results by their names."""
        if self.barrier is None:
            found = self.node.results([values[name] if name else None for name in self.node.source.input], types)
        else:
            read = {name: values[name] for name in reads(self.node.source)}
            found = call_node(self.node.source, read, self.results, types, self.barrier)
        return {name: it for name, it in zip(self.node.outputs, found, strict=False) if name}


@dataclass(frozen=True, slots=True)
class LateNode:
    """A node that runs after all that are calls of torch, and the reason."""

    source: Any
    reason: str


@dataclass(slots=True)
class Plan:
    """The steps of a model. `values` has what is known, and tensors of the meta device for the others."""

    types: ModelTypes
    values: MutableMapping[str, Value]
    late_values: dict[str, str] = field(default_factory=dict)  # with the reason
    steps: list[ModelStep] = field(default_factory=list)
    late: list[LateNode] = field(default_factory=list)
    whole: bool = False  # whether each node must have a function
    count: int = 0

    def append(self, node: OnnxNode) -> None:
        """Find how a node is computed. Raises UnsupportedError: its operands do not fit."""
        names = reads(node.source)
        if after := [name for name in names if name in self.late_values]:
            self._defer(node, f"reads {after[0]}, {self.late_values[after[0]]}")
            return
        read = {name: self.values[name] for name in names}
        kinds, is_inferred = {}, True
        try:
            kinds = self.types.of_node(node.source, read)
        except UnsupportedError as error:
            is_inferred = False
            if isinstance(error, MisfitError) or not is_computed(node.source, read, self.types):
                raise UnsupportedError(self._misfit(node, read)) from None
        try:
            self._call(node, kinds)
            return
        except UnsupportedError as error:
            reason, has_none = str(error), isinstance(error, MisfitError)
        if self._expand(node, read):
            return
        if self.whole:
            raise UnsupportedError(reason)
        if not is_inferred or (has_none and not is_computed(node.source, read, self.types)):
            raise UnsupportedError(self._misfit(node, read))
        try:
            self._be_opaque(node, read, kinds, reason)
        except UnsupportedError as error:
            self._defer(node, f"{reason}; {error}" if reads(node.source) and str(error) != reason else reason)

    def _misfit(self, node: OnnxNode, read: Mapping[str, Value]) -> str:
        """That a node's operands do not fit: with their types, or their numbers where few are known, and its attributes."""
        operands = [_shown(name, read[name]) for name in node.source.input if name]
        attributes = [f"{name} = {it}" for name, it in node.attributes.items() if isinstance(it, int | float | str | list)]
        place = next((name for name in node.outputs if name), "none")
        return f"{node.op} (result {place}): got {', '.join((*operands, *attributes)) or 'nothing'}, which do not fit"

    def _call(self, node: OnnxNode, kinds: Mapping[str, Any]) -> None:
        """Compute a node by its function, whose results must be of the types that ONNX infers."""
        found = ModelStep(node).run(self.values, self.types)
        for name, value in found.items():
            if name in kinds:
                number, shape = kinds[name].tensor_type.elem_type, shape_of(kinds[name])
                if (number, shape) != (element_type(value), tuple(value.shape)):
                    wanted = f"{TensorProto.DataType.Name(number)}{list(shape)}"
                    raise UnsupportedError(f"torch gives {text_of(value)}, ONNX infers {wanted}")
        self._keep(ModelStep(node), found)

    def _keep(self, step: ModelStep, found: Mapping[str, Value]) -> None:
        if step.node.is_random:
            found = {name: it.to("meta") for name, it in found.items()}
        if not all(isinstance(it, np.ndarray) for it in found.values()):
            self.steps.append(step)
        self.values.update(found)

    def _expand(self, node: OnnxNode, read: Mapping[str, Value]) -> bool:
        """Compute a node by the nodes that it stands for; whether there are such."""
        self.count += 1
        prefix = f"{next(name for name in node.outputs if name)}/{self.count}/"
        known: dict[str, Any] = {}
        if node.op == "If" and isinstance(read[node.source.input[0]], np.ndarray):
            nodes, known = branch_of(node.source, read[node.source.input[0]], prefix)
            whole = self.whole
        else:
            nodes, whole = body_of(node.source, read, self.types, prefix), True
        if not nodes:
            return False
        inner = Plan(self.types, ChainMap(known, self.values), self.late_values, whole=whole)
        try:
            for it in nodes_of(nodes):
                inner.append(it)
        except UnsupportedError:
            if not whole:
                raise
            return False
        self.values.update(known)
        self.steps += [replace(it, caller=node) for it in inner.steps] if whole else inner.steps
        self.late += inner.late
        return True

    def _be_opaque(self, node: OnnxNode, read: Mapping[str, Value], kinds: Mapping[str, Any], reason: str) -> None:
        if read and all(isinstance(it, np.ndarray) for it in read.values()):
            found = dict(zip(node.outputs, evaluated(node.source, read, self.types), strict=True))
            if not all(isinstance(it, np.ndarray) for name, it in found.items() if name):
                raise UnsupportedError("its result is no tensor")
            self.values.update((name, it) for name, it in found.items() if name)
            return
        missing = [name for name in node.outputs if name and name not in kinds]
        if missing or not read:
            raise UnsupportedError(
                f"the shape of its result {missing[0]} depends on values" if missing else "it has no operands"
            )
        for name in filter(None, node.outputs):
            torch_type(kinds[name].tensor_type.elem_type)
        step = ModelStep(node, reason, {name: kinds[name] for name in node.outputs if name})
        self._keep(step, step.run(self.values, self.types))

    def _defer(self, node: OnnxNode, reason: str) -> None:
        if self.whole:
            raise UnsupportedError(reason)
        self.late.append(LateNode(node.source, reason))
        self.late_values |= dict.fromkeys(filter(None, node.outputs), "which is computed last")


def _shown(name: str, value: Value) -> str:
    is_short = isinstance(value, np.ndarray) and value.dtype.kind in "iub" and value.size <= _SHOWN
    return f"{name} = {value.tolist()}" if is_short else f"{name} of {text_of(value)}"
