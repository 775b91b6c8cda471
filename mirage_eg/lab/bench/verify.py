"""`bench verify`: the time of verdicts, on small instances and at real size, stage by stage."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from time import perf_counter
from typing import Any

import numpy as np

from mirage_eg.backends.cost.devices import device_for
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.array_module import evaluator_device, usable_cupy
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.lab.bench.search_programs import SearchProgram
from mirage_eg.pipeline.run.peak_memory import peak_mib
from mirage_eg.search.instantiate.instantiate import instances, small_instance
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.structure_search import search
from mirage_eg.verify.float_check import float_checks
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import Reference

BATCH = 8  # candidates that are checked together at real size
LEAST_SECONDS = 0.3  # of repetitions of a stage: single runs of milliseconds vary with the load of the machine


@dataclass(frozen=True, slots=True)
class VerificationSpeed:
    """One workload at one batch size; seconds are medians of the repetitions, after one warm-up run of each stage."""

    workload: str
    batch: int
    device: str
    small_per_second: float  # verdicts on small instances of the workload's structures
    inputs_seconds: float  # random inputs of all trials and the program on them, once for all candidates
    real_per_second: (
        float  # verdicts on the cheapest µGraphs at real size, checked together, including the random inputs of large programs
    )
    field_seconds: float  # one candidate on two trials, float64 included if the field has other laws than numbers
    float_seconds: float  # one float check
    prove_seconds: float  # one proof, with an empty memo
    proved: bool
    peak_mib: int  # of the process so far, on the CPU
    versions: str


def measure(part: SearchProgram, batch: int, gpu: bool, repetitions: int) -> VerificationSpeed:
    """Time the verification of the cheapest µGraphs of the search, and of the small instances of all structures."""
    xp, device, wait = _arrays(gpu)
    program = part.program
    small, candidates = _candidates(part)
    candidate = candidates[0]
    references = {graph: Reference(graph, xp=xp) for graph, _ in small}

    def all_small() -> None:
        for graph, example in small:
            _equal(references[graph], example)

    all_small()  # warm-up: tables and random inputs
    seconds = _median(all_small, wait, repetitions)

    reference = Reference(program, xp=xp)
    start = perf_counter()
    reference.compute_all()
    wait()
    inputs_seconds = perf_counter() - start
    _equal(reference, candidate)
    field = _median(lambda: _equal(reference, candidate), wait, repetitions)
    _all_equal(reference, candidates)
    together = _median(lambda: _all_equal(reference, candidates), wait, repetitions)
    float_checks(reference, [candidate])
    floats = _median(lambda: float_checks(reference, [candidate]), wait, repetitions)
    start = perf_counter()
    proof = Prover(program).prove(candidate)
    proving = perf_counter() - start
    versions = f"numpy {np.__version__}, egglog {metadata.version('egglog')}" + (f", cupy {xp.__version__}" if gpu else "")
    rate = len(candidates) / together
    return VerificationSpeed(
        part.name,
        batch,
        device,
        len(small) / seconds,
        inputs_seconds,
        rate,
        field,
        floats,
        proving,
        proof.proved,
        peak_mib(),
        versions,
    )


def _arrays(gpu: bool) -> tuple[Any, str, Callable[[], None]]:
    """The array module, the name of its device, and a function that waits for the device."""
    if not gpu:
        return np, platform.processor() or platform.machine(), lambda: None
    cupy = usable_cupy()
    if cupy is None:
        raise OptionError(
            "--gpu: got no GPU that CuPy can use; install mirage-eg[cuda12] or mirage-eg[cuda13], or leave --gpu out: CPU"
        )
    return cupy, evaluator_device(cupy), cupy.cuda.get_current_stream().synchronize


def _candidates(part: SearchProgram) -> tuple[list[tuple[Graph, Graph]], list[Graph]]:
    """The small instances of all structures, each with its small program, and the cheapest µGraphs at real size."""
    named, axes = part.named, part.axes
    structures = search(named.program, axes, load_rules("indexed")).structures
    device = device_for("sm_90")
    limits = TileLimits(shared_memory=device.shared_memory, target=device.target)
    graphs = [named.joined(graph) for structure in structures for graph in instances(structure, named.program, axes, limits)]
    best = sorted(graphs, key=lambda graph: predict_us(graph, device))[:BATCH]
    return [small_instance(structure, named.program, axes) for structure in structures], best or [part.program]


def _equal(reference: Reference, candidate: Graph) -> None:
    _all_equal(reference, [candidate])


def _all_equal(reference: Reference, candidates: Sequence[Graph]) -> None:
    for verdict, _ in reference.check_all(candidates):
        if not verdict.equal:
            raise MirageError(f"got a µGraph of the search that is {verdict.verdict}: {verdict.difference}")


def _median(work: Callable[[], object], wait: Callable[[], None], repetitions: int) -> float:
    """The median seconds of at least `repetitions` runs, which together take at least LEAST_SECONDS."""
    seconds: list[float] = []
    while len(seconds) < repetitions or sum(seconds) < LEAST_SECONDS:
        start = perf_counter()
        work()
        wait()
        seconds.append(perf_counter() - start)
    return float(np.median(seconds))
