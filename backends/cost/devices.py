"""GPUs as records: target and rates, for the cost model; `TARGETS` has the limits of each target.

The records of the H100 and the H200 are fits of the cost model to measured kernels (docs/explanation/optimizer.md).
The H100's started at rates that were measured alone: 3.02 TB/s, 708 TFLOP/s in float16, 1.0 µs for an empty launch replayed in
a CUDA graph. The other records are datasheet values times the same efficiencies (`source`).
"""

from dataclasses import dataclass, fields
from pathlib import Path

from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.ir.errors import JsonError, OptionError
from mirage_eg.ir.json_text import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU; rates per second for the whole chip, sizes in bytes; `target` is a key of TARGETS."""

    name: str
    target: str
    source: str  # fitted or datasheet
    multiprocessors: int
    memory_bandwidth: float
    cache_bandwidth: float
    matrix_rate: float  # float16 operations, a multiply and an add are two
    arithmetic_rate: float  # float32 operations outside the matrix units
    function_rate: float  # exp, sqrt, division …
    launch_us: float
    iteration_us: float  # latency of a loop iteration with prefetched loads
    step_us: float  # of a load from a busy memory that is not ahead, and of the reduction or tl.dot after it
    hit_us: float = 0.1  # the same for a load from the cache
    cache_bytes: float = 50e6
    stage_bandwidth: float = 10e12  # computed operands of matrix units, in bytes, over all multiprocessors
    bandwidth_share: float = 2.0  # the most bandwidth of one multiprocessor, over the mean of all
    # Time of a library kernel besides its traffic and products, in launches; measured on the H100.
    library_elementwise: float = 1.02
    library_reduction: float = 3.28  # a softmax or a norm too
    library_product: float = 1.74
    library_attention: float = 7.0  # 12.3 µs for one token on an H200; its products and exponentials add to that

    @property
    def shared_memory(self) -> int:
        """Bytes that one block can have."""
        return TARGETS[self.target].shared_memory


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
    launch_us=1.16,
    iteration_us=0.256,
    step_us=0.7,
    hit_us=0.008,
    bandwidth_share=1.57,
    stage_bandwidth=2.28e12,
)
_H200 = Device(
    name="H200",
    target="sm_90",
    source="fitted",
    multiprocessors=132,
    memory_bandwidth=4.3e12,
    cache_bandwidth=6.3e12,
    matrix_rate=708e12,
    arithmetic_rate=30e12,
    function_rate=1.41e12,
    launch_us=1.38,
    iteration_us=0.187,
    step_us=0.7,
    hit_us=0.05,
    bandwidth_share=1.5,
    stage_bandwidth=3.83e12,
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
    launch_us=1.5,
    iteration_us=0.2,
    step_us=0.7,
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
    launch_us=1.0,
    iteration_us=0.15,
    step_us=0.7,
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
    launch_us=2.0,
    iteration_us=0.25,
    step_us=0.7,
)

DEVICES = {device.name: device for device in (_H100, _H200, _A100, _B200, _MI300X)}
DEFAULT_TARGET = "sm_90"


def device_for(target: str) -> Device:
    """The first device of a compilation target. Raises OptionError: no record has the target."""
    for device in DEVICES.values():
        if device.target == target:
            return device
    targets = ", ".join(dict.fromkeys(device.target for device in DEVICES.values()))
    raise OptionError(f"target: got {target!r}, wanted one of {targets}")


def closest_device(gpu: str, target: str) -> Device | None:
    """The record of a GPU by its name in the driver, as "NVIDIA H200"; else the first of the same target, if there is one."""
    same = [device for device in DEVICES.values() if device.target == target]
    return next((device for device in same if device.name.lower() in gpu.lower()), same[0] if same else None)


def find_device(given: str) -> Device:
    """The record of that name, in upper or lower case, or of that JSON file.

    Raises OptionError: an unknown name, or a file without a valid record; the message names the field.
    """
    for name, device in DEVICES.items():
        if given.lower() == name.lower():
            return device
    if not given.endswith(".json"):
        raise OptionError(f"gpu: got {given!r}, wanted one of {', '.join(DEVICES).lower()}, or a FILE.json; {_HINT}")
    try:
        data = parse_json(Path(given).read_bytes(), infinities=True)
    except OSError as error:
        raise OptionError(f"gpu: {given}: cannot be read: {error.strerror or error}; {_HINT}") from None
    except JsonError as error:
        raise OptionError(f"gpu: {given}: got no JSON ({error}), wanted the record of a device; {_HINT}") from None
    return _device(data, given)


_LEAST, _MOST = 1e-6, 1e24  # of any figure of a device
_HINT = "try: mirage-eg bench cost LINES.jsonl --out FILE.json"


def _device(data: object, where: str) -> Device:
    """The record that JSON data holds."""
    if not isinstance(data, dict):
        raise OptionError(f"gpu: {where}: got {type(data).__name__}, wanted an object with the fields of a device; {_HINT}")
    kinds = {field.name: field.type for field in fields(Device)}
    if unknown := data.keys() - kinds:
        raise OptionError(f"gpu: {where}: got the field {min(unknown)!r}, wanted fields of {', '.join(kinds)}")
    for name, kind in kinds.items():
        if name not in data:
            raise OptionError(f"gpu: {where}: got no {name}, wanted all of {', '.join(kinds)}; {_HINT}")
        value = data[name]
        if kind is str:
            right, wanted = isinstance(value, str) and value != "", "a text"
        else:
            number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            right, wanted = number and _LEAST <= value <= _MOST, f"{'an int' if kind is int else 'a number'} above 0"
            if number and value > 0:
                wanted = f"one from {_LEAST:g} to {_MOST:g}"
        if not right:
            raise OptionError(f"gpu: {where}: {name}: got {_shown(value)}, wanted {wanted}")
    if data["target"] not in TARGETS:
        raise OptionError(f"gpu: {where}: target: got {data['target']!r}, wanted one of {', '.join(TARGETS)}")
    return Device(**data)


def _shown(value: object) -> str:
    return f"an int of {len(str(value))} digits" if isinstance(value, int) and abs(value) > _MOST else repr(value)[:60]
