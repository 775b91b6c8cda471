"""A trace counts every candidate at the stage where it ended, has an even sample, and is the same for the same run."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.pipeline.optimize import Result, optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.segment_search import FieldCheck, Task
from mirage_eg.search.prune_reasons import STAGES
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.search.trace import MOST, Sample, Tracer, trace_text
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.reference import verify
from property_tests.pipeline.run.test_executors import timeless
from property_tests.support.programs import attention, three_products

FRACTION = 1e-6  # rounding of fractions in the file


@given(count=st.integers(0, 3000), most=st.integers(2, 50))
def test_a_sample_is_even_and_small_and_few_other_items_are_built(count: int, most: int) -> None:
    sample, made = Sample(most), list[int]()

    def make(number: int) -> int:
        made.append(number)
        return number

    for number in range(count):
        sample.add(lambda number=number: make(number))  # type: ignore[misc]
    assert sample.count == count
    assert sample.items == list(range(0, count, sample.stride))
    assert len(sample.items) <= most and (2 * len(sample.items) >= min(most, count) or sample.stride == 1)
    assert len(made) <= 2 * most * (1 + sample.stride.bit_length())


def traced(program: Any, **options: Any) -> tuple[Result, dict[str, Any], list[dict[str, Any]]]:
    tracer = Tracer()
    chosen = Options(**({"device": "cpu", "jobs": 1, "top": 3, "max_block_ops": 9} | options))
    result = optimize("p", program, chosen, tracer=tracer)
    header, *lines = map(json.loads, trace_text("p", tracer.result()).splitlines())
    return result, header, lines


def test_every_candidate_is_counted_at_the_stage_where_it_ended() -> None:
    result, header, lines = traced(attention(keys=256))
    search, ended = result.report.data()["search"], header["candidates"]
    for reason in ("query", "axes", "leads nowhere", "loads", "ops left", "forced ops", "no loop"):
        assert ended.get(reason, 0) == search["pruned"].get(reason, 0), reason
    assert ended["ranked"] == len(result.candidates)
    refused = ended.get("field check", 0) + ended.get("overflow", 0)  # structures, each with its first instance
    assert ended["not among top"] + refused == search["instances"] - (search["candidates"] - 1)
    assert set(ended) - {"not tried"} == {line["stage"] for line in lines if "segment" not in line}  # counted, not written
    assert {*ended, *header["candidates_in_segments"]} == set(header["stages"]) <= set(STAGES)


def test_what_overflows_ends_by_that_name_and_differs_in_no_field() -> None:
    program = attention(keys=256)
    axes = infer_axes(expand(program))
    rulebook = load_rules("indexed")
    found = search(expand(program), axes, rulebook, SearchLimits(max_block_ops=9))
    check = FieldCheck(expand(program), axes, Task(rulebook, DEVICES["H100"], SearchLimits(), Filters(), seed=0))
    stages = {structure: check.stage_of(structure) for structure in found.structures[:40]}
    overflowing = [structure for structure, stage in stages.items() if stage == "overflow"]
    assert overflowing and None in stages.values()
    for structure in overflowing:
        pair = small_instance(structure, expand(program), axes)
        assert verify(*pair).worth_full_size(structure.proved) and float_check(*pair).overflows
    kept = next(structure for structure, stage in stages.items() if stage is None)
    assert not float_check(*small_instance(kept, expand(program), axes)).overflows
    assert "field" not in STAGES["overflow"] and "overflows" in STAGES["overflow"]


def test_candidates_inside_segments_are_counted_where_they_ended() -> None:
    result, header, lines = traced(three_products(16, 1024, 2048, 1536, 512))
    cuts, ended = result.report.data()["partition"], header["candidates_in_segments"]
    assert cuts["searched"] == 3
    for reason in ("query", "axes", "leads nowhere", "loads", "ops left", "forced ops", "no loop"):
        assert ended.get(reason, 0) == cuts["pruned"].get(reason, 0), reason
    assert ended["not among top"] > 0
    inside = [line for line in lines if "segment" in line]
    assert set(ended) >= {line["stage"] for line in inside} >= {"kept", "not among top", "axes"}
    assert all("op" in line or "kernels" in line for line in inside)
    assert len({line["segment"] for line in inside}) == 3


@pytest.mark.slow
def test_fractions_say_how_many_are_shown() -> None:
    _, header, lines = traced(attention(keys=32768), domain="abstract")
    lines = [line for line in lines if "segment" not in line]
    shown: Counter[tuple[str, str | None]] = Counter((line["stage"], line.get("split")) for line in lines)
    totals: Counter[str] = Counter()
    for (stage, split), count in shown.items():
        assert count <= MOST
        [fraction] = {line["fraction"] for line in lines if (line["stage"], line.get("split")) == (stage, split)}
        totals[stage] += round(count / fraction)
    assert any(line["fraction"] < 1 for line in lines)
    written = {stage: count for stage, count in header["candidates"].items() if stage != "not tried"}  # which is counted only
    assert all(abs(totals[stage] - count) <= max(2, count // 50) for stage, count in written.items())


@pytest.mark.slow
def test_tracing_changes_neither_the_result_nor_itself(tmp_path: Path) -> None:
    first, second = traced(attention(keys=256)), traced(attention(keys=256), jobs=2)
    assert first[1:] == second[1:]
    plain = optimize("p", attention(keys=256), Options(device="cpu", jobs=1, top=3, max_block_ops=9))
    assert timeless(first[0].report.data()) == timeless(plain.report.data())
    assert [candidate.source for candidate in first[0].candidates] == [candidate.source for candidate in plain.candidates]
