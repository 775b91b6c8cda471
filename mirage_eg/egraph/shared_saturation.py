"""One saturation for all targets of the indexed domain that are equal up to the names of parts."""

from dataclasses import replace

from mirage_eg.egraph.expression import Constant, Expression, Term
from mirage_eg.egraph.laws import Literal, applications, patterns
from mirage_eg.egraph.oracle import BuildOracle, Limits, Oracle
from mirage_eg.egraph.rulebook import Rulebook

_MOST = 256  # saturated e-graphs that are kept, each with hundreds of rows


def _name_a_part(rulebook: Rulebook) -> bool:
    """Whether a law says the name of a part of a loop or grid."""
    if not any(end in theory.text for theory in rulebook.theories for end in ('.g"', '.l"')):
        return False  # at once: this is asked for each segment
    calls = (call for law in rulebook.laws for pattern in patterns(law) for call in applications(pattern))
    constants = (it for call in calls for it in call.arguments)
    return any(isinstance(it, Literal) and str(it.value).endswith((".g", ".l")) for it in constants)


_Saturated = dict[Limits, dict[Expression, Oracle]]  # by the limits without their seconds
_kept: list[tuple[Rulebook, _Saturated]] = []  # of one rulebook, changed at once: threads may have others


def _known(rulebook: Rulebook, limits: Limits) -> dict[Expression, Oracle]:
    """The saturated e-graphs of this process for a rulebook, which searches of other segments may have built."""
    saturated = next((known for it, known in _kept if it is rulebook), None)
    if saturated is None:
        _kept[:] = [(rulebook, saturated := {})]
    return saturated.setdefault(replace(limits, seconds=0.0), {})


def _saturated_before(target: Expression, limits: Limits, known: dict[Expression, Oracle]) -> Oracle | None:
    oracle = known.get(target)
    return oracle if oracle is not None and oracle.saturation.seconds <= limits.seconds else None


def share_renamed(build: BuildOracle, rulebook: Rulebook, limits: Limits | None = None) -> BuildOracle:
    """`build` with one saturation for all targets of the indexed domain that are equal up to the names of parts.

    A reduced axis that is split over the grid has the same laws as one that is looped. With `limits`, what this process has
    saturated within their seconds for another segment is not saturated again.
    """
    if rulebook.domain != "indexed" or _name_a_part(rulebook):
        return build  # parts of the abstract domain are sizes
    memo: dict[Expression, Oracle] = {}
    known: dict[Expression, Oracle] = {} if limits is None else _known(rulebook, limits)
    limits = limits or Limits()

    def build_shared(target: Expression) -> Oracle:
        names = _loop_names(target)
        renamed = _renamed(target, names)
        if renamed not in memo:
            memo[renamed] = _saturated_before(renamed, limits, known) or build(renamed)
            if memo[renamed].saturation.saturated and len(known) < _MOST:
                known[renamed] = memo[renamed]
        oracle = memo[renamed]
        back: dict[Constant, Constant] = {new: old for old, new in names.items()}
        table = {(name, *(back.get(it, it) for it in arguments)): class_ for (name, *arguments), class_ in oracle.table.items()}
        return replace(oracle, table=table) if names else oracle

    return build_shared


def _loop_names(target: Expression) -> dict[Constant, Constant]:
    """A loop part's name for every grid part of an axis without a loop part."""
    parts = {str(name) for item in target.terms for name in item.constants if isinstance(name, str)}.union(*target.free)
    renamed = {name: f"{name.removesuffix('.g')}.l" for name in parts if name.endswith(".g")}
    return {old: new for old, new in renamed.items() if new not in parts}


def _renamed(target: Expression, names: dict[Constant, Constant]) -> Expression:
    terms = (Term(it.constructor, tuple(names.get(name, name) for name in it.constants), it.children) for it in target.terms)
    free = (frozenset(str(names.get(part, part)) for part in parts) for parts in target.free)
    return replace(target, terms=tuple(terms), free=tuple(free))
