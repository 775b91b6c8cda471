"""The stage of a program of several regions: each different region is searched and verified once, as a program of its own.

The µGraphs of regions are composed to µGraphs of the program. The budget is shared among the regions by their ops.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import launched_kernels
from mirage_eg.backends.evaluator.array_module import array_module, evaluator_device
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import to_json
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.make_report import make_report, part_summary
from mirage_eg.pipeline.partition_stage import PlanSearch
from mirage_eg.pipeline.program_stages import SearchedProgram, search_program
from mirage_eg.pipeline.ranking import notes_on, ordered
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import RegionSummary
from mirage_eg.pipeline.run.result import Candidate, CompileRecord, Result, finished
from mirage_eg.pipeline.search_stage import WholeProgram
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.trace_stages import trace_plans, trace_whole_program
from mirage_eg.pipeline.tune_stage import timed_and_ordered
from mirage_eg.pipeline.verify_stage import Finalists, FullSize, Verified, with_steps
from mirage_eg.search.partition.compose import compose
from mirage_eg.search.partition.kernel_plan import PlanPart, SegmentKernels
from mirage_eg.search.partition.segments import Segment, Segmenter, counts, segment_program
from mirage_eg.search.partition.shortest_path import Partition
from mirage_eg.search.structure_search import merged
from mirage_eg.transforms.simplify import Simplification
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.composition import compose_float_checks, compose_verdicts
from mirage_eg.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class SearchedRegion:
    """A region with its numbers among the regions of the program, its search, and its candidates, best first."""

    program: Graph
    numbers: tuple[int, ...]
    searched: SearchedProgram
    candidates: tuple[Candidate, ...]
    seconds: float

    @property
    def library(self) -> Candidate:
        """The library form, which is always among the candidates."""
        return next(entry for entry in self.candidates if entry.as_found == self.program)


def run_regions(run: Run, segments: Sequence[Segment], tuning: Tuning) -> Result:
    """The µGraphs of a program of these regions, ranked, with the report."""
    programs = [segment_program(run.program, segment) for segment in segments]
    regions = list(_search(run, programs, tuning))
    form_of = {region.program: region.library for region in regions}
    *choices, library = _with_steps(run, [*_choices(regions, run.options.max_kernels), form_of])
    composed = [(_composed(run, segments, programs, choice), choice) for choice in choices]
    composed = [(entry, choice) for entry, choice in composed if entry.fused]
    composed.append((_composed(run, segments, programs, library, run.program), library))
    candidates = [entry for entry, _ in composed]
    verified = _verify_whole(run, candidates, regions)
    ranked = timed_and_ordered(run, verified.equal)
    run.watch.notes += notes_on(ranked, run.options)
    measurements = tuple(entry for region in regions for entry in region.searched.finalists.measurements)
    finalists = Finalists([candidates], _plans(regions), tuple(candidates), verified, measurements)
    simplified = {region.program: region.searched.simplified.after for region in regions}
    primitive = compose(run.program, _parts(segments, [simplified[program] for program in programs]))
    searched = _joined(run, regions, primitive, finalists)
    first = next(choice for entry, choice in composed if entry.graph == ranked[0].graph)
    report = make_report(run, searched, ranked, None, [_summary(region, first[region.program]) for region in regions])
    return Result(tuple(map(finished, ranked)), report, searched.finalists.measurements)


def _search(run: Run, programs: Sequence[Graph], tuning: Tuning) -> Iterator[SearchedRegion]:
    """Every different region through all stages before the ranking."""
    ops = {program: _ops(expand(program)) for program in programs}
    total = sum(ops.values())
    for position, program in enumerate(ops):
        numbers = tuple(number for number, other in enumerate(programs) if other == program)
        name = f"region {position}"
        run.watch.observer("regions", position, len(ops), f"{ops[program]} ops, {len(numbers)} times")
        budget = run.options.budget and run.options.budget * ops[program] / total
        options, work = replace(run.options, budget=budget, max_kernels=None), replace(run.work, part=f"{name} ")
        begin = perf_counter()
        with run.watch.part(name) as watch:
            inner = replace(run, name=f"{run.name}, {name}", program=program, options=options, work=work, watch=watch)
            searched = search_program(inner, FullSize.of(inner), tuning)
        candidates = ordered(searched.finalists.verified.equal, options)
        if run.tracer is not None:
            trace_plans(run.tracer, searched.primitive, searched.finalists.plans)
            finalists = searched.finalists
            trace_whole_program(run.tracer, searched.whole, finalists.candidates, finalists.verified, candidates)
        yield SearchedRegion(program, numbers, searched, tuple(candidates), perf_counter() - begin)


Choice = Mapping[Graph, Candidate]  # of each region


def _choices(regions: Sequence[SearchedRegion], max_kernels: int | None) -> list[Choice]:
    """Up to three choices: the best candidate of each region, the fewest kernels, the fastest of at most `max_kernels`."""
    usable = {
        region.program: [entry for entry in region.candidates if entry.compile.ok] or [region.library] for region in regions
    }
    times = {region.program: len(region.numbers) for region in regions}
    front: dict[int, tuple[float, dict[Graph, Candidate]]] = {0: (0.0, {})}  # of each number of kernels the fastest choice
    for program, entries in usable.items():
        further: dict[int, tuple[float, dict[Graph, Candidate]]] = {}
        for kernels, (us, choice) in front.items():
            for entry in entries:
                count, sum_us = kernels + times[program] * entry.kernels, us + times[program] * entry.us
                if count not in further or sum_us < further[count][0]:
                    further[count] = sum_us, choice | {program: entry}
        front = further
    fitting = [count for count in front if max_kernels is None or count <= max_kernels]
    best: dict[Graph, Candidate] = {program: entries[0] for program, entries in usable.items()}
    chosen = [best, front[min(front)][1]]
    if fitting:
        chosen.append(front[min(fitting, key=lambda count: front[count][0])][1])
    return [choice for number, choice in enumerate(chosen) if choice not in chosen[:number]]


def _with_steps(run: Run, choices: Sequence[Choice]) -> list[Choice]:
    """The choices with the proof of each region in steps, made once for each µGraph of a region.

    The last choice has the library form of each region: it replaces a µGraph of which nothing but a refused proof spoke.
    """
    verdicts: dict[tuple[Graph, Graph], Verdict] = {}
    for choice in choices:
        for program, entry in choice.items():
            if (program, entry.graph) not in verdicts:
                verdicts[program, entry.graph] = with_steps(replace(run, program=program), entry).verdict
    return [
        {
            program: replace(chosen, verdict=verdicts[program, chosen.graph])
            for program, entry in choice.items()
            for chosen in [entry if verdicts[program, entry.graph].equal else choices[-1][program]]
        }
        for choice in choices
    ]


def _composed(
    run: Run, segments: Sequence[Segment], programs: Sequence[Graph], choice: Choice, graph: Graph | None = None
) -> Candidate:
    """The candidates of all regions as one of the program; `graph` instead of their composition, if given."""
    entries = [choice[program] for program in programs]
    graph = compose(run.program, _parts(segments, [entry.graph for entry in entries])) if graph is None else graph
    schedule = tuple(each for entry in entries for each in entry.schedule or ())
    return Candidate(
        graph,
        sum(entry.predicted_us for entry in entries),
        any(entry.fused for entry in entries),
        all(entry.proved_by_search for entry in entries),
        source=emit(graph, program=run.program, schedule=schedule, share=True),
        schedule=schedule,
        verdict=compose_verdicts([entry.verdict for entry in choice.values()]),
        float_check=compose_float_checks([entry.float_check for entry in choice.values()]),
        compile=CompileRecord(run.device.target, tuple(kernel for entry in entries for kernel in entry.compile.kernels)),
    )


def _parts(segments: Sequence[Segment], graphs: Sequence[Graph]) -> list[PlanPart]:
    """These graphs of the regions as parts of the program."""
    return [
        PlanPart(segment, segment.inputs, SegmentKernels(graph, 0.0, len(graph.kernels), proved=True, fused=True))
        for segment, graph in zip(segments, graphs, strict=True)
    ]


def _verify_whole(run: Run, candidates: Sequence[Candidate], regions: Sequence[SearchedRegion]) -> Verified:
    """The candidates, checked against the program as a whole too where that is cheap."""
    program = expand(run.program)
    if _ops(program) > HEURISTICS.whole_check_ops or product_flops(program) > HEURISTICS.whole_check_flops:
        run.watch.notes.append("each region is verified at full size, and the program by composition")
        devices = dict.fromkeys(region.searched.finalists.verified.computed_on for region in regions)
        return Verified(tuple(candidates), (), {}, ", ".join(devices))
    with run.watch.stage("verify"):
        reference = BlockReference(run.program, run.options.trials, run.options.seed)
        graphs = [entry.graph for entry in candidates]
        tested = [verdict for verdict, _ in reference.check_all(graphs)]
        checked = [
            replace(entry, verdict=_of_whole(verdict, entry.verdict)) for verdict, entry in zip(tested, candidates, strict=True)
        ]
        equal, rejected = ([entry for entry in checked if entry.verdict.equal is sign] for sign in (True, False))
        checks = reference.float_checks([entry.graph for entry in equal])
        reference.forget()
        equal = [replace(entry, float_check=check) for entry, check in zip(equal, checks, strict=True)]
    return Verified(tuple(equal), tuple(rejected), {}, evaluator_device(array_module(run.program)))


def _of_whole(tested: Verdict, composed: Verdict) -> Verdict:
    """The verdict of a test of the whole program with the proofs of its regions."""
    return replace(
        tested,
        evidence=tuple(dict.fromkeys(("tested", *composed.evidence))),
        laws=composed.laws,
        partial=composed.partial,
        unproved_because=composed.unproved_because,
        chains=composed.chains,
        no_chains_because=composed.no_chains_because,
    )


def _plans(regions: Sequence[SearchedRegion]) -> PlanSearch:
    """The partitions of all regions together."""
    searches = [region.searched.finalists.plans for region in regions]
    found = [search.partition for search in searches]
    partition = Partition(
        plans=(),
        bound_us=sum(len(region.numbers) * entry.bound_us for region, entry in zip(regions, found, strict=True)),
        few=sum(len(region.numbers) * entry.few for region, entry in zip(regions, found, strict=True)),
        bound_of_few_us=sum(len(region.numbers) * entry.bound_of_few_us for region, entry in zip(regions, found, strict=True)),
        states=sum(entry.states for entry in found),
        segments=sum(entry.segments for entry in found),
        left_out=(
            "kernels that reach from one region into the next",
            *dict.fromkeys(text for e in found for text in e.left_out),
        ),
        complete=False,
        searched=tuple(pair for entry in found for pair in entry.searched),
    )
    pruned = sum((Counter(search.pruned) for search in searches), Counter[str]())
    visited, structures = sum(search.visited for search in searches), sum(search.structures for search in searches)
    return PlanSearch((), partition, visited, structures, dict(pruned))


def _joined(run: Run, regions: Sequence[SearchedRegion], primitive: Graph, finalists: Finalists) -> SearchedProgram:
    """The records of all regions as those of the program."""
    searched = [region.searched for region in regions]
    before = expand(run.program)
    laws = sum((Counter(dict(entry.simplified.laws)) for entry in searched), Counter[str]())
    stopped = next((entry.simplified.stopped for entry in searched if entry.simplified.stopped), None)
    seconds = sum(entry.simplified.seconds for entry in searched)
    simplified = Simplification(before, primitive, (("each region", primitive),), tuple(sorted(laws.items())), stopped, seconds)
    whole = [entry.whole for entry in searched]
    segment = Segmenter(primitive).whole()
    structures = tuple(entry for each in whole for entry in each.structures)
    search = merged([each.search for each in whole])
    return SearchedProgram(
        simplified,
        primitive,
        WholeProgram(segment, primitive, "it has several regions", search, structures),
        finalists,
        tuple(summary for entry in searched for summary in entry.rewriting),
    )


def _summary(region: SearchedRegion, first: Candidate) -> RegionSummary:
    """The region with the µGraph of it that is in the first of the program."""
    primitive, finalists = region.searched.primitive, region.searched.finalists
    partition, parts = finalists.plans.partition, () if first.plan is None else first.plan.parts
    return RegionSummary(
        program=json.loads(to_json(region.program)),
        mugraph=json.loads(to_json(first.graph)),
        occurrences=region.numbers,
        ops=_ops(primitive),
        in_blocks=_ops_in_blocks(first, primitive),
        kernels=first.kernels,
        predicted_us=first.predicted_us,
        measured_us=first.measured_us,
        verdict=str(first.verdict.verdict),
        evidence=first.verdict.evidence,
        searched=len(partition.searched),
        complete=partition.complete,
        left_out=partition.not_searched,
        bound_us=partition.bound_us,
        parts=tuple(part_summary(primitive, part, finalists.verified.parts.get(part, first.verdict)) for part in parts),
        seconds=region.seconds,
    )


def _ops_in_blocks(candidate: Candidate, primitive: Graph) -> int:
    """The ops of a program in primitive ops that block graphs compute; of a rewritten one, all but its library kernels."""
    if candidate.plan is not None:
        fused = {i for part in candidate.plan.parts if part.kernels.fused for i in part.segment.nodes}
        return sum(counts(primitive.nodes[i]) for i in fused)
    library = sum(item.op != "block" for launch in launched_kernels(candidate.graph) for item, _ in launch)
    return max(0, _ops(primitive) - library) if candidate.fused else 0


def _ops(program: Graph) -> int:
    return sum(map(counts, program.nodes))
