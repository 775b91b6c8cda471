"""One measurement of tuning, and its form as a line of JSON."""

from dataclasses import asdict, dataclass, field
from hashlib import sha256
from json import loads
from typing import Any

from mirage_eg.backends.measure.timing import Outcome, Timing
from mirage_eg.backends.triton.schedule import Schedules, schedule_record
from mirage_eg.ir.shapes import Shape

JsonLine = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A candidate that was compiled, and its times if it compiled and its outputs are right.

    `source` and `mugraph` are fingerprints; `graph` is the JSON text of a µGraph in its first measurement, "" in the others.
    `timing` is of the final stage alone; `seconds` are those since tuning began.
    """

    stage: str
    structure: int
    grid: tuple[Shape, ...]  # of each block graph, as `loop`
    loop: tuple[int, ...]
    schedule: Schedules
    source: str
    outcome: Outcome
    mugraph: str
    graph: str = ""
    predicted_us: float | None = None  # of the µGraph, by the cost model
    timing: Timing | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def us(self) -> float | None:
        """Microseconds of the rough timing; None for a candidate that failed."""
        return self.outcome.us

    def json(self) -> JsonLine:
        line = {
            "kind": "measurement",
            "stage": self.stage,
            "structure": self.structure,
            "grid": list(map(list, self.grid)),
            "loop": list(self.loop),
            "schedule": schedule_record(self.schedule),
            "source": self.source,
            "us": self.outcome.us,
            "error": self.outcome.error,
            "problem": self.outcome.problem,
            "kernels_us": list(self.outcome.kernels_us),
            "mugraph": self.mugraph,
            "predicted_us": self.predicted_us,
            "seconds": round(self.seconds, 2),
        }
        line |= {"graph": loads(self.graph)} if self.graph else {}
        return line | ({"timing": self.timing and asdict(self.timing)} if self.stage == "final" else {})


def fingerprint(source: str) -> str:
    """A short name of a source."""
    return sha256(source.encode()).hexdigest()[:16]
