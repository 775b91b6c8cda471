"""The profiler's list of kernels: means of one call, the longest first."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from mirage_eg.lab.bench.kernel_profile import KernelTime, kernel_times, profile_kernels


def event(
    key: str, count: int, us: float, *, device: DeviceType = DeviceType.CUDA, annotation: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(key=key, count=count, self_device_time_total=us, device_type=device, is_user_annotation=annotation)


def test_kernels_of_one_call_are_listed_the_longest_first() -> None:
    events = [
        event("Memset (Device)", 4, 6.0),
        event("aten::mm", 4, 50.0, device=DeviceType.CPU),
        event("gemm", 8, 50.0),
        event("Torch-Compiled Region: 0/0", 4, 56.0, annotation=True),
    ]
    assert kernel_times(events, 4) == (KernelTime("gemm", 2.0, 12.5), KernelTime("Memset (Device)", 1.0, 1.5))


def test_the_profilers_own_events_have_the_fields_that_are_read() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        torch.ones(8, 8) @ torch.ones(8, 8)
    averages = recorded.key_averages()
    assert len(averages) and kernel_times(averages, 1) == ()


@pytest.mark.gpu
def test_a_product_on_a_gpu_is_one_kernel_at_least() -> None:
    x = torch.ones(256, 256, device="cuda")
    kernels = profile_kernels(lambda: x @ x)
    assert kernels and all(kernel.launches >= 1 and kernel.us > 0 for kernel in kernels)
