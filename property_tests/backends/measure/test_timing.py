"""Runs are timed in alternating rounds; too little memory on the GPU is bad input."""

from collections import Counter
from typing import Any

import pytest

from mirage_eg.backends.measure import timing
from mirage_eg.backends.measure.timing import memory_errors_reported
from mirage_eg.ir.errors import MirageError

ERRORS = (
    "CUDA out of memory. Tried to allocate 90.00 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.00 GiB is free.",
    "HIP out of memory. Tried to allocate 90.00 GiB.\nFurther lines",
)


@pytest.mark.parametrize("message", ERRORS)
def test_too_little_memory_on_a_gpu_is_one_line(message: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(MirageError) as raised, memory_errors_reported():
        raise torch.OutOfMemoryError(message)
    [line] = str(raised.value).splitlines()
    assert line.startswith("timing: ") and "90.00 GiB" in line and line.endswith("try: smaller sizes")


def test_other_errors_of_the_gpu_stay_errors() -> None:
    pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="illegal"), memory_errors_reported():
        raise RuntimeError("an illegal memory access")


@pytest.mark.parametrize(
    ("repeats", "us", "cold"),
    [(2, 5.0, 10), (3, 5.0, 15), (4, 5.0, 20), (5, 5.0, 25), (20, 5.0, 100), (20, 1e4, 30), (20, 1e6, 20)],
)
def test_runs_alternate_and_each_has_all_its_repeats(
    repeats: int, us: float, cold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    rounds: list[tuple[str, int]] = []

    def event_us(launch: Any, repeats: int, before: Any = None) -> list[float]:
        name = launch()
        rounds.append((name, repeats))
        return [10.0 if name == "fast" else 20.0] * repeats

    monkeypatch.setattr(timing, "event_us", event_us)
    monkeypatch.setattr(timing, "gpu_name", lambda: "none")
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: torch.zeros(1))
    runs = [timing._Ready(lambda name=name: name, lambda name=name: name, 2, "graph", us) for name in ("fast", "slow")]
    fast, slow = timing._timed(runs, repeats)
    assert (fast.warm_us, fast.cold_us, slow.warm_us, slow.cold_us) == (5.0, 10.0, 10.0, 20.0)
    assert all(count > 0 for _, count in rounds)
    for name in ("fast", "slow"):
        assert sum(count for run, count in rounds if run == name) == repeats + cold
    assert [name for name, _ in rounds] == ["fast", "slow"] * (len(rounds) // 2)


def test_each_run_follows_each_of_its_neighbours_equally_often() -> None:
    names: list[Any] = [*"abcd"]
    order = "".join(run for number in range(4) for run, _ in timing._in_turns(number, names, [[] for _ in names]))
    pairs = Counter(zip(order, order[1:] + order[:1], strict=True))
    assert all(pairs[one, two] == pairs[two, one] == 2 for one, two in ("ab", "bc", "cd", "da"))
