"""Convolutions, poolings and cumulative sums of KernelBench are predicted within 0.7 to 1.5 of their times."""

from typing import Any

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.graph import Graph

CASES: tuple[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any], float | None, float | None], ...] = (
    # op, image and filter, attributes, µs in float32 and in float16; H200, torch 2.11, 2026-11-28 and 29
    ("conv3d", ((16, 3, 64, 64, 64), (64, 3, 3, 3, 3)), {}, 805, 352),
    ("conv3d", ((16, 3, 256, 256, 10), (64, 3, 3, 3, 1)), {}, 1015, None),
    ("conv3d", ((16, 3, 64, 64, 64), (64, 3, 3, 5, 7)), {}, 2707, 1086),
    ("conv3d", ((8, 3, 16, 128, 128), (64, 3, 3, 5, 7)), {}, 1333, 552),
    ("conv_transpose3d", ((16, 32, 16, 32, 64), (32, 16, 3, 5, 7)), {}, 2399, None),
    (
        "conv_transpose3d",
        ((8, 32, 12, 24, 48), (32, 8, 3, 5, 7)),
        {"groups": 4, "pads": (1, 2, 3, 1, 2, 3), "output_pads": (1, 1, 1), "strides": (2, 2, 2)},
        475,
        None,
    ),
    (
        "conv_transpose2d",
        ((16, 32, 128, 256), (32, 16, 3, 5)),
        {"groups": 4, "pads": (1, 2, 1, 2), "dilations": (2, 1), "strides": (2, 3)},
        1543,
        None,
    ),
    ("conv2d", ((16, 64, 512, 512), (64, 1, 3, 3)), {"groups": 64}, 623, 497),
    ("conv2d", ((64, 8, 512, 512), (8, 1, 3, 1)), {"groups": 8}, 264, None),
    ("conv2d", ((64, 128, 256, 512), (128, 1, 3, 3)), {"groups": 128}, 2460, 1968),
    ("conv2d", ((32, 128, 128, 256), (128, 1, 3, 7)), {"groups": 128}, 464, 358),
    (
        "max_pool2d",
        ((64, 192, 1, 65536),),
        {"window": (1, 8), "strides": 1, "dilations": (1, 3), "pads": (0, 4, 0, 4)},
        1924,
        1919,
    ),
    ("max_pool2d", ((32, 64, 512, 512),), {"window": (4, 4), "strides": 1, "pads": (1, 1, 1, 1)}, 1393, 1026),
    (
        "max_pool3d",
        ((16, 32, 128, 128, 128),),
        {"window": (3, 3, 3), "strides": (2, 2, 2), "dilations": (3, 3, 3), "pads": (1, 1, 1, 1, 1, 1)},
        1338,
        1005,
    ),
    ("avg_pool2d", ((64, 128, 1, 65536),), {"window": (1, 8), "strides": 1, "pads": (0, 4, 0, 4)}, 1521, None),
    (
        "avg_pool3d",
        ((16, 32, 128, 128, 256),),
        {"window": (3, 3, 3), "strides": (2, 2, 2), "pads": (1, 1, 1, 1, 1, 1)},
        2516,
        None,
    ),
)
MEASURED = [
    (op, shapes, given, dtype, us)
    for op, shapes, given, *both in CASES
    for dtype, us in zip(("float32", "float16"), both, strict=True)
    if us is not None
]


@pytest.mark.parametrize(("op", "shapes", "given", "dtype", "us"), MEASURED)
def test_predictions_of_measured_kernels_over_windows(
    op: str, shapes: tuple[tuple[int, ...], ...], given: dict[str, Any], dtype: str, us: float
) -> None:
    p = new_kernel_graph()
    operands = [p.new_input(shape, dtype, weight=place > 0) for place, shape in enumerate(shapes)]
    p.mark_output(getattr(p, op)(*operands, **given))
    assert 0.7 * us < predict_us(p.graph(), DEVICES["H200"]) < 1.5 * us


def running_sum(dtype: str, kind: str) -> Graph:
    """Problems 89, 91 and 92: from the start, from the end, and exclusive."""
    p = new_kernel_graph()
    x = p.new_input((32768, 32768), dtype, "x")
    if kind == "exclusive":
        before = p.new_input((32768, 1), dtype, "before", weight=True)
        p.mark_output(p.concat([before, p.cumsum(p.slice(x, 1, 0, 32767), 1)], 1))
    else:
        p.mark_output(p.cumsum(x, 1) if kind == "" else p.flip(p.cumsum(p.flip(x, 1), 1), 1))
    return p.graph()


@pytest.mark.parametrize(("kind", "us", "half_us"), [("", 2191, 1059), ("from the end", 2192, 1761), ("exclusive", 2231, 2196)])
def test_halves_that_are_moved_one_by_one_take_as_long_as_floats(kind: str, us: float, half_us: float) -> None:
    for dtype, measured in (("float32", us), ("float16", half_us)):
        assert 0.85 * measured < predict_us(running_sum(dtype, kind), DEVICES["H200"]) < 1.15 * measured
