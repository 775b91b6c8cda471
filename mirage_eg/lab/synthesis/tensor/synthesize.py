"""Synthesis of tensor laws: enumerate, prove for all shapes, generalize, minimize by derivability, write with conditions.

Equal arguments give equal files: everything is counted, nothing is timed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_eg.egraph.tensor.counterexamples import TensorCounterexample, counterexample
from mirage_eg.egraph.tensor.normal_form import proved
from mirage_eg.egraph.tensor.ops import CONSTANTS, TensorOp, chosen_ops
from mirage_eg.egraph.tensor.term import Equation, canonical, rank, text
from mirage_eg.egraph.tensor.term import ops as ops_of
from mirage_eg.egraph.tensor.term import size as size_of
from mirage_eg.egraph.tensor.typing import Attributes, IllTyped
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.synthesis.derivation import SaturationEffort
from mirage_eg.lab.synthesis.tensor.derivability import TensorSession, questions
from mirage_eg.lab.synthesis.tensor.enumeration import TensorTerms, enumerate_tensor_terms
from mirage_eg.lab.synthesis.tensor.generalize import abstracted, generalized, holds
from mirage_eg.lab.synthesis.tensor.rule_lines import TensorRewrite, rewrites
from mirage_eg.lab.synthesis.term_pair import OnLaw, Progress, no_progress

LARGEST_TENSOR_SIZE = 4
SMALL_SIZE = 2  # ops on a side of equations that only short derivations make redundant
EFFORT = SaturationEffort(iterations=2, nodes=6_000)
THOROUGH = SaturationEffort(iterations=3, nodes=6_000)


@dataclass(frozen=True, slots=True)
class TensorLaw:
    """A kept equation: the attributes for which the normal form proves it, and its rewrites."""

    equation: Equation
    attributes: Attributes
    rewrites: tuple[TensorRewrite, ...]

    @property
    def name(self) -> str:
        """The equation as text."""
        return f"{text(self.equation[0])} = {text(self.equation[1])}"

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of a rule file."""
        return tuple(it.line(f"{self.name}{', backward' if it.backward else ''}") for it in self.rewrites)


@dataclass(frozen=True, slots=True)
class RefutedEquation:
    """A candidate with the values at which its sides differ."""

    equation: Equation
    counterexample: TensorCounterexample


@dataclass(frozen=True, slots=True)
class TensorFunnel:
    """How many of each were left after each stage."""

    terms: int
    classes: int
    pairs: int  # of terms with equal values
    renamed: int  # of them different ones, without types and up to names
    proved: int  # by the normal form, for all shapes
    refuted: int  # with a counterexample at other shapes
    ill_typed: int  # no shapes fit: the extents of the enumeration were equal by chance
    tested: int  # neither proved nor refuted: off
    generalized: int  # different most general forms of the proved ones
    unwritable: int  # of them those without a direction that a rule can have
    kept: int


@dataclass(frozen=True, slots=True)
class TensorSynthesis:
    """The kept laws, the refuted, ill-typed and merely tested candidates, and the funnel."""

    ops: tuple[str, ...]
    size: int
    seed: int
    laws: tuple[TensorLaw, ...]
    refuted: tuple[RefutedEquation, ...]
    ill_typed: tuple[Equation, ...]
    tested: tuple[Equation, ...]
    funnel: TensorFunnel


def synthesize_tensor_laws(
    ops: Iterable[str], size: int = 3, seed: int = 0, on_progress: Progress = no_progress, on_law: OnLaw = lambda line: None
) -> TensorSynthesis:
    """Find laws over ops of whole tensors whose sides have up to `size` different ops each.

    Raises OptionError: an unknown op, or a size out of range.
    """
    chosen = chosen_ops(ops)
    found = _enumerated(chosen, size, seed, on_progress)
    renamed = sorted({canonical(*it) for it in found.equations(on_progress) if it[0] != it[1]}, key=rank)
    terms, classes, pairs = found.terms, found.classes, sum(map(len, found.pairs))
    del found  # the e-graphs below need its memory
    decided = _decided(renamed, seed, on_progress, on_law)
    writable = sorted((it for it in decided.general if rewrites(it)), key=_constants)
    kept = _minimized(writable, on_progress)
    laws = []
    for equation in kept:
        attributes = proved(equation)
        assert attributes is not None
        laws.append(TensorLaw(equation, attributes, rewrites(equation)))
    funnel = TensorFunnel(
        terms=terms,
        classes=classes,
        pairs=pairs,
        renamed=len(renamed),
        proved=decided.proved,
        refuted=len(decided.refuted),
        ill_typed=len(decided.ill_typed),
        tested=len(decided.tested),
        generalized=len(decided.general),
        unwritable=len(decided.general) - len(writable),
        kept=len(kept),
    )
    names = tuple(it.name for it in chosen)
    refuted, ill_typed, tested = tuple(decided.refuted), tuple(decided.ill_typed), tuple(decided.tested)
    return TensorSynthesis(names, size, seed, tuple(laws), refuted, ill_typed, tested, funnel)


def enumerate_up_to(ops: Iterable[str], size: int = 3, seed: int = 0, on_progress: Progress = no_progress) -> TensorTerms:
    """The terms over ops of whole tensors with up to `size` different ops, their classes and the pairs of equal ones.

    Raises OptionError: an unknown op, or a size out of range.
    """
    return _enumerated(chosen_ops(ops), size, seed, on_progress)


def _enumerated(ops: Sequence[TensorOp], size: int, seed: int, on_progress: Progress) -> TensorTerms:
    if not 1 <= size <= LARGEST_TENSOR_SIZE:
        raise OptionError(f"--size: got {size}, wanted 1 to {LARGEST_TENSOR_SIZE} in the domain tensor")
    return enumerate_tensor_terms(ops, size, seed, on_progress)


@dataclass(slots=True)
class _Decided:
    proved: int
    general: list[Equation]
    refuted: list[RefutedEquation]
    ill_typed: list[Equation]
    tested: list[Equation]


def _decided(candidates: Sequence[Equation], seed: int, on_progress: Progress, on_law: OnLaw) -> _Decided:
    """Prove each candidate or its abstraction, and generalize what is proved."""
    decided = _Decided(0, [], [], [], [])
    general: dict[Equation, Equation] = {}

    def generalize(equation: Equation) -> None:
        general[equation] = generalized(equation)
        for line in _lines(general[equation]):
            on_law(line)

    for done, equation in enumerate(candidates):
        on_progress("normal forms", done, len(candidates), f"{decided.proved} proved, {len(decided.refuted)} refuted")
        wide = abstracted(equation)
        if wide not in general and holds(wide):
            generalize(wide)
        if wide in general:
            decided.proved += 1
            continue
        try:
            if proved(equation) is not None:
                decided.proved += 1
                generalize(equation)
                continue
            difference = counterexample(equation, seed)
        except IllTyped:
            decided.ill_typed.append(equation)
            continue
        if difference is None:
            decided.tested.append(equation)
        else:
            decided.refuted.append(RefutedEquation(equation, difference))
    axes: dict[str, Equation] = {}
    for equation in sorted(set(general.values()), key=rank):
        lines = rewrites(equation)  # laws of any axis are found at each axis
        axes.setdefault(lines[0].line("") if lines else text(equation[0]) + text(equation[1]), equation)
    decided.general = list(axes.values())
    return decided


def _minimized(equations: Sequence[Equation], on_progress: Progress) -> list[Equation]:
    """The equations that the others do not derive: first those that no equation kept before derives, then the large ones again.

    Large equations, of three ops on a side or with constants, are asked for longer derivations. Small ones stay in the second
    pass: measured, it drops associativity and other laws that long derivations reach, and 9 of 63 axioms are lost.
    """
    kept: dict[int, Equation] = {}
    session = TensorSession()
    for done, equation in enumerate(equations):
        on_progress("minimizing", done, len(equations), f"{len(kept)} kept")
        if not session.derives(questions(equation), _effort(equation)):
            kept[session.add(*_lines(equation))] = equation
    large = [number for number, it in kept.items() if _effort(it) is THOROUGH]
    dropped: set[int] = set()
    for done, number in enumerate(reversed(large)):
        on_progress("minimizing again", done, len(large), f"{len(kept) - len(dropped)} kept")
        if session.derives(questions(kept[number]), THOROUGH, without={number, *dropped}):
            dropped.add(number)
    return sorted((it for number, it in kept.items() if number not in dropped), key=rank)


def _effort(equation: Equation) -> SaturationEffort:
    return THOROUGH if max(map(size_of, equation)) > SMALL_SIZE or _constants(equation) else EFFORT


def _constants(equation: Equation) -> bool:
    """Whether an equation has constants; such equations often are instances of equations without them."""
    return any(name in CONSTANTS for side in equation for name in ops_of(side))


def _lines(equation: Equation) -> list[str]:
    return [it.line(text(equation[0]) + str(it.backward) + text(equation[1])) for it in rewrites(equation)]
