"""Values of FX nodes: their types, and what torch computes for them on the host."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import prod
from operator import attrgetter, getitem
from types import MappingProxyType
from typing import Any

from mirage_eg.frontend.aten_call import TorchType
from mirage_eg.frontend.aten_ops import FROM_SHAPES
from mirage_eg.frontend.symbolic_sizes import NAMED, is_size
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.reached import operands_first, reached

_LOGGER = logging.getLogger("mirage_eg.torch")
Fx = Any  # torch.fx.Node; torch is imported inside functions


def type_of(node: Fx) -> TorchType | None:
    """The type of a node's value; None if that is no single tensor.

    Raises UnsupportedError: a symbolic shape without named dims, or an empty shape.
    """
    kind = _type(node.meta.get("val"), node.meta.get(NAMED))
    if kind is not None and 0 in kind.shape:
        raise UnsupportedError(f"got the empty shape {list(kind.shape)}, wanted extents of at least 1")
    return kind


def is_empty(node: Fx) -> bool:
    """Whether a node's value is a dense tensor without elements."""
    value = node.meta.get("val")
    shape = getattr(value, "shape", ())
    return _is_fixed(shape) and 0 in shape and str(getattr(value, "layout", "")) == "torch.strided"


def has_fixed_sizes(node: Fx) -> bool:
    """Whether neither a node's value nor an operand depends on a symbolic size."""
    for one in (node, *node.all_input_nodes):
        value = one.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        if not all(_is_fixed(getattr(it, "shape", ())) and not is_size(it) for it in values):
            return False
    return True


def read_of(node: Fx) -> list[Fx]:
    """The nodes whose elements a node reads: none for an op that gives no element itself, and not what gives a shape alone."""
    if hasattr(node.target, "_schema") and is_empty(node):
        return []
    like = node.args[0] if str(node.target) in FROM_SHAPES else None  # a number that fills is read
    return [it for it in node.all_input_nodes if it is not like and not (hasattr(node.target, "_schema") and is_empty(it))]


def operands_of(node: Fx) -> list[Fx]:
    """The nodes whose values a node reads; an empty part of a concatenation adds nothing to it.

    An expression of sizes stands for what it is computed from, for nothing if it has named dims; `item` gives a value.
    """
    operands: dict[Fx, None] = {}
    seen, pending = set(), list(reversed(node.all_input_nodes))
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if not is_size(one.meta.get("val")) or _gives_value(one):
            operands[one] = None
        elif one.op == "placeholder" or str(one.target).startswith("aten.sym_"):
            if NAMED not in one.meta:
                operands |= dict.fromkeys(one.all_input_nodes or [one])
        else:
            pending += reversed(one.all_input_nodes)
    return [it for it in operands if not is_empty(it)] if str(node.target) == "aten.cat.default" else list(operands)


def _gives_value(size: Fx) -> bool:
    """Whether a node reads a size off elements, not off shapes or other sizes."""
    return hasattr(size.target, "_schema") and not str(size.target).startswith("aten.sym_")


def types_of_results(node: Fx) -> list[TorchType]:
    """The types of the results of a node that has several; of one that is no tensor, the type `none`.

    Raises UnsupportedError: a symbolic shape without named dims.
    """
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else []
    found = [_type(*pair) for pair in zip(values, node.meta.get(NAMED) or [None] * len(values), strict=True)]
    return [one or TorchType((), "none") for one in found]


def _type(value: Any, named: Any = None) -> TorchType | None:
    """The type of one value; `named` is its shape with named dims, if it has some."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    if named is None and not _is_fixed(value.shape):
        raise UnsupportedError(f"got the symbolic shape {list(value.shape)}, wanted fixed extents")
    return TorchType(tuple(value.shape if named is None else named), str(value.dtype).removeprefix("torch."))


LITERALS = ("_tensor_constant", "c_lifted_tensor")  # how tracing and torch.export name tensors of numbers in a model's source


def is_fixed(node: Fx) -> bool:
    """Whether a constant depends on shapes and numbers of the source alone: on no weight, buffer or attribute of a module."""
    return all(
        (one.op == "call_function" or str(one.target).startswith(LITERALS)) and not is_random(one) and has_fixed_sizes(one)
        for one in reached([node], read_of)
    )


def attribute_of(node: Fx) -> Any:
    """The attribute of its module that a node of kind get_attr names."""
    return attrgetter(node.target)(node.graph.owning_module)


def is_random(node: Fx) -> bool:
    """Whether a call may give random numbers: not outside training, nor with a dropout of probability 0."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = arguments_of(node)
    in_training = given.get("train") is not False and given.get("training") is not False
    return in_training and all(given.get(name, 1) for name in ("dropout_p", "dropout"))


def arguments_of(node: Fx) -> dict[str, Any]:
    """The arguments of an op by name, with the defaults of its schema."""
    arguments = node.target._schema.arguments
    defaults = {it.name: it.default_value for it in arguments if it.has_default_value()}
    return defaults | dict(zip((it.name for it in arguments), node.args, strict=False)) | dict(node.kwargs)


def is_mutable(node: Fx) -> bool:
    """Whether a node changes an operand in place."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


class HostValues:
    """What torch computes on the CPU for nodes without arguments of the program among their ancestors.

    `state` gives the current tensor of a parameter or buffer by the name of its node, `same` another node of the same value.
    """

    def __init__(self, state: Mapping[str, Any], same: Mapping[Fx, Fx] = MappingProxyType({})) -> None:
        self.state, self.same = state, same
        self.known: dict[str, Any] = {}

    def __getitem__(self, node: Fx) -> Any:
        """The value of a node. Raises UnsupportedError: it depends on a tensor of the meta device, which has no values."""

        def unknown(one: Fx) -> list[Fx]:
            read = [] if one.name in self.known else [self.same.get(it, it) for it in read_of(one)]
            return [it for it in read if it.name not in self.known]

        for one in operands_first([node], unknown):
            if one.name not in self.known:
                self.known[one.name] = self._compute(one)
        return self.known[node.name]

    def _compute(self, node: Fx) -> Any:
        import torch

        if node.name in self.state:
            tensor = self.state[node.name]
            if tensor.device.type == "meta":
                raise UnsupportedError(f"{node.name} is on the meta device and has no values")
            return tensor.detach().cpu()

        def value(operand: Fx) -> Any:
            source = self.same.get(operand, operand)
            if source.name in self.known:
                return self.known[source.name]
            return torch.empty(operand.meta["val"].shape, dtype=operand.meta["val"].dtype)  # its elements are not read

        with torch.no_grad():
            return call(node, value, torch.device("cpu"))


def call(node: Fx, value: Callable[[Fx], Any], device: Any = None) -> Any:
    """Call a node's function on `value(operand)`; with `device` in the place of every device argument."""
    import torch
    from torch.utils import _pytree as pytree

    def replaced(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return value(argument)
        return device if device is not None and isinstance(argument, torch.device) else argument

    args, kwargs = pytree.tree_map_only((torch.fx.Node, torch.device), replaced, (node.args, dict(node.kwargs)))
    return node.target(*args, **kwargs)


def inserted(place: Fx, name: str, *args: Any) -> Fx:
    """A new call before a node, of an ATen op or `getitem`, with the fake value of its result."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.node import map_arg
    from torch.utils._pytree import tree_leaves

    packet, _, overload = name.partition(".")
    target = getitem if name == "getitem" else getattr(getattr(torch.ops.aten, packet), overload or "default")
    given = map_arg(args, lambda node: node.meta["val"])
    mode = next((it.fake_mode for it in tree_leaves(given) if isinstance(it, FakeTensor)), nullcontext())
    with place.graph.inserting_before(place):
        made = place.graph.call_function(target, args)
    with mode:
        made.meta = {name: place.meta[name] for name in _KEPT if name in place.meta} | {"val": target(*given)}
    return made


_KEPT = ("nn_module_stack", "stack_trace")  # of what torch.export says of a node


def numpy_of(tensor: Any) -> Any:
    """A tensor's values as a NumPy array; bfloat16 and float8 as float32."""
    values = tensor.detach().cpu()
    return (values.float() if str(values.dtype).removeprefix("torch.") in _NOT_IN_NUMPY else values).numpy()


_NOT_IN_NUMPY = frozenset(str(dtype) for dtype in DType if dtype.in_numpy != dtype)


def nbytes_of(node: Fx) -> int:
    """Bytes of a node's operands and results, at their own types."""
    tensors = [it.meta.get("val") for it in (*node.all_input_nodes, node)]
    flat = [one for value in tensors for one in (value if isinstance(value, (list, tuple)) else [value])]
    return sum(int(it.numel()) * it.element_size() for it in flat if hasattr(it, "element_size") and _is_fixed(it.shape))


_CONVOLUTIONS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.conv_transpose", "aten.convolution.")


def flops_of(node: Fx) -> int | None:
    """Operations of a matrix product, convolution or attention; 0 for other ATen ops, None where torch cannot count them.

    A whole convolution, which torch does not count, has two for each result and each weight of its channel; of a transposed
    one each element of the operand has so many. Attention, where torch refuses to count grouped heads, has two for each query,
    key and element of a head, in either product.
    """
    from torch.fx.node import map_arg
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    values = [node.meta.get("val"), *(it.meta.get("val") for it in node.all_input_nodes)]
    fixed = all(_is_fixed(value.shape) for value in values if hasattr(value, "shape"))
    name = str(node.target)
    if fixed and name.startswith(_CONVOLUTIONS):
        x, weight = (each.meta["val"] for each in node.args[:2])
        transposed = name.startswith("aten.conv_transpose") or (name == "aten.convolution.default" and node.args[6])
        return int(2 * (x if transposed else values[0]).numel() * weight[0].numel())
    attention = name.startswith(("aten.scaled_dot_product", "aten._scaled_dot_product")) and "backward" not in name
    if fixed and attention and len(node.args) >= 3:
        (*heads, tokens, width), keys, columns = (each.meta["val"].shape for each in node.args[:3])
        return int(2 * prod(heads) * tokens * keys[-2] * (width + columns[-1]))
    if count is None or not fixed:
        return 0 if name.startswith("aten.") else None
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda it: it.meta.get("val"))
    try:
        return int(count(*args, **kwargs, out_val=node.meta["val"]))
    except Exception as error:  # noqa: BLE001 - torch's counters assert what they expect; a count is no reason to stop
        _LOGGER.debug("flops of %s: not counted: %s: %s", name, type(error).__name__, error)
        return None


def _is_fixed(shape: Any) -> bool:
    return all(type(extent) is int for extent in shape)


def is_view(each: Fx) -> bool:
    """Whether the results of a node share memory with an operand, by the schema of its op."""
    schema = getattr(each.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def shares_memory(each: Fx) -> bool:
    """Whether the results of a node share memory with an operand: `_unsafe_view`'s do, whose schema does not say so."""
    return is_view(each) or str(each.target) == "aten._unsafe_view.default"
