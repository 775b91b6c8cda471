"""The results of verification: verdicts, differences and float checks, all frozen records."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import isnan

from mirage_eg.egraph.proof_chain import ProofChain

AMONG_INPUTS = " among the inputs"  # the end of the domain of a difference on inputs with zeros
Observer = Callable[[str, int, int | None, str], None]  # stage, done, total, note


class Equality(StrEnum):
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
    """The verdict on a candidate and its evidence; `error_bound` bounds the probability that an unequal one is called equal."""

    verdict: Equality
    trials: int
    p: int
    q: int
    seed: int
    error_bound: float | None
    bound_reason: str
    coverage: float  # share of the elements that the field compares
    difference: Difference | None = None
    undecided_because: str | None = None  # why the tests alone are undecided
    float_error: float | None = None  # largest |got − wanted| / (|wanted| + rms) in float64; None: nothing finite
    evidence: tuple[str, ...] = ("tested",)  # with `proved` where the loaded laws prove it equal
    laws: tuple[str, ...] = ()  # of the proof
    boxes: int = 0  # of positions, of a proof without laws
    partial: tuple[
        str, ...
    ] = ()  # laws among them whose sides are not defined alike: the proof holds where both graphs are defined
    unproved_because: str | None = None  # where a proof was tried
    chains: tuple[ProofChain, ...] = ()  # the proof in steps, one chain for each output, or for each `claim`
    no_chains_because: str | None = None  # where it is proved and the steps, or some of them, are not shown

    @property
    def equal(self) -> bool:
        return self.verdict is Equality.EQUAL

    @property
    def differs_in_field_alone(self) -> bool:
        """Whether float64 was compared, and does not differ where the field does."""
        return self.verdict is Equality.UNDECIDED and self.difference is not None and self.float_error is not None

    def worth_full_size(self, proved: bool) -> bool:
        """Whether a structure is verified at full size: it is equal, or undecided while the laws prove it."""
        return self.equal or (proved and self.verdict is Equality.UNDECIDED)


LIMITS = frozenset(f"float64, {name} inputs" for name in ("huge", "tiny", "not-a-number"))  # domains of differences


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """A candidate in floating point as its kernels compute it, against the program in float64."""

    ok: bool
    error: float  # largest |got − wanted| / (|wanted| + rms), on usual inputs
    tolerance: float
    difference: Difference | None  # on usual inputs, or on far ones
    overflows: bool = False  # not finite on far inputs where the program in float64 is
    magnitude: float = 1.0  # of the large inputs
    compared: bool = True  # False: not on any inputs, for this reason
    uncompared: str = "the program is undefined on these inputs"
    share: float = 0.0  # largest error, of twice that of the program in its own types and 1 ulp of the largest element
    masked: float = 0.0  # largest error on masked rows, of the largest element, where it is too large and the program's is, too

    @property
    def leaves_domain(self) -> bool:
        """Whether it overflows or gives a number for not-a-number on inputs that the program takes as it is written."""
        return self.overflows or (self.difference is not None and self.difference.domain in LIMITS)

    @property
    def problem(self) -> str | None:
        """The reason why it is not ok."""
        if self.ok:
            return None
        if not self.compared:
            return f"not compared: {self.uncompared}"
        if self.masked:
            return (
                f"WRONG ON MASKED ROWS by {self.masked:.1g} of the largest element, as the program in its own types is: "
                "its mask absorbs the scores; try softmax(x, dim, mask)"
            )
        if self.difference is None and self.share > 1:
            return f"LESS ACCURATE than the program in its own types: {self.share:.1f} times what it may be wrong"
        if self.overflows and self.difference is not None and self.difference.domain.endswith(AMONG_INPUTS):
            return "NOT FINITE at zeros"
        if self.difference is not None and isnan(self.difference.wanted):
            return "GIVES A NUMBER where the program gives not-a-number"
        far = self.difference is not None and self.difference.domain != "float64"
        return "OVERFLOWS on far inputs" if far and self.overflows else "WRONG AS ROUNDED"
