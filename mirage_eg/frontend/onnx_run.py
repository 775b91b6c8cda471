"""Runs an imported ONNX model as a whole: its programs and calls of torch, then the nodes that run last."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from mirage_eg.frontend.onnx_barriers import model_of, reads
from mirage_eg.frontend.onnx_evaluators import computed
from mirage_eg.frontend.onnx_plan import Plan
from mirage_eg.frontend.onnx_types import type_of
from mirage_eg.frontend.onnx_values import array, is_torchs, tensor
from mirage_eg.ir.errors import ProgramError


def late_model(plan: Plan, graph: Any, given: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
    """The model of the nodes that run last, None if there are none; its inputs are the values that others compute."""
    if not plan.late:
        return None
    made = {name for it in plan.late for name in it.source.output}
    names = [name for name in dict.fromkeys(name for it in plan.late for name in reads(it.source)) if name not in made]
    values = ChainMap({**weights}, plan.values)
    known = {name: values[name] for name in names if isinstance(values.get(name), np.ndarray)}
    fed = [name for name in names if name not in known]
    inputs = [given[it] if it in given else helper.make_value_info(it, type_of(plan.values[it])) for it in fed]
    return model_of([it.source for it in plan.late], inputs, [it for it in graph.output if it.name in made], known, plan.types)


@dataclass(frozen=True, slots=True)
class OnnxRun:
    """Calling it computes the model's results, of arrays in the order of its inputs or by their names.

    Results are tensors; NumPy arrays where torch has no such type, and lists or None where ONNX's are no tensors.
    """

    torchs: Any  # computes the results in `from_torch` of those inputs that have a name in `own`
    inputs: tuple[str, ...]
    own: Mapping[str, str]
    from_torch: tuple[str, ...]
    results: tuple[str, ...]
    constants: Mapping[str, Any]
    last: Any
    shapes: Mapping[str, tuple[int, ...]]
    operators: Mapping[str, str]  # of the nodes that torch computes

    def __call__(self, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The model's results.

        Raises ProgramError: other arguments than the model has inputs, or a node that has no result for its operands.
        """
        values = self._arguments(args, kwargs)
        try:
            found = self.torchs(**{own: values[name] for name, own in self.own.items()})
        except (RuntimeError, IndexError) as error:  # torch's, as of whole numbers divided by 0
            operator = self.operators.get(self.torchs.computing.name, "an operator")
            raise ProgramError(f"run: {operator} has no result for these operands") from error
        values = dict(self.constants) | values | dict(zip(self.from_torch, found, strict=True))
        if self.last is not None:
            feeds = {it.name: _fed(values[it.name]) for it in self.last.graph.input}
            values |= zip((it.name for it in self.last.graph.output), map(_result, computed(self.last, feeds)), strict=True)
        return tuple(values[name] for name in self.results)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ", ".join(self.inputs) or "none"
        if len(args) > len(self.inputs):
            raise ProgramError(f"run: got {len(args)} arrays, wanted those of {wanted}")
        values = dict(zip(self.inputs, args, strict=False))
        if twice := values.keys() & kwargs.keys():
            raise ProgramError(f"run: got the input {min(twice)} twice, by place and by name")
        values |= kwargs
        if values.keys() != set(self.inputs):
            raise ProgramError(f"run: got arrays of {', '.join(values) or 'no inputs'}, wanted those of {wanted}")
        for name, shape in self.shapes.items():
            value = np.asarray(values[name]) if not hasattr(values[name], "shape") else values[name]
            if tuple(value.shape) != shape:
                raise ProgramError(f"run: got an array of shape {tuple(value.shape)} for {name}, wanted {shape}")
            values[name] = tensor(np.asarray(value) if isinstance(value, np.generic) else value)
        return values


def _fed(value: Any) -> Any:
    """A value as the evaluators take it."""
    return [_fed(it) for it in value] if isinstance(value, list | tuple) else array(value)


def _result(value: Any) -> Any:
    """A result of an evaluator, as a tensor if torch has its type."""
    return tensor(value) if is_torchs(value) else value
