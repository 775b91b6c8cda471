"""The stage that searches other programs that compute the given one: by graph substitutions, and with split statistics.

Their µGraphs compete with those of the program as written, as µGraphs of the given program: what depends on weights alone comes
first and is prepared once. They are verified against the program as it was given. A rewritten program is searched only if its
lower bound is below the best µGraph so far. At other sizes these µGraphs serve with the tiles that they have, if at all: only
plans of the program as written get new ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter

from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.joint_extraction import CLOSE, JointExtraction
from mirage_eg.graph_optimizer.substitution import Substitution, Substitutions, substitutions
from mirage_eg.ir.deadline import Deadline, after
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.choose_candidates import Groups
from mirage_eg.pipeline.compile_stage import Compiler
from mirage_eg.pipeline.found import Found
from mirage_eg.pipeline.partition_stage import Partitioner, PlanChoices
from mirage_eg.pipeline.program_search import ProgramSearch, search_program
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.report_sections import BeforeAfter, RewriteSummary
from mirage_eg.pipeline.search_stage import mugraph_of
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.segment_search import SegmentSearch
from mirage_eg.search.partition.shortest_path import Partition
from mirage_eg.transforms.constants import with_constants
from mirage_eg.transforms.split_statistics import with_split_statistics

ToGiven = Callable[[Graph], Graph]  # a µGraph of the other program becomes one of the given program


@dataclass(frozen=True, slots=True)
class EqualPrograms:
    """The µGraphs of other programs as those of the given one, in groups.

    `choices`: other kernels for the parts of a plan, by its µGraph. `summaries`: of each program that was extracted.
    """

    candidates: Groups = ()
    choices: Mapping[Graph, PlanChoices] = field(default_factory=dict)
    summaries: tuple[RewriteSummary, ...] = ()
    notes: tuple[str, ...] = ()

    def joined(self, further: "EqualPrograms") -> "EqualPrograms":
        return EqualPrograms(
            [*self.candidates, *further.candidates],
            {**self.choices, **further.choices},
            self.summaries + further.summaries,
            self.notes + further.notes,
        )


def search_equal_programs(run: Run, given: ProgramSearch, partitioner: Partitioner, unmerged: Graph) -> EqualPrograms:
    """Search the programs that are equal to that of a run, whose primitive form the partitioner has searched.

    `unmerged`: this form with a reduction for each dim, as laws have them.
    """
    split = _search_split_statistics(run, given, partitioner)
    return split.joined(_search_rewritten(run, given, partitioner, unmerged, _best_us(split.candidates)))


def _search_split_statistics(run: Run, given: ProgramSearch, partitioner: Partitioner) -> EqualPrograms:
    """The search with mean and variance of long rows by parts, where the program has such rows."""
    split = with_split_statistics(given.primitive, HEURISTICS.search.longest_row)
    if split is None or run.until.part(HEURISTICS.until_rewritten).passed():
        return EqualPrograms()
    before = _best_us(given.candidates)
    found, _ = _search(run, "split statistics", split, lambda graph: graph, partitioner.found, before)
    best = _best_us(found.candidates)
    predicted = f"{best:.1f} µs predicted" if best < before else "no plan is predicted to be faster"
    note = f"mean and variance of long rows by parts: {predicted}, {before:.1f} µs as written"
    return replace(found, notes=(*found.notes, note))


def _search_rewritten(
    run: Run, given: ProgramSearch, partitioner: Partitioner, unmerged: Graph, other_us: float
) -> EqualPrograms:
    """Rewrite the program of a run, and search what may be faster than its µGraphs as written, the library form and `other_us`.

    The segments of the program as written have prices, and so have those of each rewritten program that is searched; this
    repeats until no other program is the cheapest.
    """
    begin, until = perf_counter(), run.until.part(HEURISTICS.until_rewritten)
    if until.passed():
        return EqualPrograms()
    with run.watch.stage("rewrite"):
        keeps = run.options.undefined_in(run.program) == "keep"
        equal = substitutions(run.program, unmerged, run.device, partitioner.find, keeps)
    result = EqualPrograms()
    if equal is None:
        return result
    extraction = equal.extraction
    if unmerged == given.primitive:
        extraction.add(unmerged, extraction.terms_of_given(), given.plans.partition.searched)
    as_written_us = _best_us([*given.candidates, (_library(run, run.program),)])
    best_us = min(as_written_us, other_us)
    seen: list[Graph] = []
    while len(seen) < HEURISTICS.rewritten_programs:
        found = None if until.passed() else _cheapest(run, equal, until)
        if found is None or found.rewritten.graph in seen:
            break
        seen.append(found.rewritten.graph)
        bound_us = found.lower_bound_us(run.device)
        searched = EqualPrograms()
        if bound_us * HEURISTICS.close < best_us:
            searched, partition = _search_substitution(run, found, partitioner.found, best_us)
            if not found.in_each_call:
                extraction.add(found.rewritten.graph, found.rewritten.terms, partition.searched)
        us = _best_us(searched.candidates)
        seconds = perf_counter() - begin - sum(it.seconds for it in result.summaries)
        summary = _summary(run, found, extraction, bound_us, as_written_us, None if us == inf else us, seconds)
        result = result.joined(replace(searched, summaries=(summary,)))
        if not searched.candidates or found.in_each_call or until.passed():
            break
        best_us = min(best_us, us)
    return result


def _cheapest(run: Run, equal: Substitutions, until: Deadline) -> Substitution | None:
    """The cheapest program by prices that are known, and by those of kernels that are searched for it."""
    with run.watch.stage("rewrite"):

        def is_time_left() -> bool:
            it = equal.extraction
            text = f"{counted(it.looked_up, 'kernel')} of rewritten programs searched"
            run.watch.observer("rewrite", it.looked_up, HEURISTICS.rewritten_kernels, text)
            return not until.passed()

        seconds = min(HEURISTICS.rewrite_seconds, until.left())
        return equal.cheapest(seconds, HEURISTICS.rewritten_kernels, is_time_left)


def _best_us(groups: Groups) -> float:
    return min((entry.predicted_us for entries in groups for entry in entries), default=inf)


def _library(run: Run, program: Graph) -> Found:
    return Found(program, predict_us(program, run.device), fused=False)


def _search_substitution(
    run: Run, found: Substitution, known: Mapping[Graph, SegmentSearch], best_us: float
) -> tuple[EqualPrograms, Partition]:
    """The search of the rewritten program, with the extracted kernels among its µGraphs."""
    graph = found.searched
    if run.options.not_finite_in(run.program) == "lose":
        graph = with_constants(graph)  # a mean less itself, say
    searched, partition = _search(run, "rewritten", graph, found.to_given, known, best_us)
    lesser = _is_lesser(run, graph)
    groups = [*searched.candidates, (_of_given(_library(run, graph), found.to_given, lesser),)]
    if found.joint.plan is not None and not found.in_each_call:
        extracted = mugraph_of(run.options, run.device, graph, found.joint.plan)
        if not run.on_gpu:
            extracted = replace(extracted, optimized=optimize_mugraph(extracted.graph, run.device))
        groups.append((_of_given(extracted, found.to_given, lesser),))
    return replace(searched, candidates=groups), partition


def _search(
    run: Run, what: str, program: Graph, to_given: ToGiven, known: Mapping[Graph, SegmentSearch], best_us: float
) -> tuple[EqualPrograms, Partition]:
    """Search a program of primitive ops that computes that of a run, of which a µGraph takes `best_us`.

    `known`: segments that were searched.
    """
    work = replace(run.work, part=f"{run.work.part}{what} ")
    until = after(run.until.part(HEURISTICS.until_rewritten).left() / HEURISTICS.until_plans)  # its plans end then
    inner = replace(run, name=f"{run.name}, {what}", program=program, work=work, tracer=None, until=until)
    search, partitioner = search_program(inner, program, known, most_us=best_us)
    if not run.on_gpu and run.options.budget is None:  # else kernels that do not compile are dropped in the end
        most_us = inf if run.is_part or run.options.prefer_few_kernels else HEURISTICS.close * best_us
        search = replace(search, plans=partitioner.compiling(search.plans, Compiler(inner), most_us))
    lesser = _is_lesser(run, program)
    found = EqualPrograms(
        [[_of_given(entry, to_given, lesser) for entry in entries] for entries in search.candidates],
        {to_given(graph): _choices_of_given(choices, to_given, lesser) for graph, choices in search.plans.choices.items()},
        notes=tuple(f"{what}: {note}" for note in search.notes),
    )
    return found, search.plans.partition


def _is_lesser(run: Run, program: Graph) -> bool:
    """Whether another program has fewer operations in products: then its library form is worth a trial, too."""
    return product_flops(program) < product_flops(run.program)


def _of_given(found: Found, to_given: ToGiven, lesser: bool) -> Found:
    """A µGraph of another program as one of the given program, of which the search has proved nothing."""
    it = found.optimized
    optimized = None if it is None else replace(it, graph=to_given(it.graph))
    return Found(to_given(found.graph), found.predicted_us, found.fused or lesser, optimized=optimized)


def _choices_of_given(choices: PlanChoices, to_given: ToGiven, lesser: bool) -> PlanChoices:
    return replace(choices, compose=lambda plan: _of_given(choices.compose(plan), to_given, lesser))


def _summary(
    run: Run,
    found: Substitution,
    extraction: JointExtraction,
    bound_us: float,
    as_written_us: float,
    best_us: float | None,
    seconds: float,
) -> RewriteSummary:
    it, joint = found.rewritten, found.joint
    prologue = it.prologue
    return RewriteSummary(
        laws=dict(found.laws),
        enodes=found.enodes,
        optimal=joint.us <= CLOSE * joint.bound_us,
        extracted_us=joint.us,
        extracted_bound_us=joint.bound_us,
        rounds=extraction.rounds,
        kernels_searched=extraction.looked_up,
        ops=BeforeAfter(len(extraction.program.ops), len(it.graph.ops)),
        folded=it.folded,
        prologue_bytes=0 if prologue is None else sum(kind.nbytes for kind in prologue.output_types),
        prologue_us=0.0 if prologue is None else predict_us(prologue, run.device),
        lower_bound_us=bound_us,
        as_written_us=as_written_us,
        rewritten_us=best_us,
        seconds=seconds,
    )
