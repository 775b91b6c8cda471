"""The structures of one search serve its program at other sizes: with new tiles, verified again, and without a search.

Other sizes are static ones, or buckets of sizes of named dims with one text of kernels each. Structures name axes, not extents:
those of one size above 1 are those of all. At size 1 a dim has no axis (`ir.axes`). So a search at size 1 serves no other size,
and structures that were found at a larger size serve size 1 as well. Where a kernel of the best plans has no tiles at a size,
the program is partitioned again through all segments that were searched.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from time import perf_counter

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.measure.timing import time_source
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import TiedToSizeError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.bucket_ranges import Ranges, Sizes, timed_shapes
from mirage_eg.pipeline.compile_stage import EQUAL_TO_ITSELF, NO_ERROR, Compiled, candidate_of, fitting
from mirage_eg.pipeline.found import Found, Lowered, TunedSource, lower
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.optimize import optimize_wanted
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import EVERYTHING, Candidate, Result, Wanted
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.pipeline.search_stage import filters_of, is_fused
from mirage_eg.pipeline.sized_forms import SizedForms
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.search.partition.known_segments import plan_again, plans_of_known
from mirage_eg.search.partition.plan_records import KernelPlan, SegmentLimits
from mirage_eg.search.partition.segment_search import Task
from mirage_eg.search.structure_search import SearchLimits
from mirage_eg.transforms.simplify import primitive_form
from mirage_eg.verify.all_sizes import RANDOM_SIZES, SizesVerdict, verify_sizes
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.evidence import combine_evidence
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.verdict import Equality, FloatCheck, Observer

_TIMED = 4  # µGraphs of a bucket that are timed where none is tuned
_TRIED = 4  # µGraphs of a bucket, or other plans at static sizes, that are written and verified, until one is right
MOST_LOST = 2  # ops, which a search may leave to library kernels at other sizes


@dataclass(frozen=True)
class Bucket:
    """The µGraph for all sizes in `ranges`: at the sizes in `tuned`, for which its tiles were chosen, with the source for all.

    `seconds`: of its instantiation.
    """

    ranges: dict[str, SizeRange]
    tuned: dict[str, int]
    candidate: Candidate
    verdict: SizesVerdict
    seconds: float

    @property
    def name(self) -> str:
        """The name of its files."""
        return "_".join(
            f"{name}_{values.least}" + (f"-{values.largest}" if values.largest > values.least else "")
            for name, values in self.ranges.items()
        )

    @property
    def line(self) -> str:
        """The bucket in one line."""
        span = ", ".join(f"{name} {values.least}–{values.largest}" for name, values in self.ranges.items())
        verified = "proved" if self.verdict.proof.proved else "tested"
        known = f"{'predicted' if self.candidate.measured_us is None else 'measured'} {self.candidate.us:.1f} µs"
        return f"{span}: {kernel_summary(self.candidate.graph)}; {known} at the largest; {verified}"

    def holds(self, sizes: Sizes) -> bool:
        return all(values.least <= sizes[name] <= values.largest for name, values in self.ranges.items())


class OtherSizes:
    """What `result`, of a search for the program `searched`, gives for `program`, the same one at other sizes.

    A program with named dims was searched at their `sizes`. Compilation ends `until`.
    """

    def __init__(
        self,
        result: Result,
        searched: Graph,
        program: Graph,
        options: Options,
        sizes: Sizes | None = None,
        until: Deadline = NEVER,
    ) -> None:
        self._until = until
        self._result, self._searched, self._program, self._options = result, searched, program, options
        self._device = options.device_record
        self._forms = SizedForms(searched)
        self._primitive = self._forms.at(program) if sizes is None else self._with_dims(sizes)
        plans = (entry.plan for entry in result.candidates)
        own = [plan for plan in plans if plan is not None and self._primitive is not None and self._forms.has(plan.parts)]
        self._plans = [*dict.fromkeys([*own, *result.plans])]

    def _with_dims(self, sizes: Sizes) -> Graph | None:
        """The primitive form at the sizes at which the program is written, which no other extent has; else at these sizes."""
        primitive = self._form(at_sizes(self._program, sizes))
        try:
            at_hints = None if primitive is None else self._form(self._program)
            return at_hints if at_hints is not None and at_sizes(at_hints, sizes) == primitive else primitive
        except UnsupportedError:
            return primitive

    def _form(self, program: Graph) -> Graph | None:
        form = self._forms.at(program)
        is_own = self._result.searched is None  # the search was for this program
        return primitive_form(expand(program)) if form is None and is_own else form

    @cached_property
    def _rulebook(self) -> Rulebook:
        options = self._options
        without = options.without if options.domain == "indexed" else ()
        return load_rules("indexed", options.rules, without, options.undefined_in(self._program))

    @cached_property
    def _task(self) -> Task:
        """What the choice of tilings depends on."""
        limits = SearchLimits(self._options.max_block_ops)
        return Task(self._rulebook, self._device, limits, filters_of(self._options), self._options.seed)

    @property
    def report(self) -> RunReport:
        return self._result.report

    @property
    def _found_fused(self) -> bool:
        return any(entry.fused for entry in self._result.candidates)

    def plans(self, primitive: Graph, large: Graph) -> Iterator[KernelPlan]:
        """The best plans with tiles for the program, in primitive ops; `large` has it at sizes above 1."""
        for plan in self._plans:
            made = None
            with suppress(UnsupportedError):  # an op is tied to the size
                made = plan_again(self._task, plan, primitive, large)
            if made is not None:
                yield made

    def other_plans(self, primitive: Graph, large: Graph) -> tuple[KernelPlan, ...]:
        """The cheapest plans through all segments that were searched."""
        options = self._options
        segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs)
        limits = replace(HEURISTICS.partition, segments=segments, max_kernels=options.max_kernels)
        return plans_of_known(self._task, primitive, large, self._result.known, limits)

    # static sizes

    def tiled(self, *, proved: bool = False, loops: bool = False) -> Result | None:
        """The best µGraph that compiles and is verified, with `proved` by a proof, and the library form.

        Where tiles fit for some kernels of a plan only, library kernels compute the rest; with `loops` not where a search would
        find loops over axes that were too short for them. None if there is no µGraph, though the search found a fused one: then
        the program needs a search of its own.
        """
        primitive = self._primitive
        large = None if primitive is None else self._forms.large(primitive)
        if primitive is None or large is None:
            return None
        library = library_form(self._program, self._options)
        plans = [*self.plans(primitive, large)]
        if self._result.known and not (loops and self._forms.lacks_loops(primitive)):
            cheaper = (plan for plan in self.other_plans(primitive, large) if plan.us < library.predicted_us)
            plans += [*cheaper][:_TRIED]
        good = self._first_right(primitive, plans, proved)
        if good is None and self._found_fused:
            return None
        return self._result_of((library,) if good is None else (good, library))

    def _first_right(self, primitive: Graph, plans: Sequence[KernelPlan], proved: bool) -> Candidate | None:
        """The cheapest µGraph of these plans that fuses ops, compiles, is right, and `proved` if wanted."""
        reference = BlockReference(self._program, self._options.trials, self._options.seed)
        prover = Prover(self._program, self._rulebook)
        for plan in sorted(plans, key=lambda plan: plan.us):
            if not is_fused(primitive, plan):
                continue
            try:
                graph = compose(primitive, plan.parts)
                lowered = lower(Found(graph, predict_us(graph, self._device), fused=True, plan=plan), self._device)
                made = fitting(self._program, lowered.graph, self._device.target, until=self._until)
            except UnsupportedError:
                continue
            verdict = reference.check(lowered.graph)
            if proved or verdict.verdict is Equality.UNDECIDED:
                verdict = combine_evidence(verdict, "a µGraph at other sizes", prover.prove(lowered.graph))
            if made.record.ok and verdict.equal and (not proved or "proved" in verdict.evidence):
                [check] = reference.float_checks([lowered.graph])
                if check.ok:
                    return candidate_of(lowered, made, verdict, check)
        return None

    def tuned(self, name: str, observer: Observer, tuning: Tuning, wanted: Wanted = EVERYTHING) -> Result | None:
        """The result of tuning on the GPU here, without a search, and what else is `wanted`.

        None if no structure serves it, as at a size of 1 where the search had a larger one; then it needs a search of its own.
        """
        primitive = self._primitive
        if not self._result.known or primitive is None or self._forms.lacks_loops(primitive):
            return None
        if primitive != primitive_form(expand(self._program)) or self._forms.large(primitive) is not primitive:
            return None
        tuned = optimize_wanted(name, self._program, self._options, wanted, observer, tuning, self._result.known)
        if self._found_fused and not any(entry.fused for entry in tuned.candidates):
            return None
        return replace(tuned, searched=self._searched, known=self._result.known)

    def structures(self, *, loops: bool = True) -> Result | None:
        """The structures themselves, which get tiles where the sizes of a bucket are known; the candidate is the library form.

        None if the program needs a search of its own: with `loops` also where it would find loops over axes that were too short
        for them.
        """
        primitive = self._primitive
        if primitive is None or self._forms.large(primitive) is None or (loops and self._forms.lacks_loops(primitive)):
            return None
        fused = {entry.plan for entry in self._result.candidates if entry.fused}
        plans = tuple(plan for plan in self._plans if plan in fused)
        if not plans and self._found_fused:  # of a rewritten program
            return None
        return self._result_of((library_form(self._program, self._options),), plans)

    def _result_of(self, candidates: tuple[Candidate, ...], plans: tuple[KernelPlan, ...] = ()) -> Result:
        given = self._result
        return Result(candidates, given.report, searched=self._searched, known=given.known, plans=plans)

    # buckets of sizes of named dims

    def bucket(self, ranges: Ranges, tuning: Tuning | None = None, until: Deadline = NEVER) -> Bucket:
        """The bucket of these sizes; with `tuning` the fastest on the GPU here at the sizes for which its tiles are chosen.

        It is the library form if the others are not verified `until` then.

        Raises UnsupportedError: no µGraph is right at all of them, not even the library form.
        """
        begin, self._until = perf_counter(), until
        largest = {name: values.largest for name, values in ranges.items()}
        tuned = {name: _tuned_size(size) for name, size in largest.items()}
        found = sorted(self._mugraphs(tuned, largest), key=lambda entry: entry.predicted_us)
        candidates: list[Found | Lowered] = [*found]
        if tuning is not None:
            candidates = [*(self._measured(tuned, ranges, tuning) or self._ranked(found, ranges)), *found]
        seconds = perf_counter() - begin
        library = [entry for entry in candidates if not entry.fused]
        reasons: list[str] = []
        for entry in (*[entry for entry in candidates if entry.fused or entry is candidates[0]][:_TRIED], *library):
            try:
                with ending(until if entry.fused else NEVER):
                    lowered = entry if isinstance(entry, Lowered) else lower(entry, self._device)
                    made = self._written(lowered, ranges)
                    verdict = verify_sizes(
                        self._program,
                        lowered.graph,
                        ranges,
                        trials=self._options.trials,
                        seed=self._options.seed,
                        rulebook=self._rulebook,
                        random_sizes=RANDOM_SIZES,
                    )
            except OverdueError:
                if not entry.fused:  # of the caller
                    raise
                reasons.append("the budget was spent")
                continue
            except UnsupportedError as error:
                reasons.append(str(error))
                continue
            if not (made.record.ok and verdict.likely):
                reasons.append(made.record.error or verdict.text)
                continue
            check = self._float_check(lowered.graph, verdict)
            if check.ok or not entry.fused:
                return Bucket(dict(ranges), tuned, candidate_of(lowered, made, verdict.of_last_test, check), verdict, seconds)
            reasons.append(check.problem or "")
        span = ", ".join(f"{name} from {values.least} to {values.largest}" for name, values in ranges.items())
        raise UnsupportedError(f"no µGraph for {span}: {'; '.join(dict.fromkeys(reasons)) or 'an op is tied to one size'}")

    def _measured(self, tuned: Sizes, ranges: Ranges, tuning: Tuning) -> list[Lowered]:
        """The µGraphs of the search with tiles for the sizes `tuned`, and the library form; their sources are tuned.

        No µGraph at a size of 1: structures are tiled by axes, and a dim of 1 has no axis (`ir.axes`).
        """
        if not self._result.known or 1 in tuned.values():
            return []
        name = " ".join(f"{name}={size}" for name, size in tuned.items())
        try:
            program, sized = at_sizes(self._program, tuned), replace(tuning, ranges=ranges)
            wanted = Wanted(diagnosis=False, proofs=False)
            result = optimize_wanted(name, program, self._options, wanted, None, sized, self._result.known)
        except UnsupportedError:  # an op is tied to the size
            return []
        return [
            Lowered(
                Found(it.graph, it.predicted_us, it.fused), it.graph, tuned=TunedSource(it.source, it.schedule, it.measured_us)
            )
            for it in result.candidates
            if it.schedule is not None
        ]

    def _ranked(self, found: Sequence[Found], ranges: Ranges) -> list[Lowered]:
        """The first µGraphs that are not tuned, by the measured times of their sources for all sizes."""
        timed: list[tuple[float, Lowered]] = []
        for entry in found[:_TIMED]:
            try:
                lowered = lower(entry, self._device)
                made = self._written(lowered, ranges)
            except UnsupportedError:  # its text depends on the size
                continue
            if not made.record.ok or made.schedule is None:
                continue
            us = [time_source(made.source, shapes=each).warm_us for each in timed_shapes(self._program, ranges)]
            timed.append((prod(us), replace(lowered, tuned=TunedSource(made.source, made.schedule, us[0]))))
        return [entry for _, entry in sorted(timed, key=lambda pair: pair[0])]

    def _float_check(self, graph: Graph, verdict: SizesVerdict) -> FloatCheck:
        """The float check at the largest sizes that were tested."""
        sizes = dict(max(verdict.tested, key=lambda each: prod(size for _, size in each)))
        return float_check(at_sizes(self._program, sizes), at_sizes(graph, sizes), self._options.seed)

    def _mugraphs(self, tuned: Sizes, largest: Sizes) -> Iterator[Found]:
        """The µGraphs of the search at other sizes: structures with new tiles, others with the tiles that they have."""
        seen: set[Graph] = set()
        for graph, fused in self._graphs(tuned):
            try:
                us = predict_us(at_sizes(graph, largest), self._device)
            except TiedToSizeError:
                continue
            if graph not in seen:
                seen.add(graph)
                yield Found(graph, us, fused)

    def _graphs(self, tuned: Sizes) -> Iterator[tuple[Graph, bool]]:
        """µGraphs for these sizes, and whether they are fused.

        They are those of the best plans, those of the search without a plan, and those of other plans. The program stays as it
        is written: at other sizes the extents of constants may be those of several dims, or of none.
        """
        sized: tuple[Graph, Graph] | None = None
        if self._primitive is not None:
            with suppress(UnsupportedError):  # an op is tied to the size
                program = at_sizes(self._primitive, tuned)
                large = at_sizes(self._primitive, {name: max(2, size) for name, size in tuned.items()})
                sized = program, self._forms.large(large) or large
        if sized is not None:
            yield from ((compose(sized[0], plan.parts), is_fused(sized[0], plan)) for plan in self.plans(*sized))
        for entry in self._result.candidates:
            if entry.plan not in self._plans:
                with suppress(TiedToSizeError):
                    graph = at_sizes(entry.graph, tuned)
                    yield self._program if graph == at_sizes(self._program, tuned) else graph, entry.fused
        if sized is not None and self._result.known:
            yield from ((compose(sized[0], plan.parts), is_fused(sized[0], plan)) for plan in self.other_plans(*sized))

    def _written(self, entry: Lowered, ranges: Ranges) -> Compiled:
        """The program of a µGraph for all sizes."""
        schedule = entry.tuned.schedule if entry.tuned else Schedule()
        until = self._until if entry.fused else NEVER
        return fitting(self._program, entry.graph, self._device.target, until=until, schedule=schedule, ranges=ranges)


def library_form(program: Graph, options: Options) -> Candidate:
    """The program itself, as library kernels."""
    device = options.device_record
    lowered = Lowered(Found(program, predict_us(program, device), fused=False), program)
    made = fitting(program, program, device.target)
    return candidate_of(lowered, made, EQUAL_TO_ITSELF, NO_ERROR)


def _tuned_size(size: int) -> int:
    """The size for which a bucket's tiles are chosen: from its largest on, the first that powers of two up to 256 divide."""
    return min(1 << (size - 1).bit_length(), -(-size // 256) * 256)


def why_worse(result: Result, earlier: Result) -> str | None:
    """Why a search at the sizes of `result` would find something faster, if so: `earlier` found its structures at others.

    More ops are left to library kernels (products not counted), or the library form is predicted to be faster.
    """
    best, before = (next((it for it in one.candidates if it.fused), None) for one in (result, earlier))
    if best is None or before is None:
        return None
    lost = _unfused(best.graph) - _unfused(before.graph)
    if lost > MOST_LOST:
        return f"the structures found at other sizes leave {lost} more ops to library kernels"
    library = next((it for it in result.candidates if not it.fused), best)
    return None if best.us <= library.us else "the structures found at other sizes are slower than library kernels"


def _unfused(graph: Graph) -> int:
    """Elementwise ops and sums that are kernels of the library."""
    kinds = (Kind.ELEMENTWISE, Kind.REDUCTION)
    return sum(OPS[graph.nodes[position].op].kind in kinds for position in launches_of(graph).computed)
