"""Times of the library's convolutions on a GPU, channels last, beside the predictions of its device record.

    python benchmarks/library_convolutions.py [--json FILE]

The constants of convolutions in `backends/cost/roofline_model.py` are those of such a table of an H200: the steps of a
convolution, how much slower those of each channel alone are than matrix units, and those in float32. Images and filters are
channels last. Times are those of CUDA graphs, as in `mirage-eg bench gpu`. Without a GPU it prints the predictions alone.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, time_alternately, timing_stream
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.windows import channels_last
from mirage_eg.ir.written_inputs import with_output_marks


@dataclass(frozen=True)
class Case:
    """A convolution with a stride of 1 that keeps the size of its images."""

    channels: int
    filters: int
    size: int
    window: int
    groups: int = 1
    images: int = 1
    dtype: str = "float16"

    def __str__(self) -> str:
        depthwise = " each alone" if self.groups > 1 else f" to {self.filters}"
        return f"{self.images} × {self.channels}{depthwise}, {self.size}², {self.window}×{self.window}, {self.dtype}"

    def graph(self) -> Graph:
        program = mi.new_kernel_graph()
        shape = (self.images, self.channels, self.size, self.size)
        x = program.new_input(shape, self.dtype, name="x", strides=channels_last(shape))
        filters = (self.filters, self.channels // self.groups, self.window, self.window)
        w = program.new_input(filters, self.dtype, name="w", weight=True)
        program.mark_output(program.conv2d(x, w, pads=(self.window // 2,) * 4, groups=self.groups), name="O")
        result = (self.images, self.filters, self.size, self.size)
        return with_output_marks(program.graph(), [{"strides": channels_last(result)}])


CASES = (
    *(Case(channels, channels, size, 3) for channels, size in ((64, 56), (256, 14), (512, 7))),  # 9, 36 and 72 steps
    *(Case(channels, channels, size, 1) for channels, size in ((64, 56), (256, 56), (1024, 14))),
    *(Case(channels, channels, size, window, channels) for channels, size, window in ((240, 28, 3), (96, 56, 7), (384, 14, 7))),
    *(Case(320, 320, 64, 3, dtype=dtype) for dtype in ("float16", "float32")),
    *(Case(64, 64, 56, 3, images=32, dtype=dtype) for dtype in ("float16", "float32")),
    *(Case(640, 640, 32, 3, dtype=dtype) for dtype in ("float16", "float32")),
    *(Case(c, c, size, window, c, 128) for c, size, window in ((144, 56, 3), (384, 14, 3), (120, 28, 5), (640, 7, 7))),
    *(Case(c, c, size, 3, images=128) for c, size in ((64, 56), (128, 28), (512, 7))),
)


def _runner(case: Case) -> Any:
    import torch

    shapes = (
        (case.images, case.channels, case.size, case.size),
        (case.filters, case.channels // case.groups, *2 * (case.window,)),
    )
    kind, layout = getattr(torch, case.dtype), torch.channels_last
    x, w = (torch.randn(shape, device="cuda", dtype=kind).to(memory_format=layout) for shape in shapes)
    return lambda: torch.nn.functional.conv2d(x, w, padding=case.window // 2, groups=case.groups)


def main() -> int:
    """Print a line for each convolution."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    measured: list[float | None] = [None] * len(CASES)
    if gpu_available():
        with timing_stream():
            measured = [it.warm_us for it in time_alternately([_runner(case) for case in CASES], 20)]
    name = gpu_name() if gpu_available() else "no GPU"
    device = next((record for key, record in DEVICES.items() if key in name), DEVICES["H200"])
    lines = [
        {"case": str(case), "predicted_us": predict_us(case.graph(), device), "measured_us": us, "device": name}
        for case, us in zip(CASES, measured, strict=True)
    ]
    for line in lines:
        us = "      –" if line["measured_us"] is None else f"{line['measured_us']:7.1f}"
        print(f"{line['case']:44} predicted {line['predicted_us']:7.1f} µs, measured {us}")
    if path:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
