"""The op `mirage_eg::segment` of torch: opaque to Dynamo, Inductor and export, with fake results and a backward."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from mirage_eg.torch_compile.calls import run_segment, segment_call


@cache
def segment_op() -> Any:
    """The op, registered with torch: `segment(Tensor[] inputs, str key) -> Tensor[]`.

    `key` names the kernels in the cache. Its gradient is that of the same program by torch's ops, in float64.
    """
    import torch

    def segment(inputs: Sequence[Any], key: str) -> list[Any]:
        return run_segment(inputs, key)

    def fake(inputs: Sequence[Any], key: str) -> list[Any]:
        results = segment_call(key).results
        shapes = results.shapes_for(inputs)
        return [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, results.dtypes, strict=True)]

    def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, ctx.key = inputs
        ctx.save_for_backward(*tensors)

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        [found] = gradients if len(gradients) == 1 and isinstance(gradients[0], (list, tuple)) else [gradients]
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
            results = segment_call(ctx.key).in_torch(inputs)
            pairs = [
                (result, gradient)
                for result, gradient in zip(results, found, strict=True)
                if gradient is not None and result.requires_grad
            ]
            wanted = [tensor for tensor in inputs if tensor.requires_grad]
            given = torch.autograd.grad([one for one, _ in pairs], wanted, [one for _, one in pairs], allow_unused=True)
        of_wanted = iter(given)
        return [next(of_wanted) if tensor.requires_grad else None for tensor in inputs], None

    op = torch.library.custom_op(
        "mirage_eg::segment", segment, mutates_args=(), schema="(Tensor[] inputs, str key) -> Tensor[]"
    )
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=keep_inputs)
    _spare_dispatch()
    return torch.ops.mirage_eg.segment.default


def _spare_dispatch() -> None:
    """Let Inductor's code call the kernels: torch's dispatcher takes longer than our code (`benchmarks/segment_op.py`)."""
    try:
        from torch._inductor.codegen.custom_extern_kernel_codegen import CUSTOM_EXTERN_KERNEL_CODEGEN, CustomCodegen
    except ImportError:  # before torch 2.13 the op is dispatched
        return

    def write(node: Any, writeline: Callable[[str], None]) -> None:
        from torch._inductor.virtualized import V

        V.graph.wrapper_code.add_import_once(f"from {run_segment.__module__} import {run_segment.__name__}")
        writeline(f"{node.get_name()} = {run_segment.__name__}({', '.join(node.codegen_args())})")

    CUSTOM_EXTERN_KERNEL_CODEGEN["torch.ops.mirage_eg.segment.default"] = CustomCodegen(python=write)


def call_directly(module: Any) -> None:
    """Let a graph module that runs without autograd call the kernels, not the op."""
    for node in module.graph.nodes:
        if node.target is segment_op():
            node.target = run_segment
    module.recompile()


__all__ = ["call_directly", "segment_op"]
