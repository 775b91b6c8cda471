"""The regions of a program, and their µGraphs joined to those of the program.

Each different region is searched and verified once, as a program of its own.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.emit import emit
from mirage_eg.graph_optimizer.region_cuts import values_to_cut_at
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.finalists import Finalists
from mirage_eg.pipeline.found import Found, Lowered
from mirage_eg.pipeline.partition_stage import PlanSearch
from mirage_eg.pipeline.program_search import ProgramSearch
from mirage_eg.pipeline.ranking import ordered
from mirage_eg.pipeline.region_records import Region, RegionSearch, SearchedRegion
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Candidate, CompileRecord
from mirage_eg.pipeline.search_stage import OneKernelSearch
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.verify_stage import Verified, with_steps
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.search.partition.plan_records import PlanPart, Segment, SegmentKernels
from mirage_eg.search.partition.regions import regions as cut
from mirage_eg.search.partition.segments import Segmenter, op_count, segment_program
from mirage_eg.search.partition.shortest_path import Partition
from mirage_eg.search.structure_search import merged
from mirage_eg.transforms.simplify import Simplification
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.composition import compose_float_checks, compose_verdicts
from mirage_eg.verify.verdict import Verdict

Choice = Mapping[Graph, Candidate]  # of each region's program one candidate


def divide(run: Run, ahead: Sequence[RegionSearch] = ()) -> tuple[Region, ...]:
    """Cut the program of a run into regions, or into those that were searched `ahead`, as the cut depends on the time left."""
    numbered = dict(part for it in ahead for part in it.parts.items())
    parts = [numbered[number] for number in sorted(numbered)] if ahead else _parts_of(run)
    if len(parts) <= 1:
        return (Region(run),)
    programs = [segment_program(run.program, part) for part in parts]
    found = []
    for position, program in enumerate(dict.fromkeys(programs)):
        name = f"region {position}"
        own = replace(
            run,
            name=f"{run.name}, {name}",
            program=program,
            options=replace(run.options, max_kernels=None),
            work=replace(run.work, part=f"{name} "),
            is_part=True,
        )
        its_parts = {number: parts[number] for number, other in enumerate(programs) if other == program}
        found.append(Region(own, its_parts, name))
    return tuple(found)


def _parts_of(run: Run) -> tuple[Segment, ...]:
    """The parts of the program, cut between kernels of the program as rewritten where other cuts take substitutions away."""
    parts = cut(run.program, HEURISTICS.region_ops)
    if len(parts) == 1:
        return parts
    with run.watch.stage("regions"):
        programs = [segment_program(run.program, part) for part in parts]
        seconds = min(HEURISTICS.rewrite_seconds, run.until.part(HEURISTICS.until_cuts).left())
        if seconds <= 0:
            return parts
        cut_at = values_to_cut_at(run.program, programs, run.device, seconds)
    return parts if cut_at is None else cut(run.program, HEURISTICS.region_ops, cut_at)


def join(run: Run, searched: Sequence[SearchedRegion]) -> SearchedRegion:
    """The regions of a program as one; its only one as it is."""
    if not searched[0].region.name:
        return searched[0]
    regions = [entry.region for entry in searched]
    form_of = {entry.region.program: entry.library for entry in searched}
    *choices, library = _with_steps(searched, [*_choices(searched, run.options.max_kernels), form_of])
    composed = [(_composed(run, regions, choice), choice) for choice in choices]
    composed = [(entry, choice) for entry, choice in composed if entry.fused]
    composed.append((_composed(run, regions, library, run.program), library))
    candidates = tuple(entry for entry, _ in composed)
    verified = _verify_whole(run, candidates, searched)
    simplified = {entry.region.program: entry.simplified.after for entry in searched}
    primitive = compose(run.program, _plan_parts(regions, simplified))
    measurements = tuple(it for entry in searched for it in entry.finalists.measurements)
    found = tuple(Found(entry.graph, entry.predicted_us, entry.fused) for entry in candidates)
    lowered = tuple(Lowered(entry, entry.graph) for entry in found)
    finalists = Finalists(_joined_searches(primitive, searched), [found], lowered, verified, measurements)
    return SearchedRegion(
        Region(run),
        _joined_simplifications(run, primitive, searched),
        finalists,
        tuple(summary for entry in searched for summary in entry.rewriting),
        (*(f"{entry.region.name}: {note}" for entry in searched for note in entry.notes), *verified.notes),
        sum(entry.seconds for entry in searched),
        {
            candidate.graph: [(entry, choice[entry.region.program]) for entry in searched]
            for candidate, choice in reversed(composed)
        },
    )


def _choices(searched: Sequence[SearchedRegion], max_kernels: int | None) -> list[Choice]:
    """Up to three choices: the best candidate of each region, the fewest kernels, the fastest of at most `max_kernels`."""
    usable = {
        entry.region.program: [it for it in ordered(entry.finalists.verified.equal, entry.region.run.options) if it.compile.ok]
        or [entry.library]
        for entry in searched
    }
    times = {entry.region.program: len(entry.region.parts) for entry in searched}
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


def _with_steps(searched: Sequence[SearchedRegion], choices: Sequence[Choice]) -> list[Choice]:
    """The choices with the proof of each region in steps, made once for each µGraph of a region.

    The last choice has the library form of each region: it replaces a µGraph of which nothing but a refused proof spoke.
    """
    runs = {entry.region.program: entry.region.run for entry in searched}
    verdicts: dict[tuple[Graph, Graph], Verdict] = {}
    for choice in choices:
        for program, entry in choice.items():
            if (program, entry.graph) not in verdicts:
                verdicts[program, entry.graph] = with_steps(runs[program], entry).verdict
    return [
        {
            program: replace(chosen, verdict=verdicts[program, chosen.graph])
            for program, entry in choice.items()
            for chosen in [entry if verdicts[program, entry.graph].equal else choices[-1][program]]
        }
        for choice in choices
    ]


def _composed(run: Run, regions: Sequence[Region], choice: Choice, graph: Graph | None = None) -> Candidate:
    """The candidates of all regions as one of the program; `graph` instead of their composition, if given."""
    entries = [choice[program] for program, _ in _in_order(regions)]
    if graph is None:
        graph = compose(run.program, _plan_parts(regions, {program: entry.graph for program, entry in choice.items()}))
    schedule = tuple(each for entry in entries for each in entry.schedule or ())
    return Candidate(
        graph,
        predict_us(graph, run.device),  # a region alone copies what the program writes into its input
        any(entry.fused for entry in entries),
        source=emit(graph, program=run.program, schedule=schedule, share=True),
        schedule=schedule,
        verdict=compose_verdicts([entry.verdict for entry in choice.values()]),
        float_check=compose_float_checks([entry.float_check for entry in choice.values()]),
        compile=CompileRecord(
            run.device.target,
            tuple(kernel for entry in entries for kernel in entry.compile.kernels),
            tried=all(entry.compile.tried for entry in entries),
        ),
    )


def _plan_parts(regions: Sequence[Region], graphs: Mapping[Graph, Graph]) -> list[PlanPart]:
    """A graph for each region's program as parts of the whole program."""
    made = {
        program: SegmentKernels(graph, 0.0, len(launches_of(graph).kernels), proved=True, fused=True)
        for program, graph in graphs.items()
    }
    return [PlanPart(part, part.inputs, made[program]) for program, part in _in_order(regions)]


def _in_order(regions: Sequence[Region]) -> list[tuple[Graph, Segment]]:
    """The parts of a program, each with the program of its region."""
    parts = {number: (region.program, part) for region in regions for number, part in region.parts.items()}
    return [parts[number] for number in range(len(parts))]


def _verify_whole(run: Run, candidates: Sequence[Candidate], searched: Sequence[SearchedRegion]) -> Verified:
    """The candidates, checked against the program as a whole too where that is cheap."""
    program = expand(run.program)
    is_large = op_count(program) > HEURISTICS.whole_check_ops or product_flops(program) > HEURISTICS.whole_check_flops
    if not is_large:
        with suppress(OverdueError), ending(run.until):
            return _checked(run, candidates)
    devices = dict.fromkeys(entry.finalists.verified.computed_on for entry in searched)
    note = "each region is verified at full size, and the program by composition"
    return Verified(tuple(candidates), computed_on=", ".join(devices), notes=(note,))


def _checked(run: Run, candidates: Sequence[Candidate]) -> Verified:
    """The candidates, checked against the program."""
    with run.watch.stage("verify"):
        reference = BlockReference(run.program, run.options.trials, run.options.seed)
        graphs = [entry.graph for entry in candidates]
        tested = [verdict for verdict, _ in reference.check_all(graphs)]
        checked = [
            replace(entry, verdict=_of_whole(verdict, entry.verdict)) for verdict, entry in zip(tested, candidates, strict=True)
        ]
        equal = [entry for entry in checked if entry.verdict.equal]
        others = [it for it in checked if not it.verdict.equal]
        rejected = [(Lowered(Found(it.graph, it.predicted_us, it.fused), it.graph), it.verdict) for it in others]
        checks = reference.float_checks([entry.graph for entry in equal])
        reference.forget()
        equal = [replace(entry, float_check=check) for entry, check in zip(equal, checks, strict=True)]
    return Verified(tuple(equal), tuple(rejected), computed_on=reference.computed_on)


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


def _joined_searches(primitive: Graph, searched: Sequence[SearchedRegion]) -> ProgramSearch:
    """The searches of all regions as one of the program."""
    times = [len(entry.region.parts) for entry in searched]
    plans = [entry.finalists.search.plans for entry in searched]
    found = [each.partition for each in plans]
    partition = Partition(
        plans=(),
        bound_us=sum(count * each.bound_us for count, each in zip(times, found, strict=True)),
        few=sum(count * each.few for count, each in zip(times, found, strict=True)),
        bound_of_few_us=sum(count * each.bound_of_few_us for count, each in zip(times, found, strict=True)),
        states=sum(each.states for each in found),
        segments=sum(each.segments for each in found),
        left_out=(
            "kernels that reach from one region into the next",
            *dict.fromkeys(text for each in found for text in each.left_out),
        ),
        complete=False,
        searched=tuple(pair for each in found for pair in each.searched),
    )
    pruned = sum((Counter(each.pruned) for each in plans), Counter[str]())
    visited, structures = sum(each.visited for each in plans), sum(each.structures for each in plans)
    whole = [entry.finalists.search.one_kernel for entry in searched]
    return ProgramSearch(
        primitive,
        OneKernelSearch(
            Segmenter(primitive).whole(),
            primitive,
            "it has several regions",
            merged([each.search for each in whole]),
            tuple(entry for each in whole for entry in each.structures),
            cut=any(each.cut for each in whole),
        ),
        PlanSearch((), partition, visited, structures, dict(pruned), cut=any(each.cut for each in plans)),
    )


def _joined_simplifications(run: Run, primitive: Graph, searched: Sequence[SearchedRegion]) -> Simplification:
    """What simplification did to all regions."""
    each = [entry.simplified for entry in searched]
    laws = sum((Counter(dict(entry.laws)) for entry in each), Counter[str]())
    return Simplification(
        expand(run.program),
        primitive,
        (("each region", primitive),),
        tuple(sorted(laws.items())),
        next((entry.stopped for entry in each if entry.stopped), None),
        sum(entry.seconds for entry in each),
    )
