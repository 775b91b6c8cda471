"""The ops `mirage_eg::segment` and `mirage_eg::segment_N_` of torch, opaque to Dynamo, Inductor and export.

Those of the second kind write results into the memory of inputs, as the schema says, and return N others. They stand in graphs
of inference alone.
"""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.written_inputs import written_inputs
from mirage_eg.torch_compile.calls import run_segment, run_writing_segment, run_writing_segment_of_one, segment_call


@cache
def segment_op() -> Any:
    """The op, registered with torch: `segment(Tensor[] inputs, str key) -> Tensor[]`.

    `key` names the kernels in the cache. Its gradient is that of the same program by torch's ops, in float64.
    """
    import torch

    def segment(inputs: Sequence[Any], key: str) -> list[Any]:
        return run_segment(inputs, key)

    def fake(inputs: Sequence[Any], key: str) -> list[Any]:
        return _new_results(inputs, key)

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
    CALLED[found := torch.ops.mirage_eg.segment.default] = run_segment
    return found


@cache
def writing_segment_op(returned: int) -> Any:
    """The op `(Tensor[] inputs, Tensor(a!)[] written, str key)` of segments with so many results besides those that they write.

    `written` are the inputs that it writes, in their order among all. Inductor takes no op that writes and returns a list.
    """
    import torch

    def segment(inputs: Sequence[Any], written: Sequence[Any], key: str) -> Any:
        results = run_writing_segment(inputs, written, key)
        return results[0] if returned == 1 else tuple(results) or None

    def fake(inputs: Sequence[Any], written: Sequence[Any], key: str) -> Any:
        results = _new_results(segment_call(key).results.joined(inputs, written), key)
        return results[0] if returned == 1 else tuple(results) or None

    name = f"segment_{returned}_"
    types = "Tensor" if returned == 1 else f"({', '.join(['Tensor'] * returned)})"
    schema = f"(Tensor[] inputs, Tensor(a!)[] written, str key) -> {types}"
    op = torch.library.custom_op(f"mirage_eg::{name}", segment, mutates_args=("written",), schema=schema)
    op.register_fake(fake)
    found = getattr(torch.ops.mirage_eg, name).default
    CALLED[found] = run_writing_segment_of_one if returned == 1 else run_writing_segment
    return found


def op_of(program: Graph) -> Any:
    """The op of a segment that is this program."""
    written = len(written_inputs(program))
    return writing_segment_op(len(program.outputs) - written) if written else segment_op()


CALLED: dict[Any, Callable[..., Any]] = {}
"""By op of a segment, what compiled code calls in its place."""


def is_writing(target: Any) -> bool:
    """Whether the target of a node is the op of a segment that writes into inputs."""
    return target in CALLED and target is not segment_op()


def _new_results(inputs: Sequence[Any], key: str) -> list[Any]:
    results = segment_call(key).results
    shapes, like = results.shapes_for(inputs), inputs[0]
    return [
        like.new_empty(shapes[place], dtype=results.dtypes[place])
        if (strides := results.strides[place]) is None
        else like.new_empty_strided(shapes[place], strides, dtype=results.dtypes[place])
        for place in results.returned
    ]


@cache
def spare_dispatch() -> None:
    """Let Inductor's code call the kernels: torch's dispatcher takes longer than our code (`benchmarks/segment_op.py`).

    torch has a registry for that from 2.13 on alone.
    """
    from torch._inductor.ir import FallbackKernel
    from torch._inductor.virtualized import V

    write = FallbackKernel.codegen

    @wraps(write)
    def codegen(node: Any, wrapper: Any) -> None:
        run = CALLED.get(node.op_overload)
        if run is not None and not V.graph.cpp_wrapper and not getattr(V.graph, "fx_wrapper", False):  # not before torch 2.8
            V.graph.wrapper_code.add_import_once(f"from {run.__module__} import {run.__name__}")
            node.python_kernel_name = run.__name__
        write(node, wrapper)

    FallbackKernel.codegen = codegen
