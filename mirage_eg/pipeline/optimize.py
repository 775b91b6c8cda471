"""`optimize`: the result of an earlier run from the cache on disk, else a new run of all stages (`stages`)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.cache import now, reported
from mirage_eg.pipeline.run.cache_lookup import RunRequest, cached_result, for_this_machine, run_request
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Candidate, CompileRecord, Result, Wanted
from mirage_eg.verify.verdict import Observer

if TYPE_CHECKING:
    from mirage_eg.optimizer.tune import Tuning
    from mirage_eg.pipeline.region_records import RegionSearch
    from mirage_eg.search.partition.plan_records import KnownSegment
    from mirage_eg.search.trace import Tracer


def optimize(
    name: str,
    program: Graph,
    options: Options,
    observer: Observer | None = None,
    tuning: "Tuning | None" = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    tracer: "Tracer | None" = None,
) -> Result:
    """Superoptimize `program`.

    Always gives at least one candidate: the program itself with one library kernel per op. `tuning` says how to tune where
    there is a GPU. Finished work items are written to the file `checkpoint`; with `resume` the run continues from there.
    `tracer` receives every candidate of the search with the stage at which it ended.

    A result in the cache on disk is given back at once, and a finished one is written there; not so with a `tuning` of one's
    own or with custom ops, which the cache does not identify. The report says `cache`: hit, miss or off.
    """
    request = request_of(name, program, options if tuning is None else replace(options, cache=False))
    if not resume and tracer is None and (earlier := cached_result(request)) is not None:
        return earlier
    from mirage_eg.pipeline.stages import run_stages  # loads egglog and Triton

    result = run_stages(request, observer, tuning, checkpoint, resume, tracer)
    if request.cache is None:
        return reported(result, name, "off")
    computed = now()
    if options.budget is None or result.report.search.complete:  # what the clock cut may be better next time
        request.cache.keep(request.key, result, computed)
    return reported(result, name, "miss", computed)


def optimize_wanted(
    name: str,
    program: Graph,
    options: Options,
    wanted: Wanted,
    observer: Observer | None = None,
    tuning: "Tuning | None" = None,
    known: "Sequence[KnownSegment]" = (),
    ahead: "Sequence[RegionSearch]" = (),
) -> Result:
    """As `optimize`, with those parts of its report that are wanted; nothing is cached.

    Nothing is searched with segments `known` from a search for the same program at other sizes, or if it was `ahead`.
    """
    from mirage_eg.pipeline.stages import run_wanted  # loads egglog and Triton

    request = request_of(name, program, replace(options, cache=False))
    return reported(run_wanted(request, observer, tuning, wanted, known, ahead), name, "off")


def search_ahead(name: str, program: Graph, options: Options, on_gpu: bool) -> "list[RegionSearch]":
    """What the search of a run finds, for one that is given it; no GPU is used."""
    from mirage_eg.pipeline.stages import search_ahead as search

    return search(run_request(name, program, options, on_gpu))


def request_of(name: str, program: Graph, options: Options) -> RunRequest:
    options, on_gpu = for_this_machine(replace(options, undefined=options.undefined_in(program)))  # refuses before any work
    return run_request(name, program, options, on_gpu)


__all__ = ["Candidate", "CompileRecord", "Observer", "Result", "optimize", "optimize_wanted"]
