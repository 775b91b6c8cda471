"""Emitting and compiling what a run has chosen, each µGraph once; a kernel that does not fit is written with fewer stages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from mirage_eg.backends.cost.compiled_spills import spill_us
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.triton.all_sizes import Ranges, emit_for_sizes
from mirage_eg.backends.triton.bounded_compile import compile_within, compiler_process, not_compiled
from mirage_eg.backends.triton.compile import cache_folder
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule, Schedules, fewer_stages, per_kernel
from mirage_eg.backends.triton.stages import usual_schedules
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.found import Lowered, TunedSource
from mirage_eg.pipeline.run.output_files import check_writable
from mirage_eg.pipeline.run.result import NOT_WRITTEN, Candidate, CompileRecord
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

STAGE = "compile"
EQUAL_TO_ITSELF = Verdict(Equality.EQUAL, 0, 0, 0, 0, 0.0, "it is the program", 1.0, evidence=())
NO_ERROR = FloatCheck(ok=True, error=0.0, tolerance=0.0, difference=None)


def check_cache() -> None:
    """Raise an OptionError unless Triton can keep what it compiles: before the work that ends in it."""
    try:
        check_writable(cache_folder())
    except OptionError as error:
        raise OptionError(f"{error}; Triton keeps its files there: TRITON_CACHE_DIR names another folder") from None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A Triton program, the schedule that it was written with, and the compiler's record."""

    source: str
    schedule: Schedules | None
    record: CompileRecord


def candidate_of(lowered: Lowered, made: Compiled, verdict: Verdict, float_check: FloatCheck) -> Candidate:
    """A µGraph that is compiled and checked, as a candidate."""
    return Candidate(
        graph=lowered.graph,
        predicted_us=lowered.found.predicted_us,
        fused=lowered.fused,
        source=made.source,
        schedule=made.schedule,
        compile=made.record,
        verdict=verdict,
        float_check=float_check,
        plan=lowered.found.plan,
        measured_us=None if lowered.tuned is None else lowered.tuned.us,
    )


UNWRITTEN = Compiled("", None, CompileRecord("", (), tried=False))


@dataclass(slots=True)
class Compiler:
    """Writes and compiles µGraphs of one run, each program once: as tuned where they were, else with the schedule that fits."""

    run: Run
    memo: dict[tuple[Graph, TunedSource | None], Compiled] = field(default_factory=dict)
    process: Worker = field(default_factory=compiler_process)  # of the thread of the run, which outlives those of compilation

    def compile(self, mugraphs: Sequence[Lowered]) -> list[Compiled]:
        """The programs of µGraphs with their compile records."""
        keys = [(entry.graph, entry.tuned) for entry in mugraphs]
        new = [key for key in dict.fromkeys(keys) if key not in self.memo or not self.memo[key].record.tried]
        if new:
            with self.run.watch.stage(STAGE):
                self._compile(new)
        return [self.memo[key] for key in keys]

    def compile_some(self, mugraphs: Sequence[Lowered], some: Sequence[Lowered]) -> list[Compiled]:
        """The programs of µGraphs, of which `some` are compiled, and others only written."""
        self.compile(some)
        for entry in mugraphs:
            if (key := (entry.graph, entry.tuned)) not in self.memo:
                self.memo[key] = _or_not_written(partial(self._untried, entry.graph), entry.graph, self.run.device.target)
        return [self.memo[entry.graph, entry.tuned] for entry in mugraphs]

    def _untried(self, graph: Graph) -> Compiled:
        schedules = usual_schedules(graph, self.run.device.target)
        source = emit(graph, program=self.run.program, schedule=schedules)
        return Compiled(source, schedules, CompileRecord(self.run.device.target, (), tried=False))

    def library(self, lowered: Lowered) -> Candidate:
        """The program itself as library kernels, where no time is left for a check; it was written, or is not."""
        made = self.memo.get((lowered.graph, None)) or _not_written("the budget was spent", self.run.device.target)
        return candidate_of(lowered, made, EQUAL_TO_ITSELF, NO_ERROR)

    def _compile(self, new: Sequence[tuple[Graph, TunedSource | None]]) -> None:
        import triton.compiler  # noqa: F401 (so that the first µGraph takes no longer than others)

        items = [(graph, None if tuned is None else (tuned.source, tuned.schedule)) for graph, tuned in new]
        ok = 0

        def progress(done: int, compiled: Compiled) -> None:
            nonlocal ok
            ok += compiled.record.ok
            self.run.watch.observer(STAGE, done, len(new), f"{ok} compiled")

        common = self.run.program, self.run.device.target, self.process, self.run.until
        compiled = self.run.work.run(STAGE, _compile, common, items, progress)
        self.memo.update(zip(new, (self._priced(graph, it) for (graph, _), it in zip(new, compiled, strict=True)), strict=True))

    def _priced(self, graph: Graph, made: Compiled) -> Compiled:
        """A µGraph that was compiled, with the time of what its kernels spill."""
        us = spill_us(graph, [kernel.spills for kernel in made.record.kernels], self.run.device)
        return replace(made, record=replace(made.record, spill_us=us))


def _compile(
    common: tuple[Graph, str, Worker, Deadline], items: Sequence[tuple[Graph, tuple[str, Schedules] | None]]
) -> Iterator[Compiled]:
    program, target, process, until = common
    for graph, tuned in items:
        if tuned is not None:
            yield Compiled(*tuned, CompileRecord(target, tuple(compile_within(tuned[0], target, process, until))))
        else:
            yield _or_not_written(partial(fitting, program, graph, target, process, until), graph, target)


def _or_not_written(made: Callable[[], Compiled], graph: Graph, target: str) -> Compiled:
    """A program, or the reason why Triton has no words for its kernels."""
    try:
        return made()
    except UnsupportedError as error:
        if not any(item.op == "block" for item in graph.nodes):
            raise
        return _not_written(str(error), target)


def _not_written(why: str, target: str) -> Compiled:
    return Compiled(f"{NOT_WRITTEN}: {why}\n", None, CompileRecord(target, (not_compiled("all", target, why),)))


def fitting(
    program: Graph,
    graph: Graph,
    target: str,
    process: Worker | None = None,
    until: Deadline = NEVER,
    schedule: Schedule | Schedules | None = None,
    ranges: Ranges | None = None,
) -> Compiled:
    """`graph` as a Triton program, for all sizes in `ranges` of its named dims, with as many stages of `schedule` as fit.

    Raises UnsupportedError: it cannot be written.
    """
    schedules = usual_schedules(graph, target) if schedule is None else per_kernel(schedule, len(graph.blocks))
    while True:
        if ranges is None:
            source = emit(graph, program=program, schedule=schedules)
        else:
            source = emit_for_sizes(graph, ranges, program=program, schedule=schedules)
        records = compile_within(source, target, process or compiler_process(), until)
        fewer = fewer_stages(schedules, [record.wants_fewer_stages for record in records])
        if fewer is None:
            return Compiled(source, schedules, CompileRecord(target, tuple(records)))
        schedules = fewer
