"""ATen's parts of losses that are no elementwise op: the likelihood of a class, x · log y, distances of rows."""

from collections.abc import Mapping

from mirage_eg.frontend.aten_call import Call, Handler, cast, named, over, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError

_NONE, _MEAN = 0, 1  # torch's reductions; 2 is the sum


def _summed(x: Tensor) -> Tensor:
    return reshaped(over("sum", x, range(len(x.shape))), ())


def _nll_loss(call: Call) -> Tensor:
    """−x[n, target[n], …], and 0 where the target is `ignore_index`; the mean is over the others."""
    x, target, g = call.tensor("self"), call.integers("target"), call.graph
    if call.take("weight") is not None or len(x.shape) < 2:
        raise UnsupportedError("a likelihood with class weights, or of one row")
    target = reshaped(target, (x.shape[0], 1, *x.shape[2:]))
    ignored = g.equal(target, call.number("ignore_index"))
    picked = -g.take_along_dim(x, g.where(ignored, 0, target), 1)
    kept = 1 - cast(ignored, str(x.dtype))
    losses, reduction = g.where(ignored, 0, picked), call.whole("reduction")
    if reduction == _NONE:
        return reshaped(losses, call.result.shape)
    return _summed(losses) / _summed(kept) if reduction == _MEAN else _summed(losses)


def _xlogy(call: Call) -> Tensor:
    """x · log y, and 0 where x is 0 and y is a number."""
    x, y, g = call.tensor("self"), call.tensor("other"), call.graph
    return g.where(g.equal(x, 0) * g.equal(y, y), 0, x * g.log(y))


def _pairwise_distance(call: Call) -> Tensor:
    """‖x − y + eps‖ along the last dim."""
    difference, order = call.tensor("x1") - call.tensor("x2") + call.number("eps"), call.number("p")
    if order not in (1, 2):
        raise UnsupportedError(f"p = {order}, wanted 1 or 2")
    g, dim = call.graph, len(difference.shape) - 1
    distance = g.sqrt(g.sum(difference**2, dim)) if order == 2 else g.sum(g.abs(difference), dim)
    return reshaped(distance, call.result.shape)


HANDLERS: Mapping[str, Handler] = {
    **named("nll_loss_nd.default nll_loss.default nll_loss2d.default", _nll_loss),
    "aten.xlogy.Tensor": _xlogy,
    "aten.pairwise_distance.default": _pairwise_distance,
}
