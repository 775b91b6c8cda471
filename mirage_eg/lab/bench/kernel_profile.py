"""The kernels that a GPU runs for one call, by torch's profiler: names, counts, microseconds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_CALLS = 10


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel, or a copy or fill of memory: its launches in one call, and microseconds of all of them together."""

    name: str
    launches: float
    us: float


def profile_kernels(run: Callable[[], object]) -> tuple[KernelTime, ...]:
    """The kernels of one call, the longest first: means of ten calls on the current GPU, after three without the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as recorded:
        for _ in range(_CALLS):
            run()
        torch.cuda.synchronize()
    return kernel_times(recorded.key_averages(), _CALLS)


def kernel_times(averages: Iterable[Any], calls: int) -> tuple[KernelTime, ...]:
    """The kernels among the profiler's events of some calls, for one of them."""
    from torch.autograd import DeviceType

    kernels = [
        KernelTime(event.key, event.count / calls, event.self_device_time_total / calls)
        for event in averages
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.us))
