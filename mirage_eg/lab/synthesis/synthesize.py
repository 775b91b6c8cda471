"""Synthesis of laws: enumerate terms, group them by values, keep the laws that the kept ones do not derive, check each.

The loop is that of Ruler (OOPSLA'21) and Enumo (OOPSLA'23), with one-sided derivability. Everything is counted, nothing is
timed: equal arguments give equal laws.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_eg.egraph.laws import Law, Pattern, applications
from mirage_eg.egraph.rule_files import readable
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.synthesis.check import FoundLaw, RejectedLaw, check
from mirage_eg.lab.synthesis.derivation import (
    Laws,
    Question,
    SaturationEffort,
    Session,
    is_equation,
    questions,
    reached,
)
from mirage_eg.lab.synthesis.enumeration import enumerate_terms, equations
from mirage_eg.lab.synthesis.indexed import IndexedDomain, chosen_ops, new_law
from mirage_eg.lab.synthesis.progress_file import NOTHING, Begun, OnChunk
from mirage_eg.lab.synthesis.term_pair import OnLaw, Progress, TermPair, no_progress, ops, rank

DOMAINS = ("indexed",)
LARGEST_SIZE = 6
COMPOSING = ("Pow", "LeakyRelu")  # f_c(f_d(x)) is f_cd(x): three in each other match in cubes of the constants, for minutes
LARGEST_COMPOSING = 2  # size with one of these
CHUNK = 200  # equations that share an e-graph
EFFORT = SaturationEffort(iterations=4, nodes=30_000)
THOROUGH = SaturationEffort(iterations=8, nodes=10_000)  # for one law
SMALL = SaturationEffort(iterations=4, nodes=1_000)  # cancellation never ends


@dataclass(frozen=True, slots=True)
class Funnel:
    """How many of each were left after each stage."""

    terms: int
    classes: int
    pairs: int  # of equal terms, up to the names of variables
    unwritable: int  # pairs without a direction that a rule can have
    refuted: int  # laws with a counterexample, or that write undefined terms in each direction
    cancelling: int  # laws in which a tensor vanishes: used for derivations, not kept
    derived: int  # laws that other laws derive
    kept: int


@dataclass(frozen=True, slots=True)
class Synthesis:
    """The kept laws with their evidence, the refuted ones, and the comparison with the packaged laws over the same ops."""

    domain: str
    ops: tuple[str, ...]
    size: int
    seed: int
    laws: tuple[FoundLaw, ...]
    rejected: tuple[RejectedLaw, ...]
    funnel: Funnel
    shipped: tuple[Law, ...]  # packaged equations over the ops, up to the size
    missed: tuple[Law, ...]  # of them, those that the kept laws do not derive
    new: tuple[Law, ...]  # kept laws that the packaged laws do not derive


def synthesize(
    ops: Iterable[str],
    size: int = 3,
    domain: str = "indexed",
    seed: int = 0,
    on_progress: Progress = no_progress,
    on_law: OnLaw = lambda line: None,
    begun: Begun = NOTHING,
    on_chunk: OnChunk = lambda begun: None,
) -> Synthesis:
    """Find laws over `ops` whose sides have up to `size` ops each.

    `on_chunk` gets the state after each chunk of candidates, from which `begun` continues to the same result.

    Raises OptionError: an unknown op or domain, or a size out of range; with Pow or LeakyRelu it is at most 2.
    """
    if domain not in DOMAINS:
        raise OptionError(f"--domain: got {domain!r}, wanted one of {', '.join(DOMAINS)}, or tensor on the command line")
    if not 1 <= size <= LARGEST_SIZE:
        raise OptionError(f"--size: got {size}, wanted 1 to {LARGEST_SIZE}")
    chosen = chosen_ops(ops)
    composing = " and ".join(name for name in COMPOSING if name in chosen)
    if composing and size > LARGEST_COMPOSING:
        raise OptionError(
            f"--size: got {size} with {composing} among the ops, wanted at most {LARGEST_COMPOSING}: products of constants "
            f"do not end; leave out {composing}, or try --size {LARGEST_COMPOSING}"
        )
    language = IndexedDomain(chosen, seed)
    found = enumerate_terms(language, size, seed, on_progress)
    pairs = sorted(equations(found, on_progress), key=lambda it: rank(it, language.specials(it)))
    candidates, unwritable = _candidates(language, pairs)
    known, failures = _kept(language, candidates, on_progress, on_law, begun, on_chunk)
    kept = _backward(language, known, on_progress)
    shipped = tuple(law for law in language.rulebook.laws if _is_over(law, language.ops, size))
    laws = tuple(it.law for it in kept)
    missed = _underived(Laws(language.rulebook, _all(language), laws), shipped, language)
    new = _underived(Laws(language.rulebook), laws, language)
    funnel = Funnel(
        terms=found.terms,
        classes=found.classes,
        pairs=len(candidates) + unwritable,
        unwritable=unwritable,
        refuted=len(failures),
        cancelling=sum(it.cancels for it in known),
        derived=len(candidates) - len(failures) - sum(it.cancels for it in known) - len(kept),
        kept=len(kept),
    )
    return Synthesis(domain, language.ops, size, seed, tuple(kept), tuple(failures), funnel, shipped, missed, new)


def _candidates(language: IndexedDomain, pairs: Sequence[TermPair]) -> tuple[list[tuple[TermPair, Law]], int]:
    """The laws of equations, each text once, and how many equations give none."""
    laws: dict[str, tuple[TermPair, Law]] = {}
    unwritable = 0
    for pair in pairs:
        law = language.law(pair)
        unwritable += law is None
        if law is not None:
            laws.setdefault(law.text, (pair, law))
    return list(laws.values()), unwritable


def _all(language: IndexedDomain) -> frozenset[str]:
    return frozenset(law.name for law in language.rulebook.laws)


def _questions(law: Law, language: IndexedDomain) -> tuple[Question, ...]:
    asked = questions(law, language.rulebook.signatures, language.name)
    assert asked is not None, law.text
    return asked


def _kept(
    language: IndexedDomain,
    candidates: Sequence[tuple[TermPair, Law]],
    on_progress: Progress,
    on_law: OnLaw,
    begun: Begun,
    on_chunk: OnChunk,
) -> tuple[list[FoundLaw], list[RejectedLaw]]:
    """The laws that hold and that the laws kept before them do not derive."""
    known, failures = _again(language, candidates, begun, on_progress)
    for it in known:
        if not it.cancels:
            on_law(it.law.text)
    for start in range(begun.decided, len(candidates), CHUNK):
        chunk = candidates[start : start + CHUNK]
        while chunk:
            derivable = Derivable(language, known, [law for _, law in chunk])
            decided = derivable.answers()
            while not all(decided) and not derivable.crowded:
                note = f"{sum(not it.cancels for it in known)} kept, {len(failures)} refuted"
                on_progress("laws", start + sum(decided), len(candidates), note)
                first = decided.index(False)
                decided[first] = True
                pair, law = chunk[first]
                kept = [it for it in known if not it.cancels]
                if len(kept) < len(known) and _meets(law, known, language) and not _meets(law, kept, language):
                    continue  # by cancellation, as x/(y/y) = x·(y/y)
                checked = check(law, pair, language)
                if isinstance(checked, RejectedLaw):
                    failures.append(checked)
                    continue
                known.append(checked)
                if not checked.cancels:
                    on_law(checked.law.text)
                    derivable.add(checked.law)
                    decided = [old or new for old, new in zip(decided, derivable.answers(), strict=True)]
            chunk = [it for it, done in zip(chunk, decided, strict=True) if not done]
        texts = [tuple(it.law.text for it in side) for side in (known, failures)]
        on_chunk(Begun(min(start + CHUNK, len(candidates)), *texts))
    return known, failures


def _meets(law: Law, known: Sequence[FoundLaw], language: IndexedDomain) -> bool:
    """Whether the sides of a law come into one class, in an e-graph of their own: some laws grow without end."""
    laws = Laws(language.rulebook, _all(language), tuple(it.law for it in known))
    return reached(laws, _questions(law, language)[:1], SMALL, joined=True) == [True]


def _again(
    language: IndexedDomain, candidates: Sequence[tuple[TermPair, Law]], begun: Begun, on_progress: Progress
) -> tuple[list[FoundLaw], list[RejectedLaw]]:
    """The decided laws of a synthesis that continues, tested again."""
    wanted = {*begun.known, *begun.refuted}
    results: dict[str, FoundLaw | RejectedLaw] = {}
    for pair, law in candidates[: begun.decided] if wanted else ():
        if wanted.isdisjoint(_texts(law)):
            continue
        on_progress("laws of before", len(results), len(wanted), "")
        checked = check(law, pair, language)
        if checked.law.text in wanted:
            results[checked.law.text] = checked
    known = [it for text in begun.known if isinstance(it := results.get(text), FoundLaw)]
    failures = [it for text in begun.refuted if isinstance(it := results.get(text), RejectedLaw)]
    return known, failures


def _texts(law: Law) -> set[str]:
    """The texts that a candidate may have once it is tested: its own, or that of one direction."""
    if law.form != "birewrite" or law.sides is None:
        return {law.text}
    left, right = law.sides
    return {law.text, *(new_law(one, other, law.conditions, False).text for one, other in ((left, right), (right, left)))}


class Derivable:
    """Which of some laws the kept ones derive, as more are kept.

    One direction of a birewrite suffices: the other one is what the kept laws leave out, such as x² as x·x. For a law with
    constants it suffices that its sides meet: ½·(2·x) and 2·(½·x) are both 1·x.
    """

    def __init__(
        self, language: IndexedDomain, known: Sequence[FoundLaw], laws: Sequence[Law], effort: SaturationEffort = EFFORT
    ) -> None:
        self._asked = [_questions(law, language) for law in laws]
        self._constant = [_has_constants(law, language) for law in laws]
        kept = Laws(language.rulebook, _all(language), tuple(it.law for it in known if not it.cancels))
        meeting = [entry[0] for entry, constant in zip(self._asked, self._constant, strict=True) if constant]
        self._sessions = [Session(kept, [question for entry in self._asked for question in entry], effort)]
        self._sessions += [Session(kept, meeting, effort, joined=True)] if meeting else []
        self._effort = effort

    @property
    def crowded(self) -> bool:
        """Whether an e-graph is too large for further laws."""
        return any(session.nodes > self._effort.nodes for session in self._sessions)

    def add(self, law: Law) -> None:
        """Keep one more law."""
        for session in self._sessions:
            session.add(law)

    def answers(self) -> list[bool]:
        """For each law, whether it is derived."""
        given, *meets = (iter(session.answers()) for session in self._sessions)
        directions = [[next(given) for _ in entry] for entry in self._asked]
        meeting = [constant and next(meets[0]) for constant in self._constant]
        return [any(reached) or meet for reached, meet in zip(directions, meeting, strict=True)]


def _has_constants(law: Law, language: IndexedDomain) -> bool:
    """Whether a law has rational constants, given or as variables."""
    signatures = language.rulebook.signatures
    return any("BigRat" in signatures[name].inputs for side in law.sides or () for name in _constructors(side))


def _backward(language: IndexedDomain, known: Sequence[FoundLaw], on_progress: Progress) -> list[FoundLaw]:
    """The kept laws without those that the others derive, the largest first."""
    left = list(known)
    for done, checked in enumerate(reversed(known)):
        on_progress("minimizing", done, len(known), f"{len(left)} laws")
        others = [it for it in left if it is not checked]
        if not checked.cancels and Derivable(language, others, [checked.law], THOROUGH).answers() == [True]:
            left = others
    return [it for it in left if not it.cancels]


def _is_over(law: Law, chosen: Sequence[str], size: int) -> bool:
    """Whether a law is an pair over some ops with at most `size` of them on each side."""
    if law.sides is None or not is_equation(law):
        return False
    return all(set(_constructors(side)) <= set(chosen) and ops(side) <= size for side in law.sides)


def _constructors(side: Pattern) -> Iterable[str]:
    return (it.name for it in applications(side) if it.name[0].isupper())


def _underived(known: Laws, laws: Sequence[Law], language: IndexedDomain) -> tuple[Law, ...]:
    left = []
    for law in laws:
        asked = questions(law, known.rulebook.signatures, language.name)
        if asked is None or not all(reached(known, asked, EFFORT)):
            left.append(law)
    return tuple(left)


def rule_text(found: Synthesis) -> str:
    """An ordinary rule file; equal syntheses have equal texts."""
    funnel = found.funnel
    lines = [
        f"; domain: {found.domain}",
        f"; Laws over {', '.join(found.ops)} with up to {found.size} ops a side, found by enumeration:",
        f";   mirage-eg rules synthesize --ops {','.join(found.ops)} --size {found.size} --seed {found.seed}",
        f"; {funnel.terms:,} terms in {funnel.classes:,} classes gave {funnel.pairs:,} pairs of equal terms. Of their laws",
        f"; {funnel.refuted:,} were refuted, {funnel.derived:,} follow from others, {funnel.cancelling:,} cancel tensors",
        f"; and are left out, and {funnel.kept:,} are kept.",
        "",
    ]
    for it in found.laws:
        lines += [f"; {evidence(it)}", readable(it.law.text)]
    return "\n".join(lines) + "\n"


def evidence(it: FoundLaw) -> str:
    """How a law was found: sizes of its sides, and the tests that it passed."""
    left, right = ops(it.pair.left), ops(it.pair.right)
    field = "equal in the finite field" if it.in_field else "not modelled by the finite field"
    partial = "; partial: one side is defined where the other is not" if it.partial else ""
    return f"size {left} = {right}; equal in float64; {field}; held in {it.trials} random assignments{partial}"
