"""ONNX models in: each node becomes a call of torch, and the importer of PyTorch programs reads what torch.export records.

A plan says how each node is computed; then the calls of torch run again under torch.export. Nodes that no call can stand for
run after the others, by an evaluator of ONNX.
"""

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_eg.frontend.aten_call import FLOATING
from mirage_eg.ir.errors import ProgramError, UnsupportedError

try:
    import torch
    from onnx import numpy_helper
except ImportError as error:
    raise ProgramError(f"{error.name} is not installed; try: pip install 'mirage-eg[onnx]'") from None

from mirage_eg.frontend.fx_partition import MOVES
from mirage_eg.frontend.imported import Imported, OnnxNames, Outside
from mirage_eg.frontend.onnx_evaluators import operator_name
from mirage_eg.frontend.onnx_files import read_model
from mirage_eg.frontend.onnx_gelu import with_gelu
from mirage_eg.frontend.onnx_nodes import nodes_of
from mirage_eg.frontend.onnx_plan import ModelStep, Plan
from mirage_eg.frontend.onnx_resize import OPERATORS as RESIZING
from mirage_eg.frontend.onnx_run import OnnxRun, late_model
from mirage_eg.frontend.onnx_types import model_types, shape_of_input, symbols
from mirage_eg.frontend.onnx_values import Value, is_torchs, tensor, torch_type
from mirage_eg.frontend.torch_export import import_program


def import_model(model: Any, *, dims: Mapping[str, int] = MappingProxyType({})) -> Imported:
    """The programs of an ONNX model, given as a path or an onnx.ModelProto; `dims` gives the extents of its symbolic dims.

    A dim without a name is named by its input and place, as `x.0`. Initializers of floating-point types with more than one
    element are weights. Nodes that the IR cannot express stay outside, with torch; one that torch cannot compute either is
    outside as an opaque op, or runs after all others. `run` takes the arrays in the order of the model's inputs, or by name.

    Raises ProgramError: the model is not valid, a dim has no extent, or operands do not fit.
    """
    checked = read_model(model)
    graph = checked.graph
    given = _given(graph)
    if unknown := sorted(set(dims) - set(symbols(list(given.values())))):
        wanted = ", ".join(symbols(list(given.values()))) or "none"
        raise ProgramError(f"ONNX: got the dim {unknown[0]!r}, wanted one of {wanted}")
    torchs = {name: it for name, it in given.items() if _is_type_of_torch(it.type)}
    inputs = {  # examples
        name: torch.zeros(shape_of_input(it, dims), dtype=torch_type(it.type.tensor_type.elem_type))
        for name, it in torchs.items()
    }
    known, weights = _initializers(graph)
    on_meta = {name: tensor(it).to("meta") for name, it in (weights | inputs).items()}
    late = dict.fromkeys(given.keys() - inputs.keys(), "an input of a type that torch lacks")
    plan = Plan(model_types(checked, dims, weights), known | on_meta, late)
    try:
        for node in nodes_of(with_gelu(graph)):
            plan.append(node)
    except UnsupportedError as error:
        raise ProgramError(f"ONNX: {error}") from None
    return _Import(graph, given, inputs, weights, plan).imported()


@dataclass(frozen=True, slots=True)
class _Import:
    """A model with its plan: examples of the inputs that torch takes, and the weights."""

    graph: Any
    given: Mapping[str, Any]
    inputs: Mapping[str, Any]
    weights: Mapping[str, Any]
    plan: Plan

    def imported(self) -> Imported:
        """The programs of the model."""
        plan, results = self.plan, tuple(it.name for it in self.graph.output)
        last = late_model(plan, self.graph, self.given, self.weights)
        fed = [it.name for it in last.graph.input] if last is not None else []
        from_torch = [name for name in results if name not in plan.late_values and is_torchs(plan.values[name])]
        from_torch += [name for name in fed if name not in (*self.given, *from_torch)]
        places = {name: _place(name, place) for place, name in enumerate(self.weights)}
        names = _identifiers(self.inputs)
        program = self._exported(from_torch, places, names)
        found = import_program(program)
        signature = program.graph_signature
        weight_of = {place: name for name, place in places.items()}
        nodes = {node: weight_of[target] for node, target in signature.inputs_to_parameters.items()}
        nodes |= zip(signature.user_inputs, self.inputs, strict=True)
        constants = {name: it for name, it in plan.values.items() if name in results and isinstance(it, np.ndarray)}
        outside = [self._of_operator(it) for it in found.outside]
        operators = {of.node: f"{it.op} (result {it.node})" for of, it in zip(found.outside, outside, strict=True)}
        shapes = {name: tuple(it.shape) for name, it in self.inputs.items()}
        run = OnnxRun(found.run, tuple(self.given), names, tuple(from_torch), results, constants, last, shapes, operators)
        outside += [Outside(operator_name(it.source), it.reason, _first(it.source.output), None, 0) for it in plan.late]
        return replace(found, outside=tuple(outside), onnx_names=OnnxNames(nodes, tuple(from_torch)), run=run)

    def _of_operator(self, node: Outside) -> Outside:
        """A node of torch under the operator that it computes, or is a part of, and the result of that."""
        steps = {f"steps.{place}": step for place, step in enumerate(self.plan.steps)}
        if (step := steps.get(node.module)) is None:
            return node
        own, caller = step.node, step.caller or step.node
        reason = node.reason if caller is own or node.reason == MOVES else f"{own.op} of its definition: {node.reason}"
        return replace(node, op=caller.op, reason=reason, node=_first(caller.outputs))

    def _returned_casts(self, results: Sequence[str]) -> dict[str, str]:
        """Results that are bools as floating-point numbers, with the names of these bools."""
        nodes = [step.node.source for step in self.plan.steps if step.node.op == "Cast" and step.barrier is None]
        pairs = {node.output[0]: node.input[0] for node in nodes if node.output[0] in results}
        kinds = {name: (str(self.plan.values[x].dtype), str(self.plan.values[name].dtype)) for name, x in pairs.items()}
        return {name: pairs[name] for name, (of, to) in kinds.items() if of == "torch.bool" and "float" in to}

    def _exported(self, results: Sequence[str], places: Mapping[str, str], names: Mapping[str, str]) -> Any:
        """The calls of torch as torch.export records them."""
        steps, types, weights = self.plan.steps, self.plan.types, self.weights
        known = {name: it for name, it in self.plan.values.items() if isinstance(it, np.ndarray)}
        casts = self._returned_casts(results)

        class Step(torch.nn.Module):  # type: ignore[misc]
            """One step of the plan, by whose place torch.export's nodes are known."""

            def __init__(self, step: ModelStep) -> None:
                super().__init__()
                self.step = step

            def forward(self, values: Mapping[str, Value]) -> dict[str, Value]:
                return self.step.run(values, types)

        class Model(torch.nn.Module):  # type: ignore[misc]
            """The steps of the plan; parameters are named as initializers, a dot in a name is an underscore."""

            def __init__(self) -> None:
                super().__init__()
                for name, weight in weights.items():
                    self.register_parameter(places[name], torch.nn.Parameter(tensor(weight), requires_grad=False))
                self.steps = torch.nn.ModuleList(map(Step, steps))

            def forward(self, **arguments: Any) -> Any:
                given: dict[str, Value] = dict(known)
                given |= {name: arguments[own] for name, own in names.items()}
                given |= {name: getattr(self, place) for name, place in places.items()}
                values = given
                for step in self.steps:
                    values |= step(values)
                for name, condition in casts.items():  # numbers: the IR has no difference between bool and 0 or 1
                    values[name] = torch.where(values[condition], 1.0, 0.0).to(values[name].dtype)
                return tuple(tensor(values[name]) for name in results)

        with torch.no_grad():
            return torch.export.export(Model(), (), {names[name]: it for name, it in self.inputs.items()}, strict=False)


def _given(graph: Any) -> dict[str, Any]:
    """The inputs of a graph by name, without initializers."""
    own = {it.name for it in graph.initializer} | {it.values.name for it in graph.sparse_initializer}
    return {it.name: it for it in graph.input if it.name not in own}


def _is_type_of_torch(kind: Any) -> bool:
    """Whether values of a type can be tensors of torch."""
    try:
        return kind.HasField("tensor_type") and torch_type(kind.tensor_type.elem_type) is not None
    except UnsupportedError:
        return False


def _initializers(graph: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Initializers that are known at import, and weights: those of a floating-point type with more than one element.

    The scales of a Resize are known.
    """
    arrays = {}
    for it in graph.initializer:
        try:
            arrays[it.name] = numpy_helper.to_array(it)
        except (ValueError, TypeError):
            raise ProgramError(
                f"ONNX: got data of another size for the initializer {it.name}, wanted {list(it.dims)} numbers"
            ) from None
    arrays |= {it.values.name: _dense(it) for it in graph.sparse_initializer}
    scales = {name for node in graph.node if node.op_type in RESIZING for name in node.input[1:]}
    weights = {name: it for name, it in arrays.items() if it.size > 1 and it.dtype.name in FLOATING and name not in scales}
    return {name: it for name, it in arrays.items() if name not in weights}, weights


def _dense(given: Any) -> Any:
    """The array of an onnx.SparseTensorProto: indices are places in the flat array, or one in each dim."""
    values, indices = numpy_helper.to_array(given.values), numpy_helper.to_array(given.indices)
    made = np.zeros(tuple(given.dims), values.dtype)
    if indices.ndim == 1:
        made.reshape(-1)[indices] = values
    else:
        made[tuple(indices.T)] = values
    return made


_TAKEN = frozenset(
    {"self", "args", "kwargs", "arguments", "torch", "device", "inf", "nan", "fx_pytree", "pytree", *vars(builtins)}
)


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """For each name of an input one that Python code may have for a parameter: itself, or its letters with its place."""
    names = list(names)
    taken = {name for name in names if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or iskeyword(name) or name in _TAKEN}
    return {name: _place(f"x_{name}", place) if name in taken else name for place, name in enumerate(names)}


def _place(name: str, place: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{place}"


def _first(names: Iterable[str]) -> str:
    return next(name for name in names if name)
