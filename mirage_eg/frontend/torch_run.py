"""Runs an imported model as a whole: programs by the NumPy evaluator, outside nodes by torch on the CPU. For tests.

A value that leaves a program gets the strides that torch gave it, since outside nodes may read them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.evaluator.with_integers import WithIntegers
from mirage_eg.frontend.fx_partition import Analysis, Place, escaping
from mirage_eg.frontend.fx_values import Fx, HostValues, attribute_of, call, has_fixed_sizes, is_empty, numpy_of
from mirage_eg.frontend.imported import Constant, ImportedSegment
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.graph import Graph


class Running:
    """The steps of an imported model; calling it computes the model's results on CPU tensors.

    With the exported `program` of the graph it takes and returns what the model does.
    """

    def __init__(self, graph: Any, state: Mapping[str, Any], program: Any = None) -> None:
        self.graph, self.state, self.program = graph, state, program
        self.steps: list[tuple[int, int, Any]] = []
        self.computing: Fx | None = None  # by torch: the node that an error is of
        self.found = Analysis()
        self.constants: Mapping[str, Constant] = {}

    def schedule(
        self, found: Analysis, groups: Sequence[list[Fx]], parts: Sequence[ImportedSegment], constants: Mapping[str, Constant]
    ) -> None:
        """Order the steps: levels rise, and on one level outside nodes come before segments."""
        self.found, self.constants = found, constants
        outside = [node for node in self.graph.nodes if found.place.get(node) is Place.OUTSIDE]
        self.steps = [(found.level[node], 0, node) for node in outside]
        for group, part in zip(groups, parts, strict=True):
            self.steps.append((found.level[group[0]], 1, (part, escaping(group, found))))
        self.steps.sort(key=lambda step: step[:2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's results. Raises ProgramError: other arguments than those of the import."""
        given = self._arguments(args, kwargs)
        values = dict(given)
        host = HostValues(self.state, self.found.same)
        for _, _, step in self.steps:
            if isinstance(step, tuple):
                part, outputs = step
                self._run_segment(part, outputs, values, host)
            else:
                self.computing = step
                values[step.name] = call(step, lambda node: self._value(node, values, host))
        return self._results(values, host, given)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        import torch
        from torch.utils import _pytree as pytree

        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        if self.program is None:
            if kwargs or len(args) != len(placeholders):
                raise ProgramError(f"run: got {len(args)} arguments, wanted {len(placeholders)}")
            return {node.name: value for node, value in zip(placeholders, args, strict=True)}
        spec = self.program.call_spec.in_spec
        names = spec.child(1).context
        if set(kwargs) != set(names):
            raise ProgramError(f"run: got the keywords {sorted(kwargs)}, wanted {sorted(names)}")
        flat, got = pytree.tree_flatten((tuple(args), {name: kwargs[name] for name in names}))
        if got != spec:
            raise ProgramError(f"run: got arguments of the structure {got}, wanted {spec}")
        tokens = [it.arg.name for it in self.program.graph_signature.input_specs if it.kind.name == "TOKEN"]
        given = [node for node in placeholders if node.name not in self.state and node.name not in tokens]
        values = {node.name: value for node, value in zip(given, flat, strict=True)}
        values |= {name: torch.empty(0) for name in tokens}  # they order calls with effects, which run in order here
        return values | {name: tensor.detach() for name, tensor in self.state.items()}

    def _value(self, node: Fx, values: dict[str, Any], host: HostValues) -> Any:
        """The current value of a node, as torch lays it out."""
        import torch

        source: Fx = self.found.same.get(node, node)
        if source.name not in values and is_empty(source):
            return torch.empty(source.meta["val"].shape, dtype=source.meta["val"].dtype)
        if source.op == "get_attr" and source.name not in self.state:  # a graph that a control-flow op calls
            return attribute_of(source)
        if source.name not in values and self.found.place.get(source) is Place.DROPPED:  # a size, or an expression of sizes
            values[source.name] = call(source, lambda operand: self._value(operand, values, host))
        if source.name not in values:
            values[source.name] = self.constants[source.name].array() if source.name in self.constants else host[source]
        value: Any = values[source.name]
        kind: Any = node.meta.get("val")
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value).to(kind.dtype)
        dense = all(isinstance(it, torch.Tensor) and it.layout is torch.strided for it in (value, kind))
        is_torchs = source is node and self.found.place.get(node) is Place.OUTSIDE  # torch 2.11 declares counts as floats
        if dense and value.dtype is not kind.dtype and not is_torchs:  # of a node that has the value of another of another type
            value = value.to(kind.dtype)
        # Strides of 0 are those of an expanded tensor, symbolic ones those of a tensor of a size that depends on values.
        if (
            dense
            and has_fixed_sizes(node)
            and value.shape == kind.shape
            and value.stride() != kind.stride()
            and 0 not in kind.stride()
        ):
            value = torch.empty_strided(value.shape, kind.stride(), dtype=value.dtype).copy_(value)
        return value

    def _run_segment(self, part: ImportedSegment, outputs: list[Fx], values: dict[str, Any], host: HostValues) -> None:
        nodes = {node.name: node for node in self.graph.nodes}
        inputs = []
        for name in part.program.input_names:
            made = name not in nodes  # a constant that import has added
            inputs.append(self.constants[name].array() if made else numpy_of(self._value(nodes[name], values, host)))
        wide, kinds = part.program.working_dtype, part.program.input_types
        dtypes = (str(kind.dtype if kind.dtype.is_integer else wide) for kind in kinds)
        arrays = [np.asarray(array, dtype=dtype, order="C") for array, dtype in zip(inputs, dtypes, strict=True)]
        results = _evaluated(part.program, arrays)
        for node, result in zip(outputs, results, strict=True):
            values[node.name] = np.array(result)

    def _results(self, values: dict[str, Any], host: HostValues, given: Mapping[str, Any]) -> Any:
        """What the model returns; an argument or buffer that it changes is changed, and is itself a result where it is one."""
        import torch
        from torch.utils import _pytree as pytree

        [output] = [node for node in self.graph.nodes if node.op == "output"]
        results = [
            self._value(it, values, host) if isinstance(it, torch.fx.Node) else it for it in pytree.tree_leaves(output.args[0])
        ]
        if self.program is None:
            return tuple(results)
        signature, changed = self.program.graph_signature, {}
        for kind in signature.output_specs:
            if kind.kind.name == "BUFFER_MUTATION":
                changed[kind.arg.name] = self.state[self._placeholder(kind.target)]
            elif kind.kind.name == "USER_INPUT_MUTATION":
                changed[kind.arg.name] = given[kind.target]
        memories = {_memory(it) for it in changed.values()} - {None}
        kept = [result.clone() if _memory(result) in memories else result for result in results]
        returned = []
        for kind, result in zip(signature.output_specs, kept, strict=True):
            name = getattr(kind.arg, "name", None)
            if kind.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
                with torch.no_grad():
                    changed[name].copy_(result)
            elif kind.kind.name in ("USER_OUTPUT", "CONSTANT_OUTPUT"):
                returned.append(changed.get(name, result))
        return pytree.tree_unflatten(returned, self.program.call_spec.out_spec)

    def _placeholder(self, target: str) -> str:
        buffers: Mapping[str, str] = self.program.graph_signature.inputs_to_buffers
        return next(name for name, buffer in buffers.items() if buffer == target)


def _memory(value: Any) -> int | None:
    """Where the elements of a dense tensor are."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    address: int = value.untyped_storage().data_ptr()
    return address


def _evaluated(program: Graph, arrays: Sequence[Any]) -> list[Any]:
    """The results on these arrays, with shifted exponentials, as in kernels.

    Exponentials and numbers out of range round to no narrow type, so programs with narrow types have them only where plain
    ones are not finite.
    """
    plain = WithIntegers(FloatAlgebra(np, program.working_dtype, rounds=True))
    shifted = ShiftedFloats(plain, keeps_logarithms=True, keeps_range=True)
    others = [shifted.number(result) for result in evaluate(program, arrays, shifted)]
    if program.dtypes.isdisjoint((DType.float16, DType.bfloat16)):
        return others
    results = evaluate(program, arrays, plain)
    kept = [np.isfinite(result) & np.isfinite(other) for result, other in zip(results, others, strict=True)]
    return [np.where(*each) for each in zip(kept, results, others, strict=True)]
