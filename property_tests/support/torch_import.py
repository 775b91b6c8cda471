"""Functions of torch as imported programs, compared with torch in float64."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage_eg.frontend.imported import Imported
from mirage_eg.frontend.torch_export import import_program


class AsModule(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def exported(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The exported program of a module or function."""
    module = model if isinstance(model, torch.nn.Module) else AsModule(model)
    with torch.no_grad():
        return torch.export.export(module, args, kwargs, strict=False)


def imported(function: Callable[..., Any], *args: Any) -> Imported:
    """A function imported for these arguments."""
    return import_program(exported(function, *args))


def relative_error(got: Any, wanted: Any) -> float:
    """The largest difference of two results of a model, over the largest number of each tensor; not-a-number counts as ∞."""
    worst = 0.0
    for x, y in zip(_floats(got), _floats(wanted), strict=True):
        assert x.shape == y.shape, (x.shape, y.shape)
        difference = (x.detach().double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-30)
        worst = max(worst, float(difference.nan_to_num(nan=float("inf"))))
    return worst


def _floats(result: Any) -> list[Any]:
    return [it for it in pytree.tree_leaves(result) if isinstance(it, torch.Tensor) and it.is_floating_point()]


def widened(value: Any) -> Any:
    """Floating-point tensors within a structure in float64."""
    return pytree.tree_map_only(torch.Tensor, lambda it: it.double() if it.is_floating_point() else it, value)
