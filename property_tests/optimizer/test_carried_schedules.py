"""Tuning under a Triton without clusters finds carried clusters in the schedules that it tries, and times them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.measure.candidate_timer import Outcome
from mirage_eg.backends.measure.timing import Timing
from mirage_eg.backends.triton.carried_kernels import VARIABLE, CarriedKernel, write_kernels
from mirage_eg.backends.triton.compile import carried_kernels
from mirage_eg.backends.triton.emit import emit
from mirage_eg.optimizer.carried_schedules import cluster_kernels, tried
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.kernel_times import Family
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.optimizer.tune import Tuned, Tuning, tune
from property_tests.backends.triton.test_clusters import in_clusters, softmax

PROGRAM, CLUSTER, ONE_BLOCK = softmax(4, 8192), in_clusters(4, 8192, 4), in_clusters(4, 8192, 1)
DEVICE = DEVICES["H200"]
REFUSED = "O_kernel: clusters need Triton 3.7 or later, got 3.6.0"


class Clock:
    """A timer for which clusters take a time, and all others 10 µs."""

    def __init__(self, us: float) -> None:
        self.us = us

    def quick(self, source: str) -> Outcome:
        return Outcome(self.us if '"num_ctas"' in source else 10.0, 1e-4, None)

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        outcome = self.quick(source)
        assert outcome.us is not None
        return outcome, Timing(outcome.us, 0.1, outcome.us, 0.1, "graph", "none")


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(source: Any, target: Any, options: dict[str, Any]) -> SimpleNamespace:
        fields = {"name": "O_kernel", "shared": 0, "global_scratch_size": 0}
        fields |= {"num_warps": options["num_warps"], "num_ctas": options.get("num_ctas", 1)}
        return SimpleNamespace(metadata=SimpleNamespace(**fields), asm={"ttgir": "", "cubin": b"\x7fELF"})

    monkeypatch.setattr("triton.compile", compiled)
    monkeypatch.setattr("mirage_eg.backends.triton.compile._cubin_resources", lambda cubin: (32, 0))


def tuned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kernels: list[CarriedKernel], us: float
) -> tuple[list[Tuned], set[str | None]]:
    """What tuning under Triton 3.6 finds with carried kernels where a cluster takes `us`, and the problems of clusters."""
    write_kernels(folder / "kernels.jsonl", kernels)
    monkeypatch.setenv(VARIABLE, str(folder / "kernels.jsonl"))
    why = REFUSED.partition(": ")[2]
    monkeypatch.setattr("mirage_eg.backends.triton.compile.why_triton_has_none", lambda: why)
    lines = list[Measurement]()
    tuning = Tuning(Effort(prune_factor=100.0), record=lines.append)
    found = tune(PROGRAM, [Family.of([ONE_BLOCK]), Family.of([CLUSTER])], DEVICE, Clock(us), tuning)
    return found, {line.outcome.problem for line in lines if line.structure == 1}


@pytest.mark.parametrize(("us", "wins"), [(5.0, True), (20.0, False)])
def test_a_carried_cluster_is_chosen_where_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, us: float, wins: bool
) -> None:
    found, problems = tuned(tmp_path, monkeypatch, [*cluster_kernels(PROGRAM, CLUSTER, DEVICE)], us)
    assert (found[0].variant.graph == CLUSTER) is wins
    assert problems == {None}  # each was found


def test_the_kernel_of_the_default_schedule_is_none_that_tuning_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, problems = tuned(tmp_path, monkeypatch, carried_kernels(emit(CLUSTER), "sm_90"), 5.0)
    assert found[0].variant.graph == ONE_BLOCK and problems == {REFUSED}


def test_only_clusters_are_carried() -> None:
    assert not [*cluster_kernels(PROGRAM, ONE_BLOCK, DEVICE)]
    kernels = [*cluster_kernels(PROGRAM, CLUSTER, DEVICE)]
    assert len({kernel.key for kernel in kernels}) == len(kernels) == len(tried(PROGRAM, CLUSTER, DEVICE)) > 8
