"""ONNX's Resize: elements at constant places along each axis, weighed and added."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage_eg.frontend.onnx_values import Operator, Tensor, Value, known
from mirage_eg.ir.errors import UnsupportedError

_NEAREST: Mapping[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _coordinates(extent: int, wanted: int, width: float, transformation: str) -> Any:
    """The places in the operand, not whole, of the elements of the result along an axis; `width` is its extent, not rounded."""
    scale = width / extent
    places = np.arange(wanted, dtype=np.float64)
    match transformation:
        case "asymmetric":
            return places / scale
        case "align_corners":
            return places * (extent - 1) / (width - 1) if width != 1 else places * 0
        case "pytorch_half_pixel" if wanted == 1:
            return places * 0
        case "half_pixel" | "pytorch_half_pixel":
            return (places + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return extent / 2 * (1 - wanted / width) + (places + 0.5) / scale - 0.5
    raise UnsupportedError(f"coordinate_transformation_mode = {transformation!r} is not supported")


def _cubic(distance: Any, a: float) -> Any:
    """Keys' kernel of a cubic convolution (1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _resize(
    x: Tensor,
    roi: Value = None,
    scales: Value = None,
    sizes: Value = None,
    *,
    axes: Sequence[int] = (),
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:
    """`roi` counts in one transformation of coordinates only, which is refused."""
    if mode not in ("nearest", "linear", "cubic") or nearest_mode not in _NEAREST:
        raise UnsupportedError(f"mode = {mode!r}, nearest_mode = {nearest_mode!r} are not supported")
    factors, wanted = known("scales", scales) or [], known("sizes", sizes) or []
    for place, axis in enumerate(list(axes) or range(x.ndim)):
        extent = int(x.shape[axis])
        width = wanted[place] if wanted else extent * factors[place]
        if width == extent:
            continue
        at = _coordinates(extent, int(width), width, coordinate_transformation_mode)
        if mode == "nearest":
            x = _at(x, axis, _NEAREST[nearest_mode](at))
            continue
        taps = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
        read = [np.floor(at) + tap for tap in taps]
        distances = [np.abs(at - one) for one in read]
        weights = [1 - one if mode == "linear" else _cubic(one, cubic_coeff_a) for one in distances]
        if exclude_outside and mode == "cubic":
            weights = [np.where((one >= 0) & (one < extent), weight, 0) for one, weight in zip(read, weights, strict=True)]
            weights = [weight / sum(weights) for weight in weights]
        x = sum(_at(x, axis, one) * _along(weight, x, axis) for one, weight in zip(read, weights, strict=True))
    return x


def _at(x: Any, axis: int, places: Any) -> Any:
    """x at places along an axis, of which those beyond the ends count as the ends."""
    import torch

    return x.index_select(axis, torch.from_numpy(places.clip(0, x.shape[axis] - 1).astype(np.int64)).to(x.device))


def _along(weights: Any, x: Any, axis: int) -> Any:
    import torch

    return torch.from_numpy(weights).to(x.device, x.dtype).reshape([-1 if dim == axis % x.ndim else 1 for dim in range(x.ndim)])


def _scaled(x: Tensor, scales: Value, *, mode: str = "nearest") -> Any:
    """As Resize was before opset 11, and Upsample from 9 on."""
    return _resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


OPERATORS: Mapping[str, Operator] = {"Resize": _resize, "Upsample": _scaled}
OLDER: Mapping[str, tuple[int, Operator]] = {"Resize": (11, _scaled)}
