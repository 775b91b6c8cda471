"""The lines of `bench models`: what was asked of a model, and what was measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirage_eg.ir.errors import OptionError

EAGER, DEFAULT, AUTOTUNED, OURS = "eager", "default", "max-autotune", "ours"
MODES = (EAGER, DEFAULT, AUTOTUNED, OURS)


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A model of a suite and how it is measured; `small` ones are compared only.

    `modes` are eager, Inductor's default and max-autotune, ours, and ours:MODE with a mode for the rest.
    """

    suite: str
    model: str
    modes: tuple[str, ...]
    device: str
    dtype: str
    small: bool
    budget: float
    tune: float


@dataclass(frozen=True, slots=True)
class Contestant:
    """What one mode did. `error`: the root mean square of differences from float64, relative; the largest of all results.

    `passes` is PyTorch's criterion: an error of at most three times eager's and a tolerance. Seconds are those of the first
    call, with empty caches and in a second process. `us`: of a call; `graph_us`: in a CUDA graph; both copy the inputs.
    """

    error: float | None = None
    passes: bool = False
    seconds: float | None = None
    warm_seconds: float | None = None
    us: float | None = None
    graph_us: float | None = None
    peak_bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A line: contestants by mode; for each mode of ours segments used and all, unexpected errors, the table of `explain`.

    `read_bytes` are those of the weights that a call needs, `bandwidth` the bytes per second of its memory; 0 if not measured.
    """

    job: ModelJob
    batch: int = 0
    device: str = ""
    cores: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    weight_bytes: int = 0
    read_bytes: int = 0
    bandwidth: float = 0.0
    reference: str = ""
    contestants: Mapping[str, Contestant] = field(default_factory=dict)
    segments: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unexpected: Mapping[str, int] = field(default_factory=dict)
    explained: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str | None = None


def read_rows(path: Path) -> list[ModelRow]:
    """The newest line of each job of a file of lines, in their order; none without a file.

    Raises OptionError: a line is no line of `bench models`.
    """
    if not path.exists():
        return []
    rows: dict[ModelJob, ModelRow] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = row_of(json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"{path}:{number}: got no line of `bench models`: {error}; try: another --out") from None
        rows.pop(row.job, None)
        rows[row.job] = row
    return list(rows.values())


def row_of(line: Mapping[str, Any]) -> ModelRow:
    """The row of a line's values."""
    job = ModelJob(**line["job"] | {"modes": tuple(line["job"]["modes"])})
    contestants = {mode: Contestant(**found) for mode, found in line["contestants"].items()}
    segments = {mode: (used, count) for mode, (used, count) in line["segments"].items()}
    return ModelRow(**{**line, "job": job, "contestants": contestants, "segments": segments})
