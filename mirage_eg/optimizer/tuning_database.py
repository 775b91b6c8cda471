"""The tuning database: what candidates took on a card, on disk, so that no later run measures them again.

A card has one file, whose name is the card's. A line is a measurement (`optimizer.measurement`: structure, tiling, schedule,
times) with the versions that it holds for; a candidate is found again by its source, which these determine. Processes append
whole lines and need no locks. A line that cannot be read is left out: nothing here can make a run fail.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirage_eg.backends.measure.timing import Outcome
from mirage_eg.ir.errors import JsonError
from mirage_eg.ir.json_text import parse_json
from mirage_eg.optimizer.measurement import JsonLine, Measurement, fingerprint

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class TuningDatabase:
    """The measurements of one card under the given versions; `workload` names the program that is tuned."""

    path: Path
    device: str
    versions: Mapping[str, Any]
    workload: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by fingerprints of sources
    graphs: set[str] = field(default_factory=set)  # µGraphs of which a line has the JSON

    def __post_init__(self) -> None:
        for line in read_lines(self.path):
            if line.get("graph"):
                self.graphs.add(str(line.get("mugraph")))
            if line["versions"] == self.versions and "kernels_us" in line:  # kernels were not always timed
                outcome = Outcome(line["us"], line["error"], line["problem"], tuple(line["kernels_us"]))
                self.outcomes[line["source"]] = outcome

    def find(self, source: str) -> Outcome | None:
        """The outcome of a source that was timed, or whose results were wrong."""
        return self.outcomes.get(fingerprint(source))

    def keep(self, measurement: Measurement) -> None:
        """Append a measurement, unless it is known, or the candidate was not run to its end."""
        if measurement.stage == "final" or measurement.outcome.error is None or measurement.source in self.outcomes:
            return
        self.outcomes[measurement.source] = measurement.outcome
        line = measurement.json() | {"workload": self.workload, "device": self.device, "versions": dict(self.versions)}
        if measurement.mugraph in self.graphs:
            line.pop("graph", None)
        elif measurement.graph:
            self.graphs.add(measurement.mugraph)
        try:
            append(self.path, [line])
        except OSError as error:
            _LOGGER.warning("the measurement is not kept: %s: %s", self.path, error.strerror or error)


def file_of(folder: Path, device: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', device) or '_'}.jsonl"


def append(path: Path, lines: Iterable[JsonLine]) -> None:
    """Append lines, in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def read_lines(path: Path) -> Iterator[JsonLine]:
    """The lines that are measurements; others are left out with a warning."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return
    except OSError as error:
        _LOGGER.warning("no measurements are read: %s: %s", path, error.strerror or error)
        return
    for number, text in enumerate(texts, 1):
        if not text:
            continue
        try:
            line = parse_json(text, infinities=True)
        except JsonError:
            line = None
        if is_measurement(line):
            yield line
        else:
            _LOGGER.warning("%s:%d is no measurement, and left out", path, number)


def is_measurement(line: Any) -> bool:
    """Whether a value of JSON is a line of a tuning database."""
    return (
        isinstance(line, dict)
        and all(isinstance(line.get(name), str) for name in ("source", "device", "workload", "mugraph"))
        and isinstance(line.get("versions"), dict)
        and all(line.get(name, ()) is None or isinstance(line.get(name), int | float) for name in ("us", "error"))
        and (line.get("us") is None or 0 < line["us"] < float("inf"))
        and isinstance(line.get("kernels_us", []), list)
        and all(isinstance(us, int | float) and 0 < us < float("inf") for us in line.get("kernels_us", []))
        and (line.get("problem", ()) is None or isinstance(line.get("problem"), str))
    )
