"""Random calls of an FX graph apart from the ops on their numbers: torch makes them, by shapes alone, and segments read them.

Torch's generators give each call the numbers that eager torch has for the same seed. So random calls keep their number and
order (`fx_partition`, `rewrite`), and the shape, type and strides of their operands.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mirage_eg.frontend.fx_values import Fx, arguments_of, has_fixed_sizes, inserted, is_random

_LIKE = (
    "aten.bernoulli.p",
    "aten.cauchy.",
    "aten.exponential.",
    "aten.geometric.",
    "aten.log_normal.",
    "aten.normal_functional.",
    "aten.rand_like.",
    "aten.randint_like.",
    "aten.randn_like.",
    "aten.random.",
    "aten.uniform.",
)
"""The beginnings of the names of random ops that read the shape, type and strides of their first operand alone."""
_WRITTEN = (
    "alpha_dropout",
    "feature_alpha_dropout",
    "feature_dropout",
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
)
"""Ops that torch writes in random and other ops."""


def random_definitions() -> dict[Any, Callable[..., Any]]:
    """The ops that torch writes in random and other ops, with their definitions."""
    import torch

    ops = [getattr(torch.ops.aten, name).default for name in _WRITTEN]
    return {op: partial(op._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd) for op in ops}


def has_random_calls(graph: Any) -> bool:
    """Whether a node of an FX graph gives random numbers."""
    return any(map(is_random, graph.nodes))


def separate_random_calls(graph: Any) -> None:
    """Let random calls of fixed sizes read empty tensors in the place of values, and write dropouts as products, in place."""
    for node in [it for it in graph.nodes if is_random(it) and has_fixed_sizes(it)]:
        name = str(node.target)
        if name.startswith(_LIKE):
            node.replace_input_with(node.args[0], inserted(node, "empty_like", node.args[0]))
        elif name == "aten.dropout.default" and 0 < arguments_of(node)["p"] < 1:
            product, _ = _masked(node)
            node.replace_all_uses_with(product)
            graph.erase_node(node)
        elif name == "aten.native_dropout.default" and arguments_of(node)["p"] < 1:
            results = _masked(node)
            for part in [*node.users]:
                part.replace_all_uses_with(results[part.args[1]])
                graph.erase_node(part)
            graph.erase_node(node)


def _masked(node: Fx) -> tuple[Fx, Fx]:
    """The product that a dropout is, and its mask, by `native_dropout`: that of `bernoulli` is another on a GPU."""
    x, p = node.args[0], arguments_of(node)["p"]
    mask = inserted(node, "getitem", inserted(node, "native_dropout", inserted(node, "empty_like", x), p, True), 1)
    return inserted(node, "mul.Tensor", inserted(node, "mul.Tensor", x, mask), 1 / (1 - p)), mask
