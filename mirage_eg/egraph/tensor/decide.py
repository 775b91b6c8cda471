"""Is a law of whole tensors true? Proved for all shapes by the normal form, refuted by a counterexample, ill-typed, or tested.

A law says more than its equation: it matches its left side at all shapes that fit it and the conditions. `extents` decides
whether the proof covers these.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from mirage_eg.egraph.laws import Law, Literal, variables_of
from mirage_eg.egraph.soundness.check_law import Counterexample, Truth
from mirage_eg.egraph.tensor.counterexamples import Tried, tried_equation, tried_law, tried_where_both_fit
from mirage_eg.egraph.tensor.extents import Unread, missing_conditions
from mirage_eg.egraph.tensor.normal_form import NoNormalForm, equal, proved
from mirage_eg.egraph.tensor.term import Equation, text
from mirage_eg.egraph.tensor.typing import RANK_OF_ANY, Attributes, IllTyped, TypedEquation, axes_of, term_ranks, typed
from mirage_eg.egraph.tensor.written import SAME, Written, WrittenLaw, with_open_sizes, written_laws
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.plurals import counted


@dataclass(frozen=True, slots=True)
class TensorVerdict:
    """A verdict, its reason or scope, the shapes at which both sides were computed, and what refutes the law.

    `missing`: conditions without which the law also matches where its right side has no value.
    """

    truth: Truth
    because: str = ""
    trials: int = 0
    counterexample: Counterexample | None = None
    missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.truth is Truth.PROVED

    def __str__(self) -> str:
        if self.truth is Truth.REFUTED:
            return f"{self.truth}: {self.counterexample}"
        words = {Truth.PROVED: "proved for all shapes", Truth.HELD: "tested"}.get(self.truth, str(self.truth))
        lines = [f"{words}: {self.because}" if self.because else words]
        return "\n".join([*lines, *(str(self.counterexample).splitlines() if self.counterexample else ())])


Laws = Callable[[TypedEquation], str | None]  # names the laws of elements that prove an equation for all shapes


def compare(equation: Equation, by_laws: Laws) -> TensorVerdict:
    """The verdict on two terms without sizes, at all shapes that fit both."""
    try:
        attributes = proved(equation)
        if attributes is not None:
            return TensorVerdict(Truth.PROVED, _by_normal_form(equation, attributes))
        found = tried_equation(equation)
        laws = None if found.counterexample else by_laws(typed(equation))
    except IllTyped as error:
        return _without_types(equation, str(error))
    if laws is not None:
        return TensorVerdict(Truth.PROVED, laws, found.trials)
    return _without_proof(found, "the normal forms differ")


def _without_types(equation: Equation, clash: str) -> TensorVerdict:
    """Types have one most general answer and refuse some terms that have shapes: shapes are looked for."""
    numbers = count()
    left, right = (with_open_sizes(side, numbers) for side in equation)
    try:
        ranks = term_ranks(equation)
        rank = ranks[""] if ranks[""] is not None else max([RANK_OF_ANY, *(axis + 2 for axis in axes_of(equation))])
        known = {name: rank if it is None else it for name, it in ranks.items() if name}
        found = tried_where_both_fit(left, right, rank, known)
    except (IllTyped, Unread, IndexError):
        return TensorVerdict(Truth.ILL_TYPED, clash)
    if not found.trials:
        return TensorVerdict(Truth.ILL_TYPED, clash)
    return _without_proof(found, "cuts at different places")


def decide(law: Law, by_laws: Laws) -> TensorVerdict:
    """The verdict on a law of a rule file, in all its directions and at every axis that it leaves open: the worst of them.

    Raises RuleError: the law says something else than that terms of whole tensors are equal.
    """
    verdicts = [_decided(it, by_laws) for it in written_laws(law)]
    order = (Truth.ILL_TYPED, Truth.REFUTED, Truth.HELD, Truth.PROVED)
    worst = min(verdicts, key=lambda it: order.index(it.truth))
    missing = dict.fromkeys(it for verdict in verdicts for it in verdict.missing)
    return replace(worst, trials=sum(it.trials for it in verdicts), missing=tuple(missing))


def _decided(law: WrittenLaw, by_laws: Laws) -> TensorVerdict:
    verdict = _at_all_shapes(law, by_laws)
    if verdict.truth is Truth.PROVED and verdict.missing:
        general = _abstracted(law)
        if general != law and (found := _at_all_shapes(general, by_laws)).truth is Truth.PROVED and not found.missing:
            return found
    return verdict


def _at_all_shapes(law: WrittenLaw, by_laws: Laws) -> TensorVerdict:
    equation = law.left.term, law.right.term
    attributes = attributes_of(law)
    try:
        ranks = {name: rank for name, rank in term_ranks(equation).items() if name}
        own = typed((law.left.term, law.left.term), attributes or Attributes())
    except IllTyped as error:
        return TensorVerdict(Truth.ILL_TYPED, str(error))
    proof, because = "", "the normal forms differ"
    try:
        known = typed(equation, attributes or Attributes())
        if attributes is None:
            because = "the law has windows, groups or poolings of different kinds"
        elif equal(known):
            proof = _by_normal_form(equation, attributes)
    except IllTyped as error:
        known, because = own, str(error)
    except NoNormalForm:
        because = "a side has no normal form"
    shown = {name: len(dims) for name, dims in known.variables.items()}
    shown |= {name: rank for name, rank in ranks.items() if rank is not None}
    found = None
    if not proof:
        found = _tried(law, len(known.left.dims), shown)
        if found.counterexample is None and known is not own:
            proof = by_laws(known) or ""
    missing: tuple[str, ...] = ()
    if proof:
        try:
            missing = tuple(missing_conditions(law, known))
        except Unread:
            proof, because = "", "equal where the shapes fit both sides; whether the law matches elsewhere is not decided"
        else:
            if not missing:
                return TensorVerdict(Truth.PROVED, proof)
    found = found or _tried(law, len(known.left.dims), shown)
    if proof and found.counterexample is None:
        return TensorVerdict(Truth.PROVED, f"{proof}, where the shapes fit both sides", found.trials, None, missing)
    return replace(_without_proof(found, because), missing=missing)


def _tried(law: WrittenLaw, rank: int, ranks: dict[str, int]) -> Tried:
    try:
        return tried_law(law, rank, ranks)
    except Unread:
        return Tried(None, 0)


def _without_proof(found: Tried, because: str) -> TensorVerdict:
    if found.counterexample is not None:
        return TensorVerdict(Truth.REFUTED, "counterexample", found.trials, found.counterexample)
    if not found.trials and found.misfit is not None:
        return TensorVerdict(Truth.ILL_TYPED, found.misfit.right.removeprefix("ill-typed: "), 0, found.misfit)
    if not found.trials:
        raise RuleError("no shapes were found at which both sides have a value, so nothing was tested")
    elsewhere = "; at others only the left side has a value" if found.misfit is not None else ""
    shapes = counted(found.trials, "shape")
    return TensorVerdict(Truth.HELD, f"{because}; equal at {shapes}{elsewhere}", found.trials)


def attributes_of(law: WrittenLaw) -> Attributes | None:
    """The windows and groups of a law; None if it mixes them."""
    parts = [
        it for side in (law.left, law.right) for it in side.parts() if it.name.startswith(("Conv2d", "AvgPool", "MaxPool"))
    ]
    windows = {it.window for it in parts}
    groups = {it.groups for it in parts if it.name.startswith("Conv2d")}
    if len(windows) > 1 or len(groups) > 1:
        return None
    kernels = {it.sizes for it in parts if it.sizes}
    if len(kernels) > 1:
        return None  # the type has one kernel for all poolings
    return Attributes(windows > {SAME} or bool(windows - {SAME}), bool(groups - {Literal(1)}))


def _by_normal_form(equation: Equation, attributes: Attributes) -> str:
    axes = axes_of(equation)
    rank = [f"every rank from {max(axes) + 1}"] if axes and set(term_ranks(equation).values()) == {None} else []
    return " and ".join(["normal form", *scope(equation, attributes), *rank]).replace("normal form and", "normal form, for", 1)


def scope(equation: Equation, attributes: Attributes) -> Iterator[str]:
    """For which convolutions and poolings an equation is proved."""
    terms = " ".join(map(text, equation))
    if "Conv2d" in terms or "Pool" in terms:
        yield "any stride, padding and dilation" if attributes.any_window else "stride 1 and centred windows"
    if "Conv2d" in terms:
        yield "any groups" if attributes.any_groups else "one group"


def _abstracted(law: WrittenLaw) -> WrittenLaw:
    """The law with a variable for each term that both sides have and whose variables occur nowhere else: a stronger law."""
    counts = Counter(it.name for side in (law.left, law.right) for it in side.parts() if it.is_variable)
    conditions = {name for it in law.conditions for name in variables_of(it)}
    common = [it for it in law.left.parts() if it in set(law.right.parts()) and not it.is_variable]
    for number, part in enumerate(common):
        inside = Counter(it.name for it in part.parts() if it.is_variable)
        times = sum(it == part for side in (law.left, law.right) for it in side.parts())
        if inside and not conditions & inside.keys() and all(counts[name] == times * own for name, own in inside.items()):
            fresh = Written(f"part{number}", is_variable=True)
            return _abstracted(WrittenLaw(_with(law.left, part, fresh), _with(law.right, part, fresh), law.conditions))
    return law


def _with(term: Written, part: Written, by: Written) -> Written:
    return by if term == part else replace(term, operands=tuple(_with(it, part, by) for it in term.operands))
