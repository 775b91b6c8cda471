"""The scoreboard of models: errors, metrics, and models that are built alike in each element type."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_eg.backends.measure.timing import Timing
from mirage_eg.lab.bench import model_row
from mirage_eg.lab.bench.model_errors import passes, relative_error, tensors_of
from mirage_eg.lab.bench.model_row import measured
from mirage_eg.lab.bench.model_row_records import Contestant, ModelJob, ModelRow
from mirage_eg.lab.bench.model_suites import SUITES
from mirage_eg.lab.bench.models_page import (
    markdown,
    memory_ratio,
    memory_share,
    model_table,
    over_inductor,
    page,
    speedup,
    summary_table,
    tables,
)
from mirage_eg.lab.bench.suite_model import built, copy_values

MODES = ("eager", "default", "max-autotune", "ours")
JOB = ModelJob("decode", "one", MODES, "cuda", "float16", False, 60.0, 0.0)


def row(name: str, us: tuple[float, ...], ours_passes: bool = True) -> ModelRow:
    """A row with these times of the modes, twice as long without CUDA graphs."""
    found = {
        mode: Contestant(1e-3, mode != "ours" or ours_passes, 10.0, 5.0, 2 * it, it, 100 if mode != "ours" else 125)
        for mode, it in zip(MODES, us, strict=True)
    }
    job = ModelJob("decode", name, *tuple(getattr(JOB, field) for field in ModelJob.__slots__[2:]))
    return ModelRow(job, contestants=found, segments={"ours": (1, 2)}, unexpected={"ours": 1})


def test_ratios_are_to_eager_and_to_the_best_mode_of_inductor() -> None:
    one = row("one", (8.0, 4.0, 2.0, 1.0))
    assert [speedup(one, mode, True) for mode in MODES] == [1.0, 2.0, 4.0, 8.0]
    assert over_inductor(one, "ours", False) == over_inductor(one, "ours", True) == 2.0
    assert memory_ratio(one, "ours") == 0.8
    assert over_inductor(ModelRow(JOB), "ours", True) is None


def test_the_share_of_memory_is_of_the_bytes_that_a_call_reads() -> None:
    one = replace(row("one", (8.0, 4.0, 2.0, 1.0)), read_bytes=3_000_000, bandwidth=4e12)
    assert memory_share(one, "ours") == 0.75 and memory_share(row("one", (1.0,) * 4), "ours") is None
    layer = built(SUITES["quantized"]["qwen3-moe b=1"], "cpu", "bfloat16", small=True)
    experts = sum(it.nbytes for it in layer.module.block.experts.parameters())
    assert layer.unread_bytes == experts * 6 // 8  # two of eight are chosen


def test_a_summary_counts_passing_models_and_no_speedup_below_one() -> None:
    rows = [row("one", (8.0, 4.0, 4.0, 2.0)), row("two", (2.0, 4.0, 4.0, 8.0)), row("three", (8.0, 1.0, 1.0, 0.1), False)]
    head, (default, _, ours) = summary_table(rows)
    cells = dict(zip(head, ours, strict=True))
    assert cells["pass"] == "2 of 3" and cells["speedup"] == "2.00 / 2.00"  # of 4 and 1
    assert cells["/ best Inductor"] == "1.00 / 1.00" and cells["least"] == "0.50 / 0.50" and cells["below 0.98"] == "1 / 1"
    assert cells["red flags"] == "3"  # one speedup, two memory ratios
    assert cells["unexpected errors"] == "3" and cells["compile s, cold (warm)"] == "10 (5)"
    assert dict(zip(head, default, strict=True))["pass"] == "3 of 3"


def test_a_table_has_each_model_and_its_problems() -> None:
    rows = [row("one", (8.0, 4.0, 2.0, 1.0), False), ModelRow(JOB, problem="took over 9 s")]
    head, (one, other) = model_table(rows)
    cells = dict(zip(head, one, strict=True))
    assert (cells["model"], cells["passes"], cells["ours"]) == ("one", "no: ours", "8.00 / 8.00")
    assert cells["segments used"] == "1 of 2" and cells["problem"] == "ours: unexpected errors: 1"
    assert other[-1] == "took over 9 s" and len(other) == len(head)
    assert len(tables([*rows, row("two", (1.0,) * 4)])) == 1 and page(rows).count("| one |") == 2
    assert markdown((("a", "b"), [("1", "– / –"), ("–", "")])) == "| a |\n| --- |\n| 1 |\n| – |\n"


def test_errors_are_relative_and_see_what_is_not_a_number() -> None:
    x = torch.tensor([3.0, 4.0])
    assert relative_error([x + 0.5], [x.double()]) == pytest.approx(0.5 / 12.5**0.5)
    assert relative_error([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == inf
    assert relative_error([x], [x, x]) == relative_error([x], [x[:1]]) == inf
    beside = torch.tensor([3.0, nan])
    assert relative_error([x], [beside]) == inf and relative_error([beside], [beside]) == 0
    assert tensors_of({"a": x, "b": (1, [x])}) == [x, x]


def test_a_mode_may_have_three_errors_of_eagers() -> None:
    assert passes(0.029, 0.01, torch.bfloat16) and not passes(0.032, 0.01, torch.bfloat16)
    assert not passes(inf, 0.01, torch.float16) and not passes(nan, 0.01, torch.float16)


def test_a_small_layer_is_measured_without_a_gpu(tmp_path: Path) -> None:
    job = ModelJob("layers", "llama-8b decode b=16", ("eager",), "cpu", "bfloat16", True, 5.0, 0.0)
    with torch.no_grad():
        *_, last = measured(job, tmp_path)
    eager = last.contestants["eager"]
    assert last.batch == 16 and last.reference == "float64" and last.weight_bytes > 0
    assert eager.passes and eager.error is not None and 1e-4 < eager.error < 1e-1 and eager.us is None


def test_times_of_calls_and_of_graphs_are_apart_and_a_graph_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(runs: list[Callable[[], Any]], *, graphs: bool, cold: bool) -> list[Timing]:
        assert not cold
        methods = ["graph", "events"] if graphs else ["events"] * 2
        return [
            Timing(run() * (1 if graphs else 10), 0, nan, nan, method, "") for run, method in zip(runs, methods, strict=True)
        ]

    monkeypatch.setattr(model_row, "time_alternately", timed)
    runs = {"eager": model_row.CompiledRun(lambda: 2.0, 0.0), "ours": model_row.CompiledRun(lambda: 1.0, 0.0)}
    last = ModelRow(JOB, contestants={mode: Contestant() for mode in runs})
    for graphs in (True, False):
        last = model_row.with_times(last, runs, graphs)
    assert [(it.us, it.graph_us) for it in last.contestants.values()] == [(20.0, 2.0), (10.0, None)]


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("decode", "Mistral-7B x4 b=8"),
        ("huggingface", "XLNetLMHeadModel"),
        ("torchbench", "pytorch_unet"),
        ("quantized", "float8 mlp b=16"),
        ("quantized", "llama-8b int4 b=1"),
    ],
)
def test_a_model_is_the_same_in_another_element_type(suite: str, name: str) -> None:
    model = SUITES[suite][name]
    one, wide = (built(model, "cpu", dtype, small=True) for dtype in ("bfloat16", "float64"))
    copy_values(one, wide)
    results = []
    with torch.no_grad():
        for it in (one, wide, wide):
            it.prepare()
            results.append(tensors_of(it.module(*it.arguments, **it.keywords)))
    assert 1e-4 < relative_error(results[0], results[1]) < 0.05
    assert relative_error(results[2], results[1]) == 0  # `prepare` puts the state back
