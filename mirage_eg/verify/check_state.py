"""The state of one µGraph's check from trial to trial. Part of the trusted core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import COMPARISONS, EXTREMES, ROOTS
from mirage_eg.verify.compare import LEAST_COVERAGE, Compared
from mirage_eg.verify.subgraph_check import Subgraph
from mirage_eg.verify.verdict import Difference

OF_ORDER = frozenset({"max", *EXTREMES})  # in the field by a random order
# A wrong maximum, sign or choice of these ops is right by chance at every other element.
COARSE = OF_ORDER | COMPARISONS | ROOTS | {"abs", "pow", "indicator"}
COARSE_COMPARISONS = 32  # elements that are compared at least where there are such ops
EXTRA_TRIALS = 6  # at most, until each element that the program defines was defined for the µGraph too

Wait = Callable[[], tuple[float, Difference | None, bool]]  # returns the result of a comparison in float64


@dataclass(slots=True)
class CheckState:
    """A µGraph between its trials; as a context it counts the seconds of its check."""

    program: Graph
    candidate: Graph
    names: Sequence[str]  # of the outputs
    least: int  # trials
    subgraph: Subgraph | None = None  # of the program; None: the whole of it
    trials: int = 0  # wanted
    done: int = 0
    compared: int = 0
    total: int = 0
    never_defined: list[Array] = field(default_factory=list)  # for each output: both sides were defined in no trial
    lost: list[Array] = field(default_factory=list)  # the program was defined and the µGraph was not, in some trial
    field_difference: Difference | None = None
    undefined: bool = False  # too few elements are defined in the field
    unfaithful: frozenset[str] = frozenset()
    comparisons: int = 0  # of the smallest output, where an op is coarse
    maxima_agree: bool = True  # maxima are taken over the same elements as in the program
    places_agree: bool = True  # for any indices
    untried: str | None = None  # what the tests of floats left out
    error: float | None = None  # in float64
    float_difference: Difference | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.trials = self.least
        self.never_defined = [np.True_] * len(self.names)
        self.lost = [np.False_] * len(self.names)

    @property
    def suspected(self) -> bool:
        """Whether the field differs, or compares too little."""
        return self.field_difference is not None or self.undefined or self.loses

    @property
    def loses(self) -> bool:
        """Whether the µGraph was undefined in all trials at an element that the program defines."""
        return any(bool((never & lost).any()) for never, lost in zip(self.never_defined, self.lost, strict=True))

    @property
    def doubt(self) -> str | None:
        """Why the tests decide neither equality nor a difference, if so."""
        if self.float_difference is not None or not (self.suspected or self.untried or self.error is None):
            return None
        if self.field_difference is not None:
            field = f"the field differs at {self.field_difference}"
        elif self.suspected:
            field = "the field compares too little"
        else:
            field = "the field does not differ"
        if self.error is None:
            return f"{field}; in float64 no element was finite on the inputs tried"
        if self.untried is not None:
            return f"{field}; float64 does not differ, but {self.untried}"
        return f"{field}; float64 does not differ (largest error {self.error:.2g})"

    def runs(self, number: int) -> bool:
        """Whether trial `number` can still change the verdict."""
        return number < self.trials and not (self.field_difference or self.undefined)

    def record(self, results: Sequence[Compared], trials: Sequence[int]) -> None:
        """The results of some trials, one for each output."""
        differences = [result.difference for result in results if result.difference]
        first = min(differences, key=lambda pair: pair[0], default=None)
        self.field_difference = first[1] if first else None
        self.done += first[0] + 1 if first else len(trials)
        for position, result in enumerate(results):
            self.compared, self.total = self.compared + result.defined, self.total + result.size
            self.undefined |= result.defined < LEAST_COVERAGE * result.size
            self.never_defined[position] = self.never_defined[position] & result.never_defined
            self.lost[position] = self.lost[position] | result.lost
        if self.loses and self.done < self.least + EXTRA_TRIALS:
            self.trials = max(self.trials, trials[-1] + 2)

    def count_comparisons(self, smallest: int, trials: int) -> None:
        """Coarse ops: `smallest` elements were compared in each of these trials."""
        self.comparisons += smallest * trials
        if self.subgraph is None:  # a subgraph gets random inputs of its own
            self.trials = max(self.trials, ceil(COARSE_COMPARISONS / smallest))

    def record_floats(self, wait: Wait) -> None:
        """The result of a comparison in float64."""
        with self:
            error, self.float_difference, compared = wait()
            if compared or self.float_difference is not None:
                self.error = max(self.error or 0.0, error)

    def __enter__(self) -> None:
        self.seconds -= perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds += perf_counter()
