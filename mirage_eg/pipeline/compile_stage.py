"""Emitting and compiling what a run has chosen, each µGraph once; a kernel that does not fit is written with fewer stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mirage_eg.backends.triton.compile import KernelCompile, cache_folder, compile_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule, Schedules, fewer_stages, per_kernel
from mirage_eg.backends.triton.warps import with_warps
from mirage_eg.ir.errors import OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.tune import Tuned
from mirage_eg.pipeline.run.files import check_writable
from mirage_eg.pipeline.run.records import NOT_WRITTEN, Candidate, CompileRecord
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.stage_records import Watch
from mirage_eg.pipeline.verify_stage import Verified

STAGE = "compile"


def check_cache() -> None:
    """Raise an OptionError unless Triton can keep what it compiles: before the work that ends in it."""
    try:
        check_writable(cache_folder())
    except OptionError as error:
        raise OptionError(f"{error}; Triton keeps its files there: TRITON_CACHE_DIR names another folder") from None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A Triton program and what the compiler said of it."""

    source: str
    schedule: Schedules | None  # that the source was written with
    record: CompileRecord


@dataclass(frozen=True, slots=True)
class Compiler:
    """What compiles µGraphs of one program, as tuned where they were."""

    program: Graph
    target: str
    watch: Watch
    work: Work
    tuned: Mapping[Graph, Tuned] = field(default_factory=dict)
    known: dict[Graph, Compiled] = field(default_factory=dict)

    def compile(self, graphs: Sequence[Graph]) -> list[Compiled]:
        """The program of each µGraph, compiled."""
        if new := [graph for graph in dict.fromkeys(graphs) if graph not in self.known]:
            with self.watch.stage(STAGE):
                self._compile(new)
        return [self.known[graph] for graph in graphs]

    def _compile(self, new: Sequence[Graph]) -> None:
        import triton.compiler  # noqa: F401 (so that the first µGraph takes no longer than others)

        variants = [self.tuned[graph].variant if graph in self.tuned else None for graph in new]
        items = [(graph, it and (it.source, it.schedule)) for graph, it in zip(new, variants, strict=True)]
        ok = 0

        def progress(done: int, made: Compiled) -> None:
            nonlocal ok
            ok += made.record.ok
            self.watch.observer(STAGE, done, len(new), f"{ok} compiled")

        made = self.work.run(STAGE, _compile, (self.program, self.target), items, progress)
        self.known.update(zip(new, made, strict=True))

    def candidates(self, verified: Verified) -> list[Candidate]:
        """What was verified, with its program."""
        candidates = []
        for (entry, verdict, check), made in zip(
            verified.kept, self.compile([entry.graph for entry, _, _ in verified.kept]), strict=True
        ):
            graph, measured = entry.graph, None
            if graph in self.tuned:
                measured = self.tuned[graph].us
                graph = with_warps(graph, [schedule.num_warps for schedule in self.tuned[graph].variant.schedule])
            proved = "proved" in verdict.evidence
            candidates.append(
                Candidate(
                    graph=graph,
                    source=made.source,
                    schedule=made.schedule,
                    predicted_us=entry.predicted_us,
                    measured_us=measured,
                    verdict=verdict,
                    float_check=check,
                    compile=made.record,
                    proved=proved,
                    fused=entry.fused,
                )
            )
        return candidates


def _compile(common: tuple[Graph, str], items: Sequence[tuple[Graph, tuple[str, Schedules] | None]]) -> Iterator[Compiled]:
    program, target = common
    for graph, tuned in items:
        if tuned is not None:
            yield Compiled(*tuned, CompileRecord(target, tuple(compile_source(tuned[0], target))))
        else:
            yield _written(program, graph, target)


_DEFAULT = Schedule()


def _written(program: Graph, graph: Graph, target: str) -> Compiled:
    try:
        return fitting(program, graph, target)
    except UnsupportedError as error:
        if not any(item.op == "block" for item in graph.nodes):
            raise
        failed = KernelCompile("all", target, False, None, None, None, str(error), 0.0)
        return Compiled(f"{NOT_WRITTEN}: {error}\n", None, CompileRecord(target, (failed,)))


def fitting(program: Graph, graph: Graph, target: str, schedule: Schedule | Schedules = _DEFAULT) -> Compiled:
    """`graph` as a Triton program, with as many stages of `schedule` as fit.

    Raises:
        UnsupportedError: it cannot be written.
    """
    schedules = per_kernel(schedule, len(graph.blocks))
    while True:
        source = emit(graph, program=program, schedule=schedules)
        records = compile_source(source, target)
        fewer = fewer_stages(schedules, [record.wants_fewer_stages for record in records])
        if fewer is None:
            return Compiled(source, schedules, CompileRecord(target, tuple(records)))
        schedules = fewer
