"""What verification says: verdicts, differences and float checks, all frozen records."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Observer = Callable[[str, int, int | None, str], None]  # stage, done, of how many, note


class Equality(StrEnum):
    """The three verdicts."""

    EQUAL = "equal"
    NOT_EQUAL = "not equal"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element that differs; `got` and `wanted` are float64 where `domain` says so, else residues modulo p."""

    output: str
    index: tuple[int, ...]
    got: float
    wanted: float
    domain: str

    def __str__(self) -> str:
        return f"{self.output}{list(self.index)}: got {self.got:.9g}, wanted {self.wanted:.9g} ({self.domain})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a candidate and how; `error_bound` bounds the chance that an unequal one was called equal."""

    verdict: Equality
    draws: int
    p: int
    q: int
    seed: int
    error_bound: float | None
    bound_reason: str
    coverage: float  # of the elements compared in the field
    difference: Difference | None = None
    undecided_because: str | None = None  # why the tests alone do not decide
    float_error: float | None = None  # largest |got − wanted| / (|wanted| + rms) in float64; None: nothing finite
    evidence: tuple[str, ...] = ("tested",)  # and `proved`, where the loaded laws show it equal
    laws: tuple[str, ...] = ()  # that the proof used
    partial: tuple[str, ...] = ()  # of them those with sides not defined alike: proved where both graphs are defined
    unproved_because: str | None = None  # why there is no proof, where one was tried

    @property
    def equal(self) -> bool:
        """Whether the verdict is `equal`."""
        return self.verdict is Equality.EQUAL

    def worth_full_size(self, proved: bool) -> bool:
        """Whether a structure is worth its full size: equal, or left open by the field where the laws prove it."""
        return self.equal or (proved and self.verdict is Equality.UNDECIDED)


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """A candidate computed as the kernels do, against the program in float64."""

    ok: bool
    error: float  # largest |got − wanted| / (|wanted| + rms), on usual inputs
    tolerance: float
    difference: Difference | None  # on usual inputs, or on far ones
    overflows: bool = False  # not finite on far inputs where the program is, in float64
    magnitude: float = 1.0  # of the large ones among them
    compared: bool = True  # false: the program is undefined on all inputs tried

    @property
    def problem(self) -> str | None:
        """Why it is not ok."""
        if self.ok:
            return None
        if not self.compared:
            return "not compared: the program is undefined on these inputs"
        far = self.difference is not None and self.difference.domain != "float64"
        return "OVERFLOWS on far inputs" if far and self.overflows else "WRONG AS ROUNDED"
