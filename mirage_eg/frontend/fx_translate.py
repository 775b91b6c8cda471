"""FX nodes as ops of one kernel graph: operands from outside become inputs, and torch's own types are held against ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from mirage_eg.frontend.aten_call import Call, TorchType, of_scalars
from mirage_eg.frontend.aten_ops import HANDLERS
from mirage_eg.frontend.fx_values import Fx, is_fixed, operands_of, type_of, types_of_results
from mirage_eg.frontend.imported import AddedInput, CausalMask, Constant
from mirage_eg.frontend.onnx_barriers import TARGET, reason_of
from mirage_eg.frontend.symbolic_sizes import NAMED, is_size
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import MirageError, UnsupportedError
from mirage_eg.ir.op.moves import VIEWS_OF_A_PART
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import Dim, SizeExpression

# arguments that may be symbolic: handlers compare them with the type of the result; group norm ignores N, C and HxW
_SHAPES = ("size", "shape", "sizes", "end", "N", "C", "HxW")


@dataclass(slots=True)
class Translation:
    """A kernel graph that grows node by node.

    `same` maps a node to another that has the same value; `known` returns the NumPy array of a constant, or None.

    `values` has a tensor, or the list of a handler's results, for each translated node; `inputs` the nodes that became inputs;
    `lifted` the inputs that import itself adds, such as causal masks.
    """

    same: Mapping[Fx, Fx]
    known: Callable[[Fx], Any]
    graph: KernelGraph = field(default_factory=KernelGraph)
    values: dict[Fx, Any] = field(default_factory=dict)
    inputs: dict[Fx, Tensor] = field(default_factory=dict)
    lifted: dict[str, AddedInput] = field(default_factory=dict)
    _lifted_tensors: dict[str, Tensor] = field(default_factory=dict)

    def append(self, node: Fx) -> None:
        """Translate one node. Raises UnsupportedError: why the node must stay outside."""
        wanted = type_of(node)
        try:
            result = self._result(node, wanted)
        except UnsupportedError:
            raise
        except MirageError as error:  # of the graph's own rules
            raise UnsupportedError(str(error)) from None
        if isinstance(result, Tensor):
            if wanted is None:
                raise UnsupportedError("the value is no single tensor")
            got = TorchType(result.shape, str(result.dtype))
            if got.shape != wanted.shape or (
                got.dtype != wanted.dtype != "bool"
            ):  # a bool tensor may be an indicator of numbers
                raise UnsupportedError(f"the IR gives {got}, torch {wanted}")
        self.values[node] = result

    def _result(self, node: Fx, wanted: TorchType | None) -> Any:
        if node.target is getitem:
            results, index = self.values.get(node.args[0]), node.args[1]
            if not isinstance(results, list):
                raise UnsupportedError("an element of a value that is computed outside")
            chosen = results[index] if index < len(results) else "no such result"
            if isinstance(chosen, str):
                raise UnsupportedError(chosen)
            return chosen()
        if str(node.target) == TARGET:
            raise UnsupportedError(reason_of(node.args[1]))
        handler = HANDLERS.get(str(node.target))
        if handler is None:
            raise UnsupportedError("no op of the IR computes it")
        results = [wanted] if wanted is not None else types_of_results(node)
        call = _in_common_type(node, self._call(node, results))
        before = len(self.graph.nodes)
        result = of_scalars(handler)(call) if call.has_dims else handler(call)
        call.finish()
        for item in self.graph.nodes[before:]:
            if item.op in VIEWS_OF_A_PART and isinstance(
                self.graph.checker.types[item.operands[0]].shape[item["dim"]], SizeExpression
            ):
                raise UnsupportedError(f"{item.op} along a size that is chosen later")
        return result

    def _call(self, node: Fx, results: Sequence[TorchType]) -> Call:
        import torch

        arguments: dict[str, Any] = {}
        types: dict[str, TorchType] = {}
        values: dict[str, Any] = {}
        defaults: dict[str, Any] = {}

        def tensor(name: str, operand: Fx) -> Any:
            if is_size(operand.meta.get("val")) and NAMED in operand.meta and name.partition(".")[0] in _SHAPES:
                return operand.meta[NAMED]
            kind = type_of(operand)
            if kind is None:
                raise UnsupportedError(f"{name} is a symbolic number or no tensor")
            types[name], values[name] = kind, operand.meta["val"]
            return self.same.get(operand, operand)

        given, read = iter(node.args), operands_of(node)
        for argument in node.target._schema.arguments:
            if argument.has_default_value():
                defaults[argument.name] = argument.default_value
            value = node.kwargs[argument.name] if argument.name in node.kwargs else next(given, defaults.get(argument.name))
            if isinstance(value, torch.fx.Node):
                value = tensor(argument.name, value)
            elif isinstance(value, (list, tuple)):
                value = [
                    tensor(f"{argument.name}.{place}", it) if isinstance(it, torch.fx.Node) else it
                    for place, it in enumerate(it for it in value if it in read or not _is_tensor(it))
                ]
            arguments[argument.name] = value
        added = self._lift, self._causal_mask
        has = self.values.__contains__
        return Call(
            self.graph, arguments, defaults, types, results, self._operand, *added, self.known, values, has, is_fixed=is_fixed
        )

    def _operand(self, node: Fx) -> Tensor:
        """The tensor of a node: its value in this graph, or an input."""
        if node in self.values:
            value = self.values[node]
            assert isinstance(value, Tensor)
            return value
        if node not in self.inputs:
            kind = type_of(node)
            assert kind is not None
            _check_extents("an input", kind.shape)
            self.inputs[node] = self.graph.new_input(kind.shape, kind.dtype, node.name)
        return self.inputs[node]

    def _lift(self, name: str, shape: tuple[int, ...], dtype: str, array: Callable[[], Any]) -> Tensor:
        if any(isinstance(extent, SizeExpression) for extent in shape):
            raise UnsupportedError(f"the constant {name} has the shape {text(shape)}, wanted one without sizes chosen later")
        return self._added(Constant(name, (), array), shape, dtype)

    def _causal_mask(self, rows: int, columns: int) -> Tensor:
        shape, name = (rows, columns), f"causal_{rows}_{columns}"
        if not any(isinstance(extent, SizeExpression) for extent in shape):
            return self._lift(name, shape, "bool", lambda: np.tri(rows, columns, dtype=bool))
        _check_extents("a causal mask", shape)
        return self._added(CausalMask(name, shape), shape, "bool")

    def _added(self, given: AddedInput, shape: Shape, dtype: str) -> Tensor:
        if given.name not in self.lifted:
            self.lifted[given.name] = given
            self._lifted_tensors[given.name] = self.graph.new_input(shape, dtype, given.name)
        return self._lifted_tensors[given.name]


def _in_common_type(node: Fx, call: Call) -> Call:
    """The call of an elementwise op with operands without dims in the type of those with dims, if theirs is a wider one."""
    import torch

    if torch.Tag.pointwise not in node.target.tags:
        return call
    floats = [value for value in call.values.values() if value.dtype.is_floating_point]
    with_dims = [value.dtype for value in floats if value.dim()]
    if len({value.dtype for value in floats}) < 2 or not with_dims:
        return call
    common = reduce(torch.promote_types, with_dims)
    wider = {str(it.dtype).removeprefix("torch.") for it in floats if torch.promote_types(it.dtype, common) != common}
    name = str(common).removeprefix("torch.")

    def tensor_of(given: Fx) -> Tensor:
        x = call.tensor_of(given)
        return x.builder.cast(x, name) if x.dtype in wider else x

    return replace(call, tensor_of=tensor_of)


def _check_extents(what: str, shape: Shape) -> None:
    """Refuse a shape of an input with extents that are neither numbers nor named dims."""
    if any(isinstance(extent, SizeExpression) and not isinstance(extent, Dim) for extent in shape):
        raise UnsupportedError(f"got {what} of shape {text(shape)}, wanted extents that are numbers or one size")


def _is_tensor(value: Any) -> bool:
    """Whether an argument is a node of the graph, but no symbolic size."""
    return hasattr(value, "all_input_nodes") and not is_size(value.meta.get("val"))
