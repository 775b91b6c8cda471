"""Emitting and compiling what a run has chosen, each µGraph once; a kernel that does not fit is written with fewer stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from time import perf_counter

from mirage_eg.backends.triton.all_sizes import Ranges, emit_for_sizes
from mirage_eg.backends.triton.bounded_ptxas import SECONDS, at_most
from mirage_eg.backends.triton.compile import KernelCompile, cache_folder, compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule, Schedules, fewer_stages, per_kernel
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.found import Lowered, TunedSource
from mirage_eg.pipeline.run.output_files import check_writable
from mirage_eg.pipeline.run.result import NOT_WRITTEN, Candidate, CompileRecord
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.verify.verdict import FloatCheck, Verdict

STAGE = "compile"
_FEWEST_SECONDS = 5  # for one kernel, where the budget is over


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


@dataclass(slots=True)
class Compiler:
    """Compiles µGraphs of one run, each program once: as tuned where they were, else with the schedule that fits."""

    run: Run
    memo: dict[tuple[Graph, TunedSource | None], Compiled] = field(default_factory=dict)
    seconds: float = 0.0  # spent so far

    @property
    def seconds_left(self) -> float:
        """What is left of the budget; infinite without one."""
        return (self.run.options.budget or inf) - self.seconds

    def compile(self, mugraphs: Sequence[Lowered]) -> list[Compiled]:
        """The programs of µGraphs with their compile records."""
        keys = [(entry.graph, entry.tuned) for entry in mugraphs]
        new = [key for key in dict.fromkeys(keys) if key not in self.memo]
        if new:
            begin = perf_counter()
            with self.run.watch.stage(STAGE):
                self._compile(new)
            self.seconds += perf_counter() - begin
        return [self.memo[key] for key in keys]

    def _compile(self, new: Sequence[tuple[Graph, TunedSource | None]]) -> None:
        import triton.compiler  # noqa: F401 (so that the first µGraph takes no longer than others)

        items = [(graph, None if tuned is None else (tuned.source, tuned.schedule)) for graph, tuned in new]
        ok = 0

        def progress(done: int, compiled: Compiled) -> None:
            nonlocal ok
            ok += compiled.record.ok
            self.run.watch.observer(STAGE, done, len(new), f"{ok} compiled")

        most = max(_FEWEST_SECONDS, floor(min(SECONDS, self.seconds_left)))  # of the CPU, for ptxas
        compiled = self.run.work.run(STAGE, _compile, (self.run.program, self.run.device.target, most), items, progress)
        self.memo.update(zip(new, compiled, strict=True))


def _compile(common: tuple[Graph, str, int], items: Sequence[tuple[Graph, tuple[str, Schedules] | None]]) -> Iterator[Compiled]:
    program, target, most = common
    for graph, tuned in items:
        with at_most(most):
            if tuned is not None:
                compiled = Compiled(*tuned, CompileRecord(target, tuple(compile_source(tuned[0], target))))
            else:
                compiled = _written(program, graph, target)
        yield compiled


_DEFAULT = Schedule()


def _written(program: Graph, graph: Graph, target: str) -> Compiled:
    try:
        return fitting(program, graph, target)
    except UnsupportedError as error:
        if not any(item.op == "block" for item in graph.nodes):
            raise
        failed = KernelCompile("all", target, False, None, None, None, str(error), 0.0)
        return Compiled(f"{NOT_WRITTEN}: {error}\n", None, CompileRecord(target, (failed,)))


def fitting(
    program: Graph, graph: Graph, target: str, schedule: Schedule | Schedules = _DEFAULT, ranges: Ranges | None = None
) -> Compiled:
    """`graph` as a Triton program, for all sizes in `ranges` of its named dims, with as many stages of `schedule` as fit.

    Raises:
        UnsupportedError: it cannot be written.
    """
    schedules = per_kernel(schedule, len(graph.blocks))
    while True:
        if ranges is None:
            source = emit(graph, program=program, schedule=schedules)
        else:
            source = emit_for_sizes(graph, ranges, program=program, schedule=schedules)
        records = compile_source(source, target)
        fewer = fewer_stages(schedules, [record.wants_fewer_stages for record in records])
        if fewer is None:
            return Compiled(source, schedules, CompileRecord(target, tuple(records)))
        schedules = fewer
