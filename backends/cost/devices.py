"""Devices as data: what the cost model needs to know of a GPU.

The record of the H100 is a fit of the cost model to measured kernels (`mirage-eg bench cost`, docs/optimizer.md), begun at what
was measured alone: 3.02 TB/s, 708 TFLOP/s in float16, an empty launch replayed in a CUDA graph 1.0 µs. The other records are
datasheet values times the same efficiencies, and say so.
"""

from dataclasses import dataclass

from mirage_eg.ir.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU; rates per second for the whole chip, sizes in bytes."""

    name: str
    target: str
    source: str  # fitted or datasheet
    multiprocessors: int
    memory_bandwidth: float
    cache_bandwidth: float
    matrix_rate: float  # float16 operations, a multiply and an add are two
    arithmetic_rate: float  # float32 operations outside the matrix units
    function_rate: float  # exp, sqrt, division …
    shared_memory: int  # that one block can have
    launch_us: float
    iteration_us: float  # latency of a loop iteration whose loads were fetched ahead
    step_us: float  # latency of a load from memory that is waited for, with the reduction behind it
    hit_us: float = 0.1  # the same of what the cache has
    cache_bytes: float = 50e6
    stage_bandwidth: float = 10e12  # bytes of computed operands that all multiprocessors bring to their matrix units
    share: float = 2.0  # how many times its part of the bandwidth one multiprocessor can draw
    # Launches that a library kernel costs besides what it moves and computes; measured on the H100.
    library_elementwise: float = 1.02
    library_reduction: float = 3.28  # a softmax or a norm too
    library_product: float = 1.74


_H100 = Device(
    name="H100",
    target="sm_90",
    source="fitted",
    multiprocessors=132,
    memory_bandwidth=2.44e12,
    cache_bandwidth=3.40e12,
    matrix_rate=708e12,
    arithmetic_rate=30e12,
    function_rate=1.40e12,
    shared_memory=232_448,
    launch_us=1.16,
    iteration_us=0.256,
    step_us=0.269,
    hit_us=0.008,
    share=1.57,
    stage_bandwidth=2.28e12,
)
_H200 = Device(
    name="H200",
    target="sm_90",
    source="datasheet",
    multiprocessors=132,
    memory_bandwidth=4.3e12,
    cache_bandwidth=7.0e12,
    matrix_rate=708e12,
    arithmetic_rate=30e12,
    function_rate=3.6e12,
    shared_memory=232_448,
    launch_us=1.0,
    iteration_us=0.15,
    step_us=0.4,
)
_A100 = Device(
    name="A100",
    target="sm_80",
    source="datasheet",
    multiprocessors=108,
    memory_bandwidth=1.8e12,
    cache_bandwidth=4.5e12,
    matrix_rate=260e12,
    arithmetic_rate=10e12,
    function_rate=2.4e12,
    shared_memory=166_912,
    launch_us=1.5,
    iteration_us=0.2,
    step_us=0.4,
)
_B200 = Device(
    name="B200",
    target="sm_100",
    source="datasheet",
    multiprocessors=148,
    memory_bandwidth=7.2e12,
    cache_bandwidth=12e12,
    matrix_rate=1600e12,
    arithmetic_rate=35e12,
    function_rate=4.2e12,
    shared_memory=232_448,
    launch_us=1.0,
    iteration_us=0.15,
    step_us=0.4,
)
_MI300X = Device(
    name="MI300X",
    target="gfx942",
    source="datasheet",
    multiprocessors=304,
    memory_bandwidth=4.3e12,
    cache_bandwidth=10e12,
    matrix_rate=700e12,
    arithmetic_rate=60e12,
    function_rate=4.0e12,
    shared_memory=65_536,
    launch_us=2.0,
    iteration_us=0.25,
    step_us=0.4,
)

DEVICES = {device.name: device for device in (_H100, _H200, _A100, _B200, _MI300X)}


def device_for(target: str) -> Device:
    """The device that stands for a compilation target."""
    for device in DEVICES.values():
        if device.target == target:
            return device
    targets = ", ".join(sorted({device.target for device in DEVICES.values()}))
    raise OptionError(f"got target {target!r}, wanted one of {targets}")
