"""The answers to why a given µGraph is found or not, and their words."""

from dataclasses import dataclass
from enum import StrEnum

from mirage_eg.ir.plurals import counted
from mirage_eg.search.prune_reasons import STAGES


class AnswerKind(StrEnum):
    FOUND = "found"
    UNFINISHED = "not searched to its end"
    NOT_ENUMERATED = "not enumerated"
    PRUNED = "pruned"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """The answer for one kernel, or for a split-reduction pair.

    `stage`: where it ended, of `prune_reasons.STAGES`; `place`: the op of the given µGraph. `nearest`: of a pruned term, the
    nearest e-class. `rank`: of its structure, among `structures` with a µGraph, by the predicted time of the fastest, `us` is
    the time of the given one and `first_us` that of the first. `equal`: whether it computes its part of the program on a small
    instance; None if it has none.
    """

    kernel: str
    answer: AnswerKind
    stage: str
    because: str
    place: str | None = None
    nearest: str | None = None
    rank: int | None = None
    structures: int = 0
    us: float | None = None
    first_us: float | None = None
    equal: bool | None = None

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.answer}{f' at rank {self.rank} of {self.structures}' if self.rank else ''}"]
        lines.append(f"  {self.stage}: {STAGES[self.stage]}" if self.answer is not AnswerKind.FOUND else f"  {self.because}")
        if self.answer is not AnswerKind.FOUND:
            lines += [f"  at {self.place}" if self.place else "", f"  {self.because}"]
            lines.append(f"  nearest: {self.nearest}" if self.nearest else "")
        if self.equal is not None and self.answer is AnswerKind.PRUNED:
            missing = "a law is missing, or holds in the other direction only" if self.equal else "it is another function"
            lines.append(f"  {'equal' if self.equal else 'not equal'} to its part of the program in random fields: {missing}")
        return "\n".join(filter(None, lines))


@dataclass(frozen=True, slots=True)
class Ranked:
    """The rank of a µGraph among `graphs`, the plans that a search keeps before it verifies some, by predicted time.

    1 if none of them is faster; None if it is not among them, and slower than the first. `cut`: the search ended at its budget.
    """

    rank: int | None
    graphs: int
    first_us: float
    notes: tuple[str, ...] = ()
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Why:
    """Why a µGraph of a program is found or not: the answer of the first kernel that is not found, or that of all."""

    program: str
    kernels: tuple[KernelAnswer, ...]
    us: float | None  # predicted
    ranked: Ranked | None = None

    @property
    def decisive(self) -> KernelAnswer:
        """The first kernel that is not found, else the first."""
        return next((it for it in self.kernels if it.answer is not AnswerKind.FOUND), self.kernels[0])

    @property
    def answer(self) -> AnswerKind:
        """Whether the µGraph is found, or how it ended; one whose kernels are found, but in no plan kept, is rejected."""
        lost = self.ranked is not None and self.ranked.rank is None and self.decisive.answer is AnswerKind.FOUND
        return AnswerKind.REJECTED if lost else self.decisive.answer

    @property
    def stage(self) -> str:
        return self.decisive.stage if self.answer is self.decisive.answer else "on no plan"

    @property
    def rank(self) -> int | None:
        """The rank of a found µGraph: of its structure, if one kernel or one split-reduction pair is the whole."""
        if self.answer is not AnswerKind.FOUND:
            return None
        return self.kernels[0].rank if self.ranked is None else self.ranked.rank

    def __str__(self) -> str:
        kept = ""
        if self.ranked is not None:
            kept = (
                f"{counted(self.ranked.graphs, 'µGraph')} that {'were found by the budget' if self.ranked.cut else 'are kept'}"
            )
        at = f" at rank {self.rank} of the {kept}" if kept and self.answer is AnswerKind.FOUND else ""
        lines = [f"{self.program}: {self.answer}{at}{'' if self.us is None else f'; {self.us:.2f} µs predicted'}"]
        lines += map(str, self.kernels)
        if self.ranked and self.us is not None and self.stage == "on no plan":
            slower = self.us - self.ranked.first_us
            lines.append(f"its kernels are found; it is none of the {kept}, and {slower:.2f} µs slower than the first")
        return "\n".join((*lines, *(f"note: {note}" for note in (self.ranked.notes if self.ranked else ()))))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"
