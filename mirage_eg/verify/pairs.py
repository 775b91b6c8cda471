"""Laws as pairs of programs: each is proved for all sizes, proved or tested at a size, refuted, or undecided, rank by rank."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice
from time import perf_counter

from mirage_eg.egraph.expression import primes
from mirage_eg.ir.errors import GraphError, MirageError, ProgramError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.pair import EQUAL, RANKS, LawPair, Write
from mirage_eg.partial_equivalence.symbolic_extent import LARGE, parts
from mirage_eg.verify.box_proof import holds_from
from mirage_eg.verify.evidence import verify_candidates
from mirage_eg.verify.rank_bound import is_alike, joins_of_one_axis, rank_bound
from mirage_eg.verify.reference import verify
from mirage_eg.verify.tensor_laws import laws_of_all_sizes
from mirage_eg.verify.verdict import Equality

ABOVE = (2, 1, 3, 1, 2, 4)  # by how much the numbers of a tried size exceed their least ones, in turn


class PairOutcome(StrEnum):
    """What is known of a pair at one rank, the strongest first."""

    ALL_SIZES = "proved for all sizes"
    A_SIZE = "proved at a size"
    TESTED = "tested at a size"
    NOT_EQUAL = "not equal"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """The verdict on one candidate of a pair at a rank; `by` says what proves it, or where it differs."""

    pair: str
    candidate: str  # "candidate" or "twin"
    rank: int
    outcome: PairOutcome
    by: str
    right: bool  # as the pair expects it, or undecided
    seconds: float


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The verdicts on a pair at its ranks, and on its twin; `all_ranks` says why the proofs are for all ranks, if they are."""

    pair: str
    ranks: tuple[RankVerdict, ...]
    twins: tuple[RankVerdict, ...]
    all_ranks: str | None

    @property
    def outcome(self) -> PairOutcome:
        """What is known at every rank: the weakest outcome."""
        return max((it.outcome for it in self.ranks), key=list(PairOutcome).index)

    @property
    def wrong(self) -> bool:
        """Whether a verdict contradicts what the pair expects."""
        return not all(it.right for it in (*self.ranks, *self.twins))


def decide_pair(pair: LawPair) -> PairVerdict:
    """The verdict on a pair at each of its ranks. Raises ProgramError: a function of the pair writes no legal program."""
    verdicts, twins = [], []
    for rank in pair.ranks if pair.of_any_rank else pair.ranks[:1]:
        verdicts.append(_verdict(pair, "candidate", pair.candidate, rank, equal=pair.expected == EQUAL))
        if pair.twin is not None:
            twins.append(_verdict(pair, "twin", pair.twin, rank, equal=False))
    return PairVerdict(pair.name, tuple(verdicts), tuple(twins), _all_ranks(pair, verdicts))


def _verdict(pair: LawPair, label: str, write: Write, rank: int, *, equal: bool) -> RankVerdict:
    start = perf_counter()
    try:
        outcome, by = _outcome(pair, write, rank)
    except MirageError as error:
        raise ProgramError(f"pair {pair.name!r}, {label} at rank {rank}: {error}") from error
    right = outcome is PairOutcome.UNDECIDED or (outcome is not PairOutcome.NOT_EQUAL) is equal
    return RankVerdict(pair.name, label, rank, outcome, by, right, perf_counter() - start)


def _outcome(pair: LawPair, write: Write, rank: int) -> tuple[PairOutcome, str]:
    program, candidate = next(_at_some_sizes(pair, write, rank))
    tested = verify(program, candidate)
    if tested.verdict is Equality.NOT_EQUAL:
        return PairOutcome.NOT_EQUAL, str(tested.difference)

    def pair_at(sizes: Mapping[str, int]) -> tuple[Graph, Graph] | None:
        try:
            reference = pair.graph(pair.program, rank, sizes)
        except GraphError:
            return None
        return reference, pair.graph(write, rank, sizes)

    if holds_from(pair_at, pair.at_rank(rank)):
        return PairOutcome.ALL_SIZES, "boxes of positions"
    if holds_from(pair_at, pair.at_rank(rank), partial=True):
        return PairOutcome.ALL_SIZES, "boxes of positions, where both sides are defined"
    if (laws := laws_of_all_sizes(islice(_at_some_sizes(pair, write, rank), 2))) is not None:
        return PairOutcome.ALL_SIZES, laws
    [(verdict, _)] = verify_candidates(program, {pair.name: candidate}, steps=False)
    if verdict.verdict is not Equality.EQUAL:
        return PairOutcome.UNDECIDED, verdict.undecided_because or verdict.unproved_because or ""
    if "proved" not in verdict.evidence:
        return PairOutcome.TESTED, verdict.unproved_because or ""
    return PairOutcome.A_SIZE, f"laws {', '.join(verdict.laws)}" if verdict.laws else "boxes of positions"


def _at_some_sizes(pair: LawPair, write: Write, rank: int) -> Iterator[tuple[Graph, Graph]]:
    """Program and candidate at small sizes, then at sizes of which no two numbers are alike."""
    leasts = pair.at_rank(rank)
    small = {name: least + ABOVE[place % len(ABOVE)] for place, (name, least) in enumerate(leasts.items())}
    yield pair.graph(pair.program, rank, small), pair.graph(write, rank, small)
    for skipped in count(3):
        others = dict(zip(leasts, islice(primes(), skipped, None), strict=False))
        yield pair.graph(pair.program, rank, others), pair.graph(write, rank, others)


def _all_ranks(pair: LawPair, verdicts: Sequence[RankVerdict]) -> str | None:
    """Why proofs for all sizes at these ranks are proofs at all ranks from 1 on; None if they are not known to be."""
    if not pair.of_any_rank or any(it.outcome is not PairOutcome.ALL_SIZES for it in verdicts):
        return None
    try:
        graphs = [_generic(pair, rank) for rank in RANKS]
    except MirageError:  # ranks at which it is no program
        return None
    axes = [_axes_of(pair, rank) for rank in RANKS]
    programs, candidates = zip(*graphs, strict=True)
    if not is_alike(programs, axes) or not is_alike(candidates, axes):
        return None
    joins = joins_of_one_axis(programs) & joins_of_one_axis(candidates)
    bounds = {rank_bound(*it, joins) for it in graphs}
    first_unknown = next(rank for rank in range(1, max(pair.ranks) + 2) if rank not in pair.ranks)
    if len(bounds) > 1 or (bound := bounds.pop()) is None or bound >= first_unknown:
        return None
    return f"a law that fails at some rank fails at one up to {bound}"


def _generic(pair: LawPair, rank: int) -> tuple[Graph, Graph]:
    """Program and candidate at numbers that stand for themselves alone."""
    numbers = {name: least + LARGE**number for number, (name, least) in enumerate(pair.at_rank(rank).items(), 1)}
    return pair.graph(pair.program, rank, numbers), pair.graph(pair.candidate, rank, numbers)


def _axes_of(pair: LawPair, rank: int) -> Callable[[int], Collection[int]]:
    """Of an extent of `_generic` the axes whose numbers are in it."""
    axes = [axis if name[0].isupper() else None for name in pair.leasts for axis in range(rank if name[0].isupper() else 1)]
    return lambda extent: {axis for number, _ in parts(extent)[1] if (axis := axes[number - 1]) is not None}
