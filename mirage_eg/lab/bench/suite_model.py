"""A model of a suite of `bench models`: how it is built with random weights, at its batch or small."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Built:
    """A module in evaluation mode with the arguments of a call.

    `prepare` puts the state that a call changes, such as the length of a cache, back to where it was; it comes before each
    call. `state` are the tensors besides weights that have values of their own, such as a cache of keys. `unread_bytes` has
    the weights that the call does not need, such as experts that no token has chosen.
    """

    module: Any
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None
    state: Sequence[Any] = ()
    unread_bytes: int = 0

    @property
    def inputs(self) -> list[Any]:
        """The tensors among the arguments."""
        return [it for it in (*self.arguments, *self.keywords.values()) if isinstance(it, torch.Tensor)]

    @property
    def weights(self) -> list[Any]:
        """Parameters, buffers, and the state."""
        return [*self.module.parameters(), *self.module.buffers(), *self.state]


Builder = Callable[[int, bool, torch.dtype], Built]
"""From a batch, whether the model is small, and an element type, with torch's default device."""


@dataclass(frozen=True, slots=True)
class SuiteModel:
    """A model with the batch of its suite; `package` has its classes, and `dtype` is one that it needs."""

    batch: int
    build: Builder
    package: str = "torch"
    dtype: str | None = None


def built(model: SuiteModel, device: str, dtype: str, small: bool) -> Built:
    """The model on a device, with the weights of seed 0; small ones have two samples at most."""
    torch.manual_seed(0)
    with torch.device(device):
        found = model.build(min(model.batch, 2) if small else model.batch, small, getattr(torch, dtype))
    found.module.to(device)  # a few models have their parameters on the CPU
    return found


def made_in(dtype: torch.dtype, make: Callable[[], Any]) -> Any:
    """The module in evaluation mode, made with this default type, as transformers loads models.

    Tables that a model wants in float32, such as frequencies of positions, are.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        module = make().eval()
    finally:
        torch.set_default_dtype(before)
    for parameter in module.parameters():  # a few models make theirs in float32
        parameter.data = parameter.data.to(dtype)
    return module


def copy_values(source: Built, target: Built) -> None:
    """Give a model of another element type the weights and inputs of the first one."""
    with torch.no_grad():
        for one, other in zip([*source.weights, *source.inputs], [*target.weights, *target.inputs], strict=True):
            other.copy_(one)
