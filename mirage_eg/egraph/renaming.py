"""One e-graph for the splits that differ in the names of parts alone: an axis that is spread is cut like one that is looped."""

from dataclasses import replace

from mirage_eg.egraph.expression import Constant, Expression, Term
from mirage_eg.egraph.oracle import Build, Oracle
from mirage_eg.egraph.rulebook import Rulebook


def share_renamed(build: Build, rulebook: Rulebook) -> Build:
    """`build`, that saturates once for all targets of the indexed domain that are equal up to the names of parts."""
    if rulebook.domain != "indexed" or any(f'.{part}"' in theory.text for theory in rulebook.theories for part in "gl"):
        return build  # the abstract domain has sizes for parts; a law may speak of one part
    known: dict[Expression, Oracle] = {}

    def build_shared(target: Expression) -> Oracle:
        names = _renaming(target)
        renamed = _rename_target(target, names)
        if renamed not in known:
            known[renamed] = build(renamed)
        oracle = known[renamed]
        if not names:
            return oracle
        back: dict[Constant, Constant] = {new: old for old, new in names.items()}
        table = {(name, *(back.get(it, it) for it in arguments)): class_ for (name, *arguments), class_ in oracle.table.items()}
        return replace(oracle, table=table)

    return build_shared


def _renaming(target: Expression) -> dict[Constant, Constant]:
    """Every grid part of an axis that has no loop part, as a loop part."""
    parts = {str(name) for term in target.terms for name in term.constants if isinstance(name, str)}.union(*target.free)
    spread = {name: f"{name.removesuffix('.g')}.l" for name in parts if name.endswith(".g")}
    return {old: new for old, new in spread.items() if new not in parts}


def _rename_target(target: Expression, names: dict[Constant, Constant]) -> Expression:
    terms = (Term(it.constructor, tuple(names.get(name, name) for name in it.constants), it.children) for it in target.terms)
    free = (frozenset(str(names.get(part, part)) for part in parts) for parts in target.free)
    return replace(target, terms=tuple(terms), free=tuple(free))
