"""The threads of a block: what is asked for is what is emitted, tuned and written down, and nothing else is taken."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.cost.devices import device_for
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.warps import warps_of, with_warps
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.kernel_times import Family
from mirage_eg.optimizer.tune import Tuning, tune
from mirage_eg.pipeline.partition_stage import Partitioner
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.pipeline.search_stage import search_one_kernel
from mirage_eg.pipeline.stage_records import Run
from property_tests.optimizer.test_tune import SMALL, Clock, compiled_everything, pool
from property_tests.support.parameters import few
from property_tests.support.programs import attention

LEGAL = [32, 64, 128, 256, 512, 1024]


def written(*threads: int) -> Graph:
    """A program with a hand-written block of so many threads."""
    program = mi.new_kernel_graph()
    x = program.new_input((64, 64), name="x")
    block = mi.new_threadblock_graph((4,), threads, 1)
    block.new_output(block.exp(block.new_input(x, (0,))), (0,))
    program.mark_output(program.customized([x], block)[0])
    return program.graph()


def emitted_warps(source: str) -> list[int]:
    return [int(count) for count in re.findall(r'"num_warps": (\d+)', source)]


@given(st.sampled_from(LEGAL), st.integers(0, 10))
def test_threads_of_a_block_reach_the_kernel_in_any_arrangement(threads: int, cut: int) -> None:
    rows = min(1 << cut, threads)
    assert emitted_warps(emit(written(threads // rows, rows, 1))) == [threads // 32]


@given(st.integers(1, 5000).filter(lambda threads: threads not in LEGAL))
def test_a_block_that_the_compiler_has_not_is_refused(threads: int) -> None:
    assert warps_of(threads) is None
    with pytest.raises(UnsupportedError, match=f"{threads} threads"):
        emit(written(threads))
    with pytest.raises(OptionError, match=f"blockdims: .* {threads} threads"):
        Options(blockdims=((threads,),))


def test_a_schedule_goes_before_the_threads_of_the_graph() -> None:
    assert emitted_warps(emit(written(64), schedule=Schedule(num_warps=8))) == [8]
    assert emitted_warps(emit(with_warps(written(64), 16))) == [16]


def test_the_mugraphs_of_a_cut_keep_the_blockdims() -> None:
    options = Options(device="cpu", blockdims=((256, 1, 1),))
    with Workers(None, 1) as workers:
        program = expand(attention(keys=1024))
        run = Run("cut", program, options, load_rules(), options.device_record, Work(workers))
        partitioner = Partitioner(run, program)
        partitioner.add(search_one_kernel(run, program))
        plans = partitioner.plans()
    blocks = [block for family in plans.candidates for entry in family for block in entry.graph.blocks]
    assert blocks
    assert all(block.threads == 256 for block in blocks)


@pytest.mark.parametrize(("blockdims", "threads"), few([([(512,), (128,)], 128), ([(64, 1, 1)], 64), ([(16, 16)], 256)], 1))
def test_blockdims_restrict_what_superoptimize_emits_and_reports(blockdims: list[tuple[int, ...]], threads: int) -> None:
    mugraphs = mi.superoptimize(attention(keys=256), blockdims=blockdims, top=3, jobs=1, device="cpu")
    fused = [mugraph for mugraph in mugraphs if mugraph.candidate.fused]
    assert fused
    for mugraph in fused:
        assert set(emitted_warps(mugraph.source)) == {threads // 32}
        assert all(item["graph"].threads == threads for item in mugraph.graph.nodes if item.op == "block")
    assert all(set(entry["threads"]) <= {threads} for entry in mugraphs.report["mugraphs"])


def test_tuning_tries_every_allowed_number_of_warps_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_everything(monkeypatch)
    program, families = pool()
    families = [Family.of([with_warps(family.compose([part]), 2) for part in family.choices[0]]) for family in families]
    clock = Clock()
    tune(program, families, device_for("sm_90"), clock, Tuning(SMALL), warps=(2, 16))
    assert {count for source in clock.seen for count in emitted_warps(source)} == {2, 16}
