"""The inputs on which the gate runs a segment: weights with their values, activations from the domain of the program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter, getitem
from typing import Any
from weakref import ref

import numpy as np
import torch

from mirage_eg.frontend.fx_partition import writes_argument
from mirage_eg.frontend.fx_values import Fx, HostValues, is_random
from mirage_eg.frontend.imported import AddedInput, CausalMask
from mirage_eg.frontend.symbolic_sizes import number_at
from mirage_eg.ir.expand import expand
from mirage_eg.ir.whole_inputs import root_inputs, whole_inputs
from mirage_eg.torch_compile.fx_regions import FxRegion
from mirage_eg.torch_compile.segment_call import SegmentCall

aten = torch.ops.aten
DISTRIBUTIONS = ("normal", "positive", "negative", "small")
"""Of activations, in the order in which they are tried until the program has finite results."""


class Weights:
    """The parameters and buffers of a graph: a model that is gone has no values.

    A buffer that the graph writes, such as a cache, is no weight: its values are those of one call.
    """

    def __init__(self, module: Any, tensors: Mapping[str, Any]) -> None:
        """`tensors` are values of placeholders by name; `module` has those of its attributes."""
        self._tensors: dict[str, ref[Any]] = {}
        for node in module.graph.nodes:
            value = tensors.get(node.name)
            if node.op == "get_attr":
                value = attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor) and not any(map(writes_argument, node.users)):
                self._tensors[node.name] = ref(value)

    def value(self, node: Fx) -> Any:
        """The tensor of a node that is a weight, or is computed from weights alone or from nothing; None for others."""
        state: dict[str, Any] = {}
        pending, seen = [node], {node}
        while pending:
            one = pending.pop()
            if one.op in ("placeholder", "get_attr"):
                state[one.name] = self._tensors.get(one.name, lambda: None)()
                if state[one.name] is None or state[one.name].device.type == "meta":
                    return None
            if is_random(one):
                return None
            new = set(one.all_input_nodes) - seen
            pending += new
            seen |= new
        return state[node.name].detach() if node.name in state else HostValues(state)[node]


@dataclass(frozen=True, slots=True)
class Contest:
    """A region, its nodes as a `module` of their own, and the device: what a segment's kernels are held against.

    `weights` have the values of those of its inputs; `sizes` are those of the named dims at which this is done. With
    `images_last` Inductor would have the images of the whole graph channels last.
    """

    region: FxRegion
    module: Any
    device: Any
    weights: Weights
    images_last: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GateInputs:
    """The inputs of a segment's kernels in a contest."""

    call: SegmentCall
    contest: Contest

    @cached_property
    def _values(self) -> Sequence[Any]:
        """The values of those inputs that have some. Weights of nothing but zeros would hide what they are factors of."""
        found: list[Any] = []
        for given, (shape, dtype) in zip(self.contest.region.inputs, self.call.inputs_at(self.contest.sizes), strict=True):
            if isinstance(given, AddedInput):
                array = given.array(self.contest.sizes) if isinstance(given, CausalMask) else given.array()
                found.append(_as(array, dtype, self.contest.device))
                continue
            value = self.contest.weights.value(given)
            usable = value is not None and tuple(value.shape) == tuple(shape)
            if usable and value.is_floating_point():
                wide = value.float() if value.itemsize == 1 else value  # torch asks nothing of numbers of float8
                usable = bool(wide.isfinite().all()) and bool(wide.any() or wide.numel() == 1)
            found.append(_as(value, dtype, self.contest.device) if usable else None)
        return found

    def draw(self, magnitude: float, seed: int, distribution: str = DISTRIBUTIONS[0]) -> list[Any]:
        """Inputs with which the program stays within the range of its types: activations are drawn.

        Whole numbers are below their bounds, and the places of a sort are all places once: torch may write at them into a
        tensor that it has not set. Numbers whose roots are taken are positive. Masks have both values, but for the
        distributions of one sign.
        """
        generator = torch.Generator(self.contest.device).manual_seed(seed)
        whole, roots = whole_inputs(self.contest.region.program), root_inputs(expand(self.contest.region.program))
        tensors = []
        for place, (shape, dtype) in enumerate(self.call.inputs_at(self.contest.sizes)):
            given, value = self.contest.region.inputs[place], self._values[place]
            if isinstance(given, AddedInput) or value is not None:
                tensors.append(value)
                continue
            if (dim := _sorted_dim(given)) is not None:
                values = torch.rand(shape, generator=generator, device=self.contest.device).argsort(dim)
            elif place in whole:
                values = torch.randint(whole[place], shape, generator=generator, device=self.contest.device)
            elif place in roots:
                values = 0.5 + torch.rand(shape, generator=generator, device=self.contest.device)
            else:
                values = magnitude * self.call.module.SCALES[place] * _random(distribution, shape, generator)
            for dim in expanded_dims(given.meta["val"], self.contest.sizes):
                values = values.narrow(dim, 0, 1).expand(shape)
            tensors.append(values > 0 if dtype == "bool" else values.to(getattr(torch, dtype)))
        return tensors


def _as(values: Any, dtype: str, device: Any) -> Any:
    tensor = torch.from_numpy(np.array(values, order="C")) if isinstance(values, np.ndarray) else values
    return tensor.to(getattr(torch, dtype)).to(device)


def _sorted_dim(node: Fx) -> int | None:
    """The dim along which a node has the places of a sort; None of other nodes."""
    if node.target is getitem and node.args[1] == 1:
        node = node.args[0]
        sorts = node.target in (aten.sort.default, aten.sort.stable)
    else:
        sorts = node.target in (aten.argsort.default, aten.argsort.stable)
    if not sorts:
        return None
    dim: int = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else -1)
    return dim


def _random(distribution: str, shape: Sequence[int], generator: Any) -> Any:
    where = {"generator": generator, "device": generator.device}
    match distribution:
        case "normal":
            return torch.randn(shape, **where)
        case "small":
            return (torch.rand(shape, **where) - 0.5) / 8
    return (0.5 + torch.rand(shape, **where)) * (1 if distribution == "positive" else -1)


def expanded_dims(value: Any, sizes: Mapping[str, int]) -> list[int]:
    """The dims whose elements are one in memory."""
    strides = [stride if type(stride) is int else None for stride in value.stride()]  # torch knows no symbol that may be 0
    return [dim for dim, stride in enumerate(strides) if stride == 0 and number_at(value.shape[dim], sizes) > 1]
