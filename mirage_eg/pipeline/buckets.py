"""A program with named dims: one search, then a µGraph for each bucket of sizes, one text of kernels a bucket.

The structures of the search are instantiated at the end of a bucket, without a search. The fastest µGraph on a GPU, else the
cheapest by the cost model, that compiles and is verified for all sizes of the bucket serves it; the library form competes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from time import perf_counter

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.measure.timing import time_source
from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.compile import compile_source
from mirage_eg.backends.triton.schedule import Schedule, fewer_stages, per_kernel
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.errors import OptionError, TiedToSizeError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim, SizeRange
from mirage_eg.optimizer.heuristics import EFFORT
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.bucket_ranges import largest_sizes, ranges_between, searched_sizes, timed_shapes
from mirage_eg.pipeline.compile_stage import Compiled
from mirage_eg.pipeline.found import Found, Lowered, Tuned, lower
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.optimize import optimize, tune_known
from mirage_eg.pipeline.other_sizes import SizedForms, instantiation_task, is_plan_of, plan_at, plan_limits, primitive_form
from mirage_eg.pipeline.run.cache_lookup import for_this_machine
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Candidate, CompileRecord, Result
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.pipeline.search_stage import is_fused
from mirage_eg.search.partition.compose import compose
from mirage_eg.search.partition.kernel_plan import KernelPlan
from mirage_eg.search.partition.known_segments import plans_of_known
from mirage_eg.verify.all_sizes import RANDOM_SIZES, SizesVerdict, verify_sizes
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.verdict import FloatCheck, Observer

Ranges = Mapping[str, SizeRange]
Sizes = Mapping[str, int]

_MOST = 64  # buckets
_SECONDS = 30.0  # of tuning for each bucket, whose candidates are timed at two sizes
_TIMED = 4  # µGraphs of a bucket that are timed where none is tuned
_TRIED = 4  # µGraphs of a bucket that are written and verified, until one is right


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
        """Whether the sizes are in the bucket."""
        return all(values.least <= sizes[name] <= values.largest for name, values in self.ranges.items())


@dataclass(frozen=True)
class SizedResult:
    """The buckets of a program in the order of their sizes, and the report of the one search."""

    program: Graph
    dims: dict[str, Dim]
    device: Device
    buckets: tuple[Bucket, ...]
    report: RunReport


def optimize_sizes(
    name: str,
    program: Graph,
    options: Options,
    sizes: Sequence[Sizes] = (),
    observer: Observer | None = None,
) -> SizedResult:
    """Superoptimize a program with named dims. `sizes` end buckets; without them the ends are `TOPS`.

    Raises:
        OptionError: a size of an unknown name, or too many buckets.
        GraphError: a size outside the range of its dim.
    """
    dims = dims_of(program)
    tops = largest_sizes(dims, sizes)
    if (count := prod(map(len, tops.values()))) > _MOST:
        raise OptionError(f"sizes: got {count} buckets, wanted at most {_MOST}; try: fewer sizes")
    searched = searched_sizes(dims, tops)
    options, on_gpu = for_this_machine(options)
    tuning = Tuning(replace(EFFORT, seconds=_SECONDS)) if on_gpu else None
    result = optimize(name, at_sizes(program, searched), options, observer)
    maker = BucketMaker(program, result, options, searched)
    intervals = [[(dim.name, values) for values in ranges_between(dim, tops[dim.name])] for dim in dims.values()]
    buckets = []
    for number, chosen in enumerate(product(*intervals)):
        buckets.append(maker.make(dict(chosen), tuning))
        if observer:
            observer("buckets", number + 1, prod(map(len, intervals)), buckets[-1].line)
    return SizedResult(program, dims, options.device_record, tuple(buckets), result.report)


def _tuned(size: int) -> int:
    """The size for which a bucket's tiles are chosen: from its largest on, the first that powers of two up to 256 divide."""
    return min(1 << (size - 1).bit_length(), -(-size // 256) * 256)


class BucketMaker:
    """Makes buckets from the result of one search, whose program was at the sizes `searched`."""

    def __init__(self, program: Graph, result: Result, options: Options, searched: Sizes) -> None:
        self._program, self._result, self._options = program, result, options
        self._device = options.device_record
        self._rulebook = load_rules(
            "indexed",
            options.rules,
            options.without if options.domain == "indexed" else (),
            options.undefined_in(program),
        )
        self._task = instantiation_task(self._rulebook, options)
        self._forms = None if result.searched is None else SizedForms(result.searched)
        primitive = self._primitive_form(at_sizes(program, searched))
        self._primitive = None if primitive is None else self._at_hints(searched, primitive)
        plans = [entry.plan for entry in result.candidates if entry.plan is not None]
        # a plan of another form, as of a rewritten program, is not instantiated again
        own = [plan for plan in plans if primitive is not None and is_plan_of(primitive, plan.parts)]
        self._plans = dict.fromkeys([*own, *result.plans])

    def _primitive_form(self, program: Graph) -> Graph | None:
        return primitive_form(expand(program)) if self._forms is None else self._forms.at(program)

    def _at_hints(self, searched: Sizes, primitive: Graph) -> Graph:
        """The primitive form at the sizes at which the program is written, which no other extent has; else `primitive`."""
        try:
            at_hints = self._primitive_form(self._program)
            return at_hints if at_hints is not None and at_sizes(at_hints, searched) == primitive else primitive
        except UnsupportedError:
            return primitive

    def make(self, ranges: dict[str, SizeRange], tuning: Tuning | None = None) -> Bucket:
        """The bucket of these sizes; with `tuning` the fastest on the GPU here at the sizes for which its tiles are chosen.

        Raises:
            UnsupportedError: no µGraph is right at all of them, not even the library form.
        """
        begin = perf_counter()
        largest = {name: values.largest for name, values in ranges.items()}
        tuned = {name: _tuned(size) for name, size in largest.items()}
        found = sorted(self._candidates(tuned, largest), key=lambda entry: entry.predicted_us)
        candidates: list[Found | Lowered] = [*found]
        if tuning is not None:
            candidates = [*(self._measured(tuned, ranges, tuning) or self._ranked(found, ranges)), *found]
        seconds = perf_counter() - begin
        library = [entry for entry in candidates if not entry.fused]
        reasons: list[str] = []
        for entry in (*[entry for entry in candidates if entry.fused or entry is candidates[0]][:_TRIED], *library):
            try:
                lowered = self._lowered(entry)
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
            except UnsupportedError as error:
                reasons.append(str(error))
                continue
            if not (made.record.ok and verdict.likely):
                reasons.append(made.record.error or verdict.text)
                continue
            check = self._float_check(lowered.graph, verdict)
            if check.ok or not entry.fused:
                return Bucket(ranges, tuned, self._candidate(lowered, made, verdict, check), verdict, seconds)
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
            result = tune_known(name, program, self._options, self._result.known, sized)
        except UnsupportedError:  # an op is tied to the size
            return []
        return [
            Lowered(Found(it.graph, it.predicted_us, it.fused), it.graph, tuned=Tuned(it.source, it.schedule, it.measured_us))
            for it in result.candidates
            if it.schedule is not None
        ]

    def _lowered(self, entry: Found | Lowered) -> Lowered:
        return entry if isinstance(entry, Lowered) else lower(entry, self._device)

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
            timed.append((prod(us), replace(lowered, tuned=Tuned(made.source, made.schedule, us[0]))))
        return [entry for _, entry in sorted(timed, key=lambda pair: pair[0])]

    def _float_check(self, graph: Graph, verdict: SizesVerdict) -> FloatCheck:
        """The float check at the largest sizes that were tested."""
        sizes = dict(max(verdict.tested, key=lambda each: prod(size for _, size in each)))
        return float_check(at_sizes(self._program, sizes), at_sizes(graph, sizes), self._options.seed)

    def _candidates(self, tuned: Sizes, largest: Sizes) -> Iterator[Found]:
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

        They are those of the best plans, and of other plans through the segments that were searched.
        """
        for plan in self._plans:
            yield from self._planned(tuned, plan)
        for entry in self._result.candidates:
            if entry.plan not in self._plans and (graph := self._as_searched(entry, tuned)) is not None:
                yield graph, entry.fused
        if self._primitive is not None and self._result.known:
            yield from self._planned(tuned)

    def _as_searched(self, entry: Candidate, tuned: Sizes) -> Graph | None:
        """The µGraph with the tiles that it has."""
        try:
            return at_sizes(entry.graph, tuned)
        except TiedToSizeError:
            return None

    def _planned(self, tuned: Sizes, plan: KernelPlan | None = None) -> list[tuple[Graph, bool]]:
        """The µGraph of a plan with tiles for these sizes, else the µGraphs of all plans through known segments."""
        assert self._primitive is not None
        try:
            program = at_sizes(self._primitive, tuned)
            large = at_sizes(self._primitive, {name: max(2, size) for name, size in tuned.items()})
            if self._forms is not None:
                large = self._forms.large(large) or large
            if plan is None:
                plans = [*plans_of_known(self._task, program, large, self._result.known, plan_limits(self._options))]
            else:
                plans = [it for it in [plan_at(self._task, plan, program, large)] if it is not None]
            return [(compose(program, it.parts), is_fused(program, it)) for it in plans]
        except UnsupportedError:  # an op is tied to the size
            return []

    def _written(self, entry: Lowered, ranges: Ranges) -> Compiled:
        """The source of a µGraph for all sizes, and the compiler's record."""
        target = self._device.target
        schedules = entry.tuned.schedule if entry.tuned else per_kernel(Schedule(), len(entry.graph.blocks))
        while True:
            source = emit_for_sizes(entry.graph, ranges, program=self._program, schedule=schedules)
            records = tuple(compile_source(source, target))
            fewer = fewer_stages(schedules, [record.wants_fewer_stages for record in records])
            if fewer is None:
                return Compiled(source, schedules, CompileRecord(target, records))
            schedules = fewer

    def _candidate(self, lowered: Lowered, made: Compiled, verdict: SizesVerdict, check: FloatCheck) -> Candidate:
        us = None if lowered.tuned is None else lowered.tuned.us
        written = made.source, made.schedule, made.record
        return Candidate(
            lowered.graph, lowered.found.predicted_us, lowered.fused, *written, verdict.of_last_test, check, measured_us=us
        )


__all__ = [
    "Bucket",
    "BucketMaker",
    "SizedResult",
    "optimize_sizes",
]
