"""On all visible GPUs, one or several: candidates are timed on each, and one that ends its context costs itself alone."""

from math import inf

import pytest

from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.optimizer.multi_gpu import gpus_of_first_kind, multi_gpu_timer, run_elsewhere, shared_timing_processes
from property_tests.support.hand_written import gated_mlp

pytestmark = pytest.mark.gpu


def which_gpu() -> str:
    """Of the process that calls it."""
    import torch

    return str(torch.cuda.get_device_properties(0).uuid)


def test_every_gpu_times_its_candidates_and_outlives_a_bad_one() -> None:
    graphs = gated_mlp("float16", 16, 256, 128, 2, 4)
    good = [emit(graphs.mugraph, program=graphs.program, schedule=Schedule(num_warps=warps)) for warps in (1, 2, 4, 8)]
    bad = good[2].replace("tl.store(out0_ptr", "tl.store(out0_ptr + 1099511627776")
    assert bad != good[2]
    sources = [*good, bad, bad, *good]
    gpus = gpus_of_first_kind()
    with multi_gpu_timer(gpus, emit(graphs.program, program=graphs.program), 0) as timer:
        outcomes = list(timer.quick_all(sources, lambda: inf))
        used = {timer._executor(number).submit(which_gpu).result() for number in range(len(gpus))}
    assert len(used) == len(gpus)
    for source, outcome in zip(sources, outcomes, strict=True):
        assert outcome is not None
        if source == bad:
            assert outcome.us is None and outcome.problem is not None
        else:
            assert outcome.problem is None and outcome.us is not None and outcome.us > 0


def test_kernels_that_end_a_context_are_found_in_another_process() -> None:
    import torch

    graphs = gated_mlp("float16", 16, 256, 128, 2, 4)
    good = emit(graphs.mugraph, program=graphs.program)
    bad = good.replace("tl.store(out0_ptr", "tl.store(out0_ptr + 1099511627776")
    shapes = [kind.shape for kind in graphs.program.input_types]
    with shared_timing_processes(gpus_of_first_kind()[:1]):
        problems = [run_elsewhere(0, source, shapes) for source in (good, bad, good)]
    assert problems[0] is None and "illegal memory access" in (problems[1] or "") and problems[2] is None
    torch.cuda.synchronize()
