"""Ops of torch's packages for quantized models, which are written in ATen's ops: import reads their definitions."""

from collections.abc import Callable
from functools import partial
from typing import Any

_NAMESPACES = ("quantized_decomposed", "torchao")


def defined_ops() -> dict[Any, Callable[..., Any]]:
    """The ops of these packages that this process has loaded, with their definitions."""
    import torch

    key = torch._C.DispatchKey.CompositeExplicitAutograd
    found: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space in _NAMESPACES and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd"):
            packet, _, overload = rest.partition(".")
            op = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
            found[op] = partial(op._op_dk, key)
    return found
