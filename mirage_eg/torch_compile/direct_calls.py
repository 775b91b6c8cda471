"""Graphs that call segments alone: torch runs them as they are written, without Inductor's code around each call.

Nothing is left to compile. Where AOTAutograd changes nothing at a call, its wrapper is left out, too.
"""

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

from mirage_eg.torch_compile.operator import CALLED


def call_directly(module: Any) -> None:
    """Let a graph module that runs without autograd call the kernels, not the op."""
    for node in module.graph.nodes:
        node.target = CALLED.get(node.target, node.target)


def function_of(module: Any) -> Callable[..., Any]:
    """The code of a graph module as a function: torch's lazy modules would pass each call on."""
    import torch

    function: Callable[..., Any] = torch.fx.GraphModule(module, module.graph).forward
    return function


def enabled(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function without the wrapper that hides it from Dynamo, which puts its own around ours."""
    function: Callable[..., Any] = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    return function


def unchecked(compiled: Callable[..., Any], example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiled function; for subclasses of Tensor without torch's check of custom ops, under which no op takes these."""
    import torch
    from torch._functorch import config as functorch
    from torch._subclasses import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass  # AOTAutograd takes these apart before the check

    plain = {torch.Tensor, torch.nn.Parameter, FakeTensor}
    others = [it for it in example_inputs if isinstance(it, torch.Tensor) and type(it) not in plain]
    checked = not all(map(is_traceable_wrapper_subclass, others)) and hasattr(functorch, "check_custom_op_aliasing")
    if not checked:
        return compiled

    def run(*arguments: Any) -> Any:
        with functorch.patch(check_custom_op_aliasing=False):
            return compiled(*arguments)

    return run


def is_direct(module: Any) -> bool:
    """Whether a graph has no op besides segments and views, and no CUDA graph or cache wants code of Inductor."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    others = [target for target in targets if target not in CALLED]
    needs_code = inductor.triton.cudagraphs or getattr(functorch, "bundled_autograd_cache", False)  # not before torch 2.8
    return (
        len(others) < len(targets) and all(it is getitem or getattr(it, "is_view", False) for it in others) and not needs_code
    )


class DirectCall:
    """The `function` that calls a graph of Dynamo without AOTAutograd's wrapper, once it is compiled; None if a call needs it.

    It needs it under autocast, too, which torch's own ops would follow.
    """

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        import torch

        self.function: Callable[..., Any] | None = None
        self._inputs, self._autocast = example_inputs, torch._C._is_any_autocast_enabled()  # off while AOTAutograd compiles

    def compile(self, module: Any) -> Callable[..., Any]:
        """What AOTAutograd calls for its graph: segments by their functions, other ops by torch."""
        from torch._functorch.aot_autograd import make_boxed_func

        call_directly(module)
        function = function_of(module)
        if not self._autocast and needs_no_wrapper(module, self._inputs):
            self.function = function
        boxed: Callable[..., Any] = make_boxed_func(function)
        return boxed


def needs_no_wrapper(module: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd's graph may be called on the inputs of Dynamo's graph, without the wrapper around it.

    Not where inputs are changed, subclasses or one memory, and where results are views of inputs; Dynamo guards all these.
    """
    import torch
    from torch._subclasses import FakeTensor

    context = torch._guards.TracingContext.try_get()
    found = None if context is None else context.fw_metadata
    if found is None or found.grad_enabled_mutation is not None:
        return False
    given = sum(node.op == "placeholder" for node in module.graph.nodes)
    [results] = next(node for node in module.graph.nodes if node.op == "output").args
    same = given == len(example_inputs) == len(found.input_info) and len(results) == len(found.output_info)
    plain = {torch.Tensor, torch.nn.Parameter, FakeTensor, torch.SymInt, int}
    changed = any(it.mutates_data or it.mutates_metadata for it in found.input_info)
    return same and not changed and not found.num_outputs_aliased and plain.issuperset(map(type, example_inputs))
