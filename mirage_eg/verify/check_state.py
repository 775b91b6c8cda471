"""What is known of a µGraph between its draws. Part of the trusted core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.compare import LEAST_COVERAGE, Compared, Found
from mirage_eg.verify.subgraph_check import Part
from mirage_eg.verify.verdict import Difference

EXTREMES = frozenset({"max", "maximum", "minimum"})
# Of these a wrong maximum or sign is right by chance at one element in two.
COARSE = EXTREMES | {"abs", "sqrt", "rsqrt", "pow"}
COARSE_COMPARISONS = 32  # so at least so many elements are compared where there are such ops
MORE_DRAWS = 6  # at most, until each element that the program defines was defined for the µGraph too

Wait = Callable[[], tuple[float, Difference | None, bool]]  # gives the result of a comparison in float64


@dataclass(slots=True)
class Trial:
    """A µGraph between its draws; as a context it counts the seconds spent on it."""

    program: Graph  # what it is to compute
    candidate: Graph
    names: Sequence[str]  # of the outputs
    least: int  # draws
    part: Part | None = None  # of the program; None: the whole of it
    draws: int = 0  # so many are wanted
    done: int = 0
    compared: int = 0
    total: int = 0
    unseen: list[Array] = field(default_factory=list)  # for each output where both sides were defined in no draw
    lost: list[Array] = field(default_factory=list)  # where the program was defined and the µGraph was not, in a draw
    difference: Difference | None = None  # in the field
    undefined: bool = False  # the field shows too little
    unfaithful: frozenset[str] = frozenset()
    comparisons: int = 0  # of the smallest output, where an op is coarse
    joined: bool = True  # maxima are taken of the same elements as in the program
    error: float | None = None  # in float64
    shown: Difference | None = None  # in float64
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.draws = self.least
        self.unseen = [np.True_] * len(self.names)
        self.lost = [np.False_] * len(self.names)

    @property
    def suspected(self) -> bool:
        """Whether the field differs, or shows too little."""
        return self.difference is not None or self.undefined or self.loses

    @property
    def loses(self) -> bool:
        """Whether the µGraph was undefined, wherever it was looked at, for an element that the program defines."""
        return any(bool((unseen & lost).any()) for unseen, lost in zip(self.unseen, self.lost, strict=True))

    @property
    def doubt(self) -> str | None:
        """Why neither equality nor a difference is shown, if so."""
        if self.shown is not None or not (self.suspected or self.error is None):
            return None
        if self.difference is not None:
            field = f"the field differs at {self.difference}"
        elif self.suspected:
            field = "the field compares too little"
        else:
            field = "the field does not differ"
        if self.error is None:
            return f"{field}; in float64 no element was finite on the inputs tried"
        return f"{field}; float64 does not differ (largest error {self.error:.2g})"

    def runs(self, number: int) -> bool:
        """Whether draw `number` can still tell something."""
        return number < self.draws and not (self.difference or self.undefined)

    def note(self, results: Sequence[Compared], draws: Sequence[int]) -> None:
        """The results on some draws, one for each output."""
        found: list[Found] = [result.found for result in results if result.found]
        first = min(found, key=lambda pair: pair[0], default=None)
        self.difference = first[1] if first else None
        self.done += first[0] + 1 if first else len(draws)
        for place, result in enumerate(results):
            self.compared, self.total = self.compared + result.defined, self.total + result.size
            self.undefined |= result.defined < LEAST_COVERAGE * result.size
            self.unseen[place] = self.unseen[place] & result.unseen
            self.lost[place] = self.lost[place] | result.lost
        if self.loses and self.done < self.least + MORE_DRAWS:
            self.draws = max(self.draws, draws[-1] + 2)

    def compare_more(self, smallest: int, draws: int) -> None:
        """Coarse ops: `smallest` elements were compared in each of these draws."""
        self.comparisons += smallest * draws
        if self.part is None:  # a part gets draws of its own
            self.draws = max(self.draws, ceil(COARSE_COMPARISONS / smallest))

    def note_numbers(self, wait: Wait) -> None:
        """The result of a comparison in float64."""
        with self:
            error, self.shown, compared = wait()
            if compared or self.shown is not None:
                self.error = max(self.error or 0.0, error)

    def __enter__(self) -> None:
        self.seconds -= perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds += perf_counter()
