"""`explain`: the graphs of the model that is asked for, also of models whose results hold caches; the log stays short."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mirage_eg as mi
from mirage_eg.backends.measure.timing import Outcome
from mirage_eg.backends.triton.compile import KernelCompile
from mirage_eg.optimizer.measurement import Measurement
from mirage_eg.pipeline import ranking
from mirage_eg.pipeline.run.result import Behind, CompileRecord, Result
from mirage_eg.torch_compile import compile_graph, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Compilation, Decision, GraphRecord, SegmentRecord, add_record, graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few
from property_tests.support.torch_cases import WIDTH, breaks, norm, projected

OPTIONS = {"gate": "off", "cache": "off", "rest": "eager", "min_ops": 1}


class Kept:
    """A cache: no tensor, and nothing that torch knows."""

    def __init__(self, x: Any) -> None:
        self.layers = [{"keys": x, "itself": self}]


class WithCache(nn.Module):
    """Returns numbers with a cache, in some container."""

    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container

    def forward(self, x: Any) -> Any:
        return self.container(projected(x), Kept(norm(x) * 2), None)


CONTAINERS = {
    "tuple": lambda *parts: parts,
    "dict": lambda *parts: dict(zip("abc", parts, strict=True)),
    "alone": lambda *parts: parts[1],
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_cache_in_the_results_is_explained(container: str) -> None:
    found = mi.torch.explain(WithCache(CONTAINERS[container]), torch.randn(8, WIDTH))
    assert "segment" in str(found) and "outside" not in str(found)


def test_a_call_of_which_nothing_was_compiled_says_where_to_look() -> None:
    assert "TORCH_LOGS=graph_breaks" in str(Compilation(()))


def test_a_published_model_with_its_cache_is_explained() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 97}
    model = transformers.LlamaModel(transformers.LlamaConfig(**sizes, num_key_value_heads=2)).eval()
    assert "segment" in str(mi.torch.explain(model, torch.randint(0, 90, (1, 8))))


def test_a_compiled_model_has_its_own_graphs_however_often_it_is_asked() -> None:
    x = torch.randn(8, WIDTH)
    one, other = (torch.compile(it, backend=backend, options=OPTIONS) for it in (projected, breaks))
    with library_segments():
        with torch.no_grad():
            one(x)
            other(x)
        assert len(graph_records()) == 3
        for _ in range(2):
            assert [it.number for it in mi.torch.explain(one, x).graphs] == [1]
            assert [it.number for it in mi.torch.explain(other, x).graphs] == [2, 3]


def test_a_function_of_another_backend_has_no_graphs() -> None:
    x = torch.randn(8, WIDTH)
    with library_segments(), torch.no_grad():
        torch.compile(projected, backend=backend, options=OPTIONS)(x)
        assert mi.torch.explain(torch.compile(norm, backend="eager"), x).graphs == ()


def test_a_segment_whose_kernels_do_not_compile_says_why() -> None:
    failed = CompileRecord("sm_90", (KernelCompile("t1_kernel", "sm_90", False, None, None, None, "ptxas was slow", 1.0),))
    with library_segments(failed), torch.no_grad():
        torch.compile(projected, backend=backend, options={"gate": "off", "cache": "off", "rest": "eager"})(
            torch.randn(8, WIDTH)
        )
    [segment] = graph_records()[-1].segments
    assert segment.reason == "1 fused µGraph, none to be used; the first: ptxas was slow"


def test_a_segment_that_cannot_win_by_prediction_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_graph, "is_timed", lambda settings: True)
    monkeypatch.setattr(compile_graph, "can_time", lambda device: True)
    monkeypatch.setattr(ranking, "behind", lambda us, program, device: Behind(9.0, 3.0))
    with library_segments(), torch.no_grad():
        torch.compile(projected, backend=backend, options={"gate": "off", "cache": "off", "rest": "eager"})(
            torch.randn(8, WIDTH)
        )
    [segment] = graph_records()[-1].segments
    assert (segment.decision, segment.ours_us, segment.other_us, segment.measured) == (Decision.SLOWER, 9.0, 3.0, False)
    assert "not timed" in segment.reason


def timed(us: float | None, *grid: tuple[int, ...], problem: str | None = None) -> Measurement:
    """What tuning measured of a µGraph with these block graphs."""
    return Measurement("extents", 0, grid, (1,) * len(grid), (), "", Outcome(us, 0.0, problem), "")


@pytest.mark.parametrize(
    ("measurements", "reason"),
    [
        ((), "the search found library kernels only"),
        ((timed(5.0),), "the search found library kernels only"),
        ((timed(5.0), timed(9.5, (4,)), timed(7.25, (8,))), "library kernels took 5.0 µs, the best of 2 fused variants 7.2"),
        (
            (timed(5.0), timed(None, (4,), problem="out of memory")),
            "1 fused variant, none to be used; the first: out of memory",
        ),
    ],
    ids=["no search", "library alone", "slower", "failed"],
)
def test_a_segment_without_a_fused_kernel_says_what_was_timed(measurements: tuple[Measurement, ...], reason: str) -> None:
    with library_segments(), pytest.MonkeyPatch.context() as patch, torch.no_grad():
        search = segment_store.search_segment

        def searched(*args: Any) -> Result:
            found = search(*args)
            return replace(found, candidates=(replace(found.candidates[0], fused=False),), measurements=measurements)

        patch.setattr(segment_store, "search_segment", searched)
        torch.compile(projected, backend=backend, options=OPTIONS)(torch.randn(8, WIDTH))
    [segment] = graph_records()[-1].segments
    assert (segment.decision, segment.reason) == (Decision.NOT_FUSED, reason)


SCRIPT = """
import logging
logging.basicConfig(level=logging.INFO)
import mirage_eg as mi
p = mi.new_kernel_graph()
p.mark_output(p.relu(p.matmul(p.new_input((16, 16), name="x"), p.new_input((16, 16), name="w"))))
mi.superoptimize(p, budget=20)
"""


@pytest.mark.parametrize("asked", few([False, True], 1))
def test_at_level_info_no_rules_are_logged_unless_asked_for(asked: bool, tmp_path: Path) -> None:
    own = "logging.getLogger('egglog').setLevel(logging.INFO)\nimport mirage_eg" if asked else "import mirage_eg"
    code = SCRIPT.replace("import mirage_eg", own, 1)
    environment = os.environ | {"MIRAGE_EG_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert ("INFO:egglog" in done.stderr) is asked


@pytest.mark.parametrize(("ops", "words"), [(1, "a segment of 1 op: "), (2, "a segment of 2 ops: ")])
def test_the_log_counts_the_ops_of_a_segment(ops: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    failed = SegmentRecord("", ops, Decision.FAILED, f"test of {ops}")
    with caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        add_record(GraphRecord(0, ops, (failed,)))
    assert caplog.messages == [f"left to Inductor: {words}test of {ops}"]
