"""The budget of a first call: the graphs of one function, between its graph breaks, share it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from threading import local

from mirage_eg.torch_compile.settings import Settings

_LEAST = 3.0  # seconds of tuning: in fewer hardly more than one kernel is timed
_BESIDES = 3.0  # seconds that the timer and the verification of a tuned segment took on an H200, at most


@dataclass(slots=True)
class FirstCall:
    """What is left of the seconds of one call's graphs, and of as many of tuning.

    It `is_over` once one of them is called again.
    """

    left: float
    is_over: bool = False
    tuning: float = field(init=False)

    def __post_init__(self) -> None:
        self.tuning = self.left

    def end(self) -> None:
        """End it."""
        self.is_over = True

    def part_of_tuning(self, us: float, others: Collection[float], most: float) -> float:
        """The seconds of tuning, `most` at most, of a segment that takes these `us` of each call, where `others` take theirs.

        Segments share the seconds by their microseconds. Those that take most come first; the last ones may have none.
        """
        left, rest, seconds = self.tuning, us + sum(others), 0.0
        for each in (*sorted((it for it in others if it > us), reverse=True), us):
            seconds = min(most, max(_LEAST, left * each / rest if rest else left))
            seconds = seconds if seconds <= left else 0.0
            left, rest = left - seconds, rest - each
        return seconds

    def take_tuning(self, most: float, seconds: float) -> None:
        """Take what a segment had that was tuned in `most` of its `seconds`, verification among them."""
        self.tuning -= min(seconds, most + _BESIDES) if most else 0.0


_LATEST = local()  # `calls`: of each function that Dynamo has compiled a part of


def call_of(settings: Settings) -> FirstCall:
    """The call of the graph that Dynamo passes on: after a graph break that of the same function's graph before."""
    calls: dict[tuple[str, str], FirstCall] = _LATEST.__dict__.setdefault("calls", {})
    function, continues = _function()
    call = calls.get(function) if continues else None
    if call is None or call.is_over:
        call = calls[function] = FirstCall(settings.budget)
    return call


def _function() -> tuple[tuple[str, str], bool]:
    """The file and name of the function that Dynamo compiles, and whether it compiles the rest of it, after a graph break."""
    from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
    from torch._dynamo.symbolic_convert import tls

    translator = getattr(tls, "current_tx", None)
    if translator is None:  # nothing is traced
        return ("", ""), False
    code = translator.f_code
    rest = code.co_name.removeprefix(f"{TORCH_DYNAMO_RESUME_IN_PREFIX}_")
    continues = rest != code.co_name
    return (code.co_filename, rest.rpartition("_at_")[0] if continues else rest), continues
