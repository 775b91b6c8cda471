"""How wrong a segment's kernels are, and torch's own ops, against the program in float64.

Kernels may be `max_error` times as wrong as torch, plus one unit in the last place of the largest element, in the coarsest
type to which the program rounds before the result. Torch's error is that with TF32 where its settings allow it, whether or not
cuDNN takes it for these tensors. Where torch itself is far from the program, at a sort of equal scores, say, it is no measure:
then nothing is said about the kernels.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import floor, inf, isnan, log2, nan
from typing import Any

import torch

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.backends.measure import tf32
from mirage_eg.backends.measure.candidate_timer import MOST_WRONG, in_parts, random_inputs
from mirage_eg.backends.triton.file_tables import tables_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.torch_compile.gate_findings import GateErrors
from mirage_eg.torch_compile.gate_inputs import DISTRIBUTIONS, GateInputs
from mirage_eg.torch_compile.segment_call import SegmentCall

ROUNDINGS = 4  # relative to the largest element: the error of torch's result where that is the reference


def largest_errors(inputs: GateInputs, layout: Callable[[Sequence[Any]], Sequence[Any]], max_error: float) -> GateErrors:
    """The errors of the result that is the most wrong, on usual and large inputs.

    Torch computes the same of `layout(tensors)`. Inputs are as large as torch's own ops take them.
    """
    call, coarsest, stable = inputs.call, coarsest_types(inputs.call.found.program), with_stable_sorts(inputs.contest.module)
    operands = tf32.rounded_operands(inputs.contest.device)
    may_round = tf32.has_rounded_operands(call.found.program, operands)

    def errors(magnitude: float, seed: int, distribution: str) -> GateErrors:
        raise_if_stopped()
        tensors = inputs.draw(magnitude, seed, distribution)
        given, ours = layout(tensors), call.as_function(tensors)
        torchs = [stable(*given)]
        if may_round:
            with tf32.RoundedOperands(operands):
                torchs.append(stable(*given))
        with tf32.without_tf32() if may_round else nullcontext():
            exact = call.module.reference(*tensors)
        results = zip(ours, zip(*torchs, strict=True), exact, coarsest, strict=True)
        return max((compared(*each, max_error, is_large=magnitude > 1) for each in results), key=_severity)

    with torch.no_grad():
        usual = next((it for it in DISTRIBUTIONS if _has_finite(call.module.reference(*inputs.draw(1.0, 0, it)))), "normal")
        worst = errors(1.0, 0, usual)
        magnitude = max(call.module.MAGNITUDES)
        while magnitude > 1 and not isnan(worst.allowed):
            large = errors(magnitude, 1, usual)
            if not isnan(large.allowed):
                return max(worst, large, key=_severity)
            magnitude /= 2
    return worst


def _severity(errors: GateErrors) -> float:
    return inf if isnan(errors.allowed) else errors.ours / max(errors.allowed, 1e-300)


def _has_finite(results: Sequence[Any]) -> bool:
    return all(bool(it.isfinite().any()) for it in results if it.is_floating_point() and it.numel())


def coarsest_types(program: Graph) -> list[Any]:
    """Of each result the torch type of the fewest digits to which the program rounds before it, its own included."""
    coarsest: list[Any] = [None] * len(program.types)  # of each value; None where nothing is rounded
    results = []
    for item, values in program.numbered():
        types = [coarsest[operand] for operand in item.operands]
        if item.op == "output":
            own = getattr(torch, str(program.types[item.operands[0]].dtype))
            types.append(own if own.is_floating_point else None)
            results.append(max(filter(None, types), key=_eps, default=None))
            continue
        for value in values:
            own = getattr(torch, str(program.types[value].dtype))
            rounds = own.is_floating_point and item.op != "input" and item.kind is not Kind.REARRANGEMENT
            coarsest[value] = max(filter(None, [*types, own if rounds else None]), key=_eps, default=None)
    return results


def _eps(dtype: Any) -> float:
    return float(torch.finfo(dtype).eps)


def compared(got: Any, plain: Sequence[Any], exact: Any, coarsest: Any, max_error: float, *, is_large: bool) -> GateErrors:
    """The errors of one output; of whole numbers and bools, the share of elements that differ.

    `plain` has torch's own result, and a second one with TF32 where that is allowed. Nothing (NaN) is allowed where torch is no
    measure. On large inputs the roundings of scores decide a softmax, and torch itself may be wrong by several hundredths.
    """
    if not exact.numel():
        return GateErrors(0.0, 0.0, 0.0)
    if not got.is_floating_point():
        ours, *others = ((it.to(exact.dtype) != exact).sum().item() / exact.numel() for it in (got, *plain))
        torchs = max(others)
        return GateErrors(ours, torchs, max_error * torchs if torchs <= MOST_WRONG else nan)
    size = max(*(it.abs().nan_to_num(0.0, 0.0).max().item() for it in in_parts(exact)), torch.finfo(got.dtype).tiny)
    ours, *others = (max(map(_difference, in_parts(it), in_parts(exact))) / size for it in (got, *plain))
    torchs = max(others)
    if exact.dtype is got.dtype:  # of a program too large for float64: torch's own result, as wrong as roundings make it
        torchs = max(torchs, ROUNDINGS * _eps(coarsest))
    digits = max(_eps(coarsest), tf32.EPS) if len(plain) > 1 else _eps(coarsest)
    if not torchs <= (MOST_WRONG if is_large else digits**0.5):
        return GateErrors(ours, torchs, nan)
    ulp = _eps(coarsest) * 2.0 ** floor(log2(size))
    return GateErrors(ours, torchs, max_error * torchs + ulp / size)


def _difference(got: Any, exact: Any) -> float:
    """The largest difference; elements that are equal or both no numbers have none."""
    got = got.to(exact.dtype)
    same = (got == exact) | (got.isnan() & exact.isnan())
    return float((got - exact).abs().nan_to_num(inf, inf, inf).masked_fill(same, 0.0).max().item())


def times_allowed(call: SegmentCall, like: Sequence[Any]) -> float:
    """The largest error on the masks of `like` and random other inputs, of three square roots of the precision."""
    program, device = call.found.program, like[0].device
    rounds = tf32.has_rounded_operands(program, tf32.rounded_operands(device))
    kinds = [*tables_of(call.module, [it.shape for it in like]).inputs.values()]
    drawn = zip(like, random_inputs(call.module, kinds, 1.0, 0, device), strict=True)
    # a mask as it is given: random ones hide whole rows, which have no softmax
    inputs = [given if given.dtype is torch.bool else it for given, it in drawn]
    errors = [0.0]
    for got, wanted, coarsest in zip(
        call.as_function(inputs), call.module.reference(*inputs), coarsest_types(program), strict=True
    ):
        size = max(wanted.abs().max().item(), 1e-30)
        error = (got.to(wanted.dtype) - wanted).abs().max().item() / size
        precision = max(_eps(coarsest or got.dtype), tf32.EPS if rounds else 0.0) if got.is_floating_point() else 0.0
        allowed = 3 * precision**0.5 or 0.5 / size
        errors.append(error / allowed if error == error else inf)
    return max(errors)


def with_stable_sorts(nodes: Any) -> Any:
    """The same graph module with equal elements sorted as they come, as the program does: torch may have any order of them."""
    aten, graph = torch.ops.aten, torch.fx.Graph()

    def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
        return torch.sort(x, dim=dim, descending=descending, stable=True)

    def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
        return sort(x, dim, descending)[1]

    def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        return tuple(it.narrow(dim, 0, k) if x.dim() else it for it in sort(x, dim, largest))

    stable = {aten.sort.default: sort, aten.argsort.default: argsort, aten.topk.default: topk}
    copied: dict[Any, Any] = {}
    for node in nodes.graph.nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
        copied[node].target = stable.get(node.target, node.target)
    return torch.fx.GraphModule(nodes, graph)
