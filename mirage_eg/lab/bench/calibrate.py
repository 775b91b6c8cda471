"""Fits the cost model's device constants to measured kernels, and tells how well predictions rank them.

Lines of measurements have a µGraph in JSON once, and its times under schedules; the fastest counts, since the model predicts
the best schedule. The fit minimizes the mean of |log(predicted / measured)| by coordinate descent, each constant within
physical bounds; the constants are few, against overfitting.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.rank_correlation import spearman
from mirage_eg.backends.cost.roofline_model import KernelWork, kernel_us, kernel_works
from mirage_eg.ir.errors import JsonError, MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.json_text import parse_json
from mirage_eg.ir.serialize import from_data

# Each constant, and the range of factors on its initial value: narrow for constants that were measured.
FITTED = {
    "memory_bandwidth": (0.6, 2.0),
    "cache_bandwidth": (0.3, 3.0),
    "matrix_rate": (0.2, 1.2),
    "arithmetic_rate": (0.05, 2.0),
    "function_rate": (0.05, 4.0),
    "launch_us": (0.8, 2.5),
    "iteration_us": (0.1, 10.0),
    "step_us": (0.1, 4.0),
    "hit_us": (0.1, 4.0),
    "bandwidth_share": (0.4, 4.0),
    "stage_bandwidth": (0.02, 5.0),
    "library_elementwise": (0.98, 3.0),  # no less than a launch
    "library_reduction": (0.35, 3.0),
    "library_product": (0.6, 3.0),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A µGraph with the time of its fastest schedule in microseconds."""

    workload: str
    graph: Graph
    kernels: tuple[KernelWork, ...]
    us: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of predictions with measurements: Spearman's rank correlation (None for fewer than three), and the geometric
    mean of the factor between them."""

    workload: str
    count: int
    correlation: float | None
    factor: float


def read_lines(paths: Sequence[Path]) -> list[Measured]:
    """The measured µGraphs of files of JSON lines.

    Raises:
        OptionError: a file that cannot be read, a line that is no JSON or no measurement; the message names it.
        MirageError: no line has both a µGraph and a time.
    """
    graphs: dict[str, Graph] = {}
    times: dict[tuple[str, str], float] = {}
    for path in paths:
        for where, line in _lines(path):
            key, workload = _key(line, graphs, where), _workload(line)
            us = line["ours"].get("warm_us") if isinstance(line.get("ours"), dict) else line.get("us")
            if us is None or key is None:
                continue
            if not isinstance(us, int | float) or isinstance(us, bool) or not 0 < us < float("inf"):
                raise OptionError(f"{where}: got us = {us!r}, wanted microseconds above 0")
            times[workload, key] = min(us, times.get((workload, key), us))
    measured = [
        Measured(workload, graphs[key], kernel_works(graphs[key]), us) for (workload, key), us in times.items() if key in graphs
    ]
    if not measured:
        listed = ", ".join(map(str, paths))
        raise MirageError(
            f"{listed}: no line has a µGraph with a time; wanted lines as `mirage-eg bench gpu` writes into measurements.jsonl"
        )
    return measured


def _lines(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = parse_json(line, infinities=True)
        except JsonError as error:
            raise OptionError(f"{where}: got no JSON ({error}); wanted one object a line") from None
        if not isinstance(record, dict):
            raise OptionError(f"{where}: got {type(record).__name__}, wanted an object")
        yield where, record


def _key(line: dict[str, Any], graphs: dict[str, Graph], where: str) -> str | None:
    """The name of the line's µGraph; its JSON, if the line has it, is added to `graphs`."""
    ours = line.get("ours")
    data = ours.get("graph") if isinstance(ours, dict) else line.get("graph")
    name = line.get("mugraph")
    if data is None:
        return name if isinstance(name, str) else None
    key = name if isinstance(name, str) else json.dumps(data, sort_keys=True)
    if key not in graphs:
        try:
            graphs[key] = from_data(data)
        except MirageError as error:
            raise OptionError(f"{where}: {error}") from None
    return key


def _workload(line: dict[str, Any]) -> str:
    name, batch = line.get("workload"), line.get("batch")
    return f"{name} b{batch}" if batch is not None else str(name)


def predicted(measured: Measured, device: Device) -> float:
    """Microseconds by the cost model."""
    return sum(kernel_us(kernel, device) for kernel in measured.kernels)


def fit(lines: Sequence[Measured], device: Device, on_round: Callable[[int, float], None] = lambda done, loss: None) -> Device:
    """The device with constants that fit the lines; each workload weighs the same."""
    start, best = device, device
    weights = {name: 1.0 / sum(line.workload == name for line in lines) for name in {line.workload for line in lines}}

    def loss(trial: Device) -> float:
        off = sum(weights[line.workload] * abs(log(predicted(line, trial) / line.us)) for line in lines)
        return off / len(weights)

    least, width = loss(device), 1.6
    for done in range(40):
        improved = False
        for name, (low, high) in FITTED.items():
            for factor in (width, 1 / width):
                value = getattr(best, name) * factor
                first = getattr(start, name)
                if not low * first <= value <= high * first:
                    continue
                trial = replace(best, **{name: value})
                if (now := loss(trial)) < least - 1e-6:
                    best, least, improved = trial, now, True
        on_round(done, exp(least))
        if not improved:
            width = 1 + (width - 1) / 2
            if width < 1.01:
                break
    return best


def agreements(lines: Sequence[Measured], device: Device) -> list[Agreement]:
    """The agreement of each workload, and of all lines together."""
    names = sorted({line.workload for line in lines})
    groups = [(name, [line for line in lines if line.workload == name]) for name in names]
    return [_agreement(name, group, device) for name, group in [*groups, ("all", list(lines))]]


def _agreement(name: str, lines: Sequence[Measured], device: Device) -> Agreement:
    guesses = [predicted(line, device) for line in lines]
    off = [abs(log(guess / line.us)) for guess, line in zip(guesses, lines, strict=True)]
    return Agreement(name, len(lines), spearman(guesses, [line.us for line in lines]), exp(sum(off) / len(off)))
