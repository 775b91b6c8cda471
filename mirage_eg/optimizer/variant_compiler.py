"""Candidates of tuning from jobs to sources that compile: each kernel is compiled once, and all of them side by side.

A candidate has several kernels, most of which others have, too: a process for each kernel, not for each candidate, has the
first candidates sooner and compiles nothing twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.triton.all_sizes import Ranges, emit_for_sizes
from mirage_eg.backends.triton.bounded_ptxas import SECONDS
from mirage_eg.backends.triton.compile import KernelCompile, by_kernel, compile_kernel, compiled_texts, loaded
from mirage_eg.backends.triton.schedule import fewer_stages
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.optimizer.tuning_space import Job, Variant

# (function, items, until when) gives results with the places of their items, as they are finished
Map = Callable[[Callable[[Any], Any], Sequence[Any], Callable[[], float]], Iterable[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """A job as source, with the name and the key of each kernel, or the problem."""

    source: str
    kernels: tuple[tuple[str, str], ...]
    problem: str | None


@dataclass(slots=True)
class VariantCompiler:
    """Compiles candidates of one program for one device; `parallel` maps in processes.

    With `ranges` a source serves all these sizes. A kernel has so many `seconds` of the processor for ptxas.
    """

    program: Graph
    device: Device
    parallel: Map
    ranges: Ranges = field(default_factory=dict)
    seconds: int = SECONDS
    graphs: dict[Graph, Graph] = field(default_factory=dict)  # µGraphs as they are lowered
    compiled: dict[str, KernelCompile] = field(default_factory=dict)  # by key

    def optimized(self, graph: Graph) -> Graph:
        """The µGraph as it is lowered."""
        if graph not in self.graphs:
            self.graphs[graph] = optimize_mugraph(graph, self.device).graph
        return self.graphs[graph]

    def variants(self, jobs: Sequence[Job], until: Callable[[], float]) -> Iterator[Variant]:
        """Each job once its kernels are compiled; jobs that do not fit come last, with fewer stages.

        They end when `perf_counter` passes `until`.
        """
        while jobs:
            smaller: list[Job] = []
            items = [(self.program, self.optimized(job.graph), job, self.device.target, self.ranges) for job in jobs]
            waiting: dict[int, WrittenJob] = dict(sorted(self.parallel(write_job, items, until)))
            for _ in self._compiling(waiting.values(), until):
                for place in [place for place, entry in waiting.items() if self._is_compiled(entry)]:
                    job, entry = jobs[place], waiting.pop(place)
                    records = [self.compiled[key] for _, key in entry.kernels]
                    failed = next((record for record in records if not record.ok), None)
                    problem = f"{failed.kernel}: {failed.error}" if failed else entry.problem
                    fewer = failed and fewer_stages(job.schedule, [record.wants_fewer_stages for record in by_kernel(records)])
                    if fewer:
                        smaller.append(replace(job, schedule=fewer))
                    else:
                        yield Variant(job.graph, job.structure, job.schedule, entry.source, problem)
            if waiting:  # the time is over
                return
            jobs = smaller

    def _is_compiled(self, entry: WrittenJob) -> bool:
        return all(key in self.compiled for _, key in entry.kernels)

    def _compiling(self, entries: Iterable[WrittenJob], until: Callable[[], float]) -> Iterator[None]:
        """Compile the kernels that are new; yields once before, and after each of them."""
        kernels = {key: (entry.source, name) for entry in entries for name, key in entry.kernels if key not in self.compiled}
        keys, work = [*kernels], [(source, name, self.device.target, self.seconds) for source, name in kernels.values()]
        yield
        for place, record in self.parallel(compile_kernel_of, work, until):
            self.compiled[keys[place]] = record
            yield


def write_job(item: tuple[Graph, Graph, Job, str, Ranges]) -> WrittenJob:
    """The source for (program, optimized µGraph, job, target, ranges of sizes), and its kernels for Triton."""
    program, optimized, job, target, ranges = item
    try:
        source = emit_for_sizes(optimized, ranges, program=program, schedule=job.schedule)
        with loaded(source) as module:
            kernels = tuple((name, text.key) for name, text in compiled_texts(module, target).items())
    except MirageError as error:
        return WrittenJob("", (), str(error))
    return WrittenJob(source, kernels, None)


def compile_kernel_of(item: tuple[str, str, str, int]) -> KernelCompile:
    """Compile for (source, name of a kernel, target, seconds of the processor for ptxas)."""
    return compile_kernel(*item)
