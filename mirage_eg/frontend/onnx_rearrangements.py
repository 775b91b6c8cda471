"""ONNX's reshapes, slices, concatenations, selections and casts as functions of torch."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from onnx import TensorProto

from mirage_eg.frontend.onnx_values import MisfitError, Operator, Tensor, Value, known, of_tensors, tensor, torch_type
from mirage_eg.ir.errors import UnsupportedError


def _reshape(x: Tensor, shape: Value, *, allowzero: int = 0) -> Any:
    wanted = known("shape", shape)
    return x.reshape([x.shape[dim] if extent == 0 and not allowzero else extent for dim, extent in enumerate(wanted)])


def _squeeze(x: Tensor, axes: Value = None) -> Any:
    dims = known("axes", axes)
    return x.squeeze(tuple(dims)) if dims else x.squeeze()


def _unsqueeze(x: Tensor, axes: Value) -> Any:
    dims = known("axes", axes)
    rank = x.ndim + len(dims)
    for dim in sorted(dim % rank for dim in dims):
        x = x.unsqueeze(dim)
    return x


def _flatten(x: Tensor, *, axis: int = 1) -> Any:
    rows = x.shape[:axis].numel() if axis else 1
    return x.reshape(rows, -1)


def _split(x: Tensor, sizes: Value = None, *, axis: int = 0, num_outputs: int = 0, results: int = 0) -> Any:
    """Parts of these sizes, else equal parts of which the last may be smaller; `results` is the node's number of outputs."""
    if sizes is not None:
        return x.split(known("split", sizes), axis)
    return x.split(-(-x.shape[axis] // (num_outputs or results)), axis)


def _slice(x: Tensor, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Any:
    first, last = known("starts", starts), known("ends", ends)
    dims = known("axes", axes) or range(len(first))
    for start, stop, dim, step in zip(first, last, dims, known("steps", steps) or [1] * len(first), strict=True):
        if step < 0:
            picked = list(range(x.shape[dim]))[
                start if start >= -x.shape[dim] else None : stop if stop > -(2**31) else None : step
            ]
            x = x.index_select(dim, tensor(np.array(picked, np.int64), x))
        else:
            x = x[(slice(None),) * (dim % x.ndim) + (slice(start, stop, step),)]
    return x


def _from_start(indices: Value, x: Any, axis: int) -> Any:
    """Indices along an axis of x from its start; those below 0 count from the end.

    Raises MisfitError: a known one is out of range.
    """
    extent = x.shape[axis]
    if not isinstance(indices, np.ndarray):
        return torch.where(indices < 0, indices + extent, indices)
    if (wrong := indices[(indices < -extent) | (indices >= extent)]).size:
        raise MisfitError(f"got the index {wrong.flat[0]}, wanted {-extent} to {extent - 1}")
    return tensor(np.where(indices < 0, indices + extent, indices), x)


def _gather(x: Tensor, indices: Value, *, axis: int = 0) -> Any:
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return x.select(axis, int(indices))
    is_known = isinstance(indices, np.ndarray)  # of computed ones torch's own indexing counts those below 0 from the end
    return x[(slice(None),) * (axis % x.ndim) + (_from_start(indices, x, axis) if is_known else indices,)]


def _gather_elements(x: Tensor, indices: Value, *, axis: int = 0) -> Any:
    return x.gather(axis, _from_start(indices, x, axis))


def _expand(x: Tensor, shape: Value) -> Any:
    return torch.broadcast_to(x, torch.broadcast_shapes(tuple(x.shape), tuple(known("shape", shape))))


def _tile(x: Tensor, repeats: Value) -> Any:
    return x.repeat(known("repeats", repeats))


def _pad(x: Tensor, pads: Value, value: Value = None, axes: Value = None, *, mode: str = "constant") -> Any:
    widths, dims = known("pads", pads), known("axes", axes) or list(range(x.ndim))
    before, after = dict.fromkeys(range(x.ndim), 0), dict.fromkeys(range(x.ndim), 0)
    for place, dim in enumerate(dims):
        before[dim % x.ndim], after[dim % x.ndim] = widths[place], widths[place + len(dims)]
    flat = [width for dim in reversed(range(x.ndim)) for width in (before[dim], after[dim])]
    number = 0 if value is None else np.asarray(known("constant_value", value)).item()
    match mode:
        case "constant":
            return torch.nn.functional.pad(x, flat, value=number)
        case "reflect" | "edge" | "wrap":  # torch pads the last dims alone
            for dim in filter(lambda dim: before[dim] or after[dim], range(x.ndim)):
                x = x.index_select(dim, torch.from_numpy(_padded(x.shape[dim], before[dim], after[dim], mode)).to(x.device))
            return x
        case _:
            raise UnsupportedError(f"mode = {mode!r} is not supported")


def _padded(extent: int, before: int, after: int, mode: Literal["reflect", "edge", "wrap"]) -> Any:
    """The place that each element along a dim comes from; negative pads remove elements first."""
    kept = np.arange(max(-before, 0), extent - max(-after, 0))
    return np.pad(kept, (max(before, 0), max(after, 0)), mode=mode)


def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Any:
    """Channels as blocks of pixels; they come before the channels that are left, or after them with `CRD`."""
    n, channels, height, width = x.shape
    if mode == "CRD":
        return torch.nn.functional.pixel_shuffle(x, blocksize)
    y = x.reshape(n, blocksize, blocksize, -1, height, width).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, channels // blocksize**2, height * blocksize, width * blocksize)


def _space_to_depth(x: Tensor, *, blocksize: int) -> Any:
    n, channels, height, width = x.shape
    y = x.reshape(n, channels, height // blocksize, blocksize, width // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(n, channels * blocksize**2, height // blocksize, width // blocksize)


def _where(condition: Value, x: Value, y: Value) -> Any:
    like = next(it for it in (x, y, condition) if not isinstance(it, np.ndarray))
    return torch.where(tensor(condition, like), tensor(x, like), tensor(y, like))


def _trilu(x: Tensor, k: Value = None, *, upper: int = 1) -> Any:
    diagonal = 0 if k is None else int(np.asarray(known("k", k)).item())
    return x.triu(diagonal) if upper else x.tril(diagonal)


def _cast(x: Tensor, *, to: int) -> Any:
    if isinstance(to, str):  # before opset 6
        to = int(TensorProto.DataType.Value(to))
    return x.to(torch_type(to))


def _scatter_elements(x: Tensor, indices: Value, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Any:
    return (x.scatter_add if _adds(reduction) else x.scatter)(axis, _from_start(indices, x, axis), updates)


def _scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Any:
    """Indices of the first dims; of two updates for one place the order is not defined."""
    return x.index_put(tuple(indices.unbind(-1)), updates, accumulate=_adds(reduction))


def _adds(reduction: str) -> bool:
    if reduction not in ("none", "add"):
        raise UnsupportedError(f"reduction = {reduction!r} is not supported")
    return reduction == "add"


OPERATORS: Mapping[str, Operator] = {
    "Identity": tensor,
    "Reshape": _reshape,
    "Transpose": of_tensors(lambda x, *, perm=(): x.permute(*(perm or reversed(range(x.ndim))))),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Concat": of_tensors(lambda *operands, axis: torch.cat(operands, axis)),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "DepthToSpace": of_tensors(_depth_to_space),
    "SpaceToDepth": of_tensors(_space_to_depth),
    "Where": _where,
    "Trilu": _trilu,
    "Cast": _cast,
    "CastLike": of_tensors(lambda x, like: x.to(like.dtype)),
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
}
