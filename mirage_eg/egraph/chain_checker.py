"""Replay a proof chain: pattern match and substitution, no e-graph. Trusted, with `equations` and `side_conditions`."""

from typing import Any

from mirage_eg.egraph.equations import Equation, UnboundError, equations, instance
from mirage_eg.egraph.expression import Constant, Tree
from mirage_eg.egraph.laws import sorts_of
from mirage_eg.egraph.proof_chain import Path, ProofChain, ProofStep
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.side_conditions import SideConditions
from mirage_eg.egraph.term_text import children_of_tree, parse_constant, parse_term, show_term
from mirage_eg.ir.errors import MirageError


class ChainError(MirageError):
    """A chain with a step that no law of the rulebook allows; the message has the number of the step."""


def check_chain(chain: ProofChain, rulebook: Rulebook) -> None:
    """Replay a chain: each step is an instance of its law, the conditions of the law hold, and the terms follow.

    Raises:
        ChainError: a step that is wrong.
        OptionError: a term that does not parse.
    """
    signatures = rulebook.signatures
    free = {name: frozenset(parts) for name, parts in chain.free}
    term = parse_term(chain.start, signatures, free)
    context = (term, parse_term(chain.end, signatures, free))
    facts = SideConditions(rulebook.laws, signatures, free, context, dict(chain.extents))
    claims = {law.name: equations(law, signatures) for law in rulebook.laws if law.name in chain.laws}
    for number, step in enumerate(chain.steps, 1):
        place = f"step {number} ({step.law})"
        if not claims.get(step.law):
            raise ChainError(f"{place}: got a law that is no equation of the loaded theories")
        if not step.positions:
            raise ChainError(f"{place}: got no position, wanted one or more")
        after = parse_term(step.term, signatures, free)
        reached = [_replay(term, step, claim, facts) for claim in claims[step.law]]
        if after not in [tree for tree in reached if not isinstance(tree, str)]:
            problem = next((it for it in reached if isinstance(it, str)), None)
            raise ChainError(f"{place}: {problem or f'the law gives another term than {step.term}'}")
        term = after


def _replay(term: Tree, step: ProofStep, claim: Equation, facts: SideConditions) -> Tree | str:
    """The term after a step, or the reason why the equation does not allow it."""
    names = [name for name, _ in step.substitution]
    if sorted(names) != sorted(claim.variables):
        return f"got values of {', '.join(names) or 'no variables'}, wanted {', '.join(claim.variables) or 'none'}"
    given = _values(step, claim, facts)
    solution = next(facts.solutions(claim.conditions, given), None)
    if solution is None or any(solution[name] != given[name] for name in given):
        return "a condition of the law does not hold"
    try:
        left, right = (instance(side, solution, facts.signatures) for side in (claim.left, claim.right))
    except (UnboundError, ArithmeticError):
        return "a side of the law has no value"
    before, after = (left, right) if step.forward else (right, left)
    for path in step.positions:
        if (found := subterm(term, path)) is None:
            return f"the term has no subterm at {path}"
        if found != before:
            return f"got {show_term(found)} at {path}, wanted {show_term(before)}"
        term = with_subterm(term, path, after)
    return term


def _values(step: ProofStep, claim: Equation, facts: SideConditions) -> dict[str, Tree | Constant]:
    """The substitution, read by the sorts of the variables."""
    sorts = sorts_of((claim.left, claim.right), facts.signatures)
    return {
        name: parse_term(text, facts.signatures, facts.free)
        if sorts.get(name, "E") == "E"
        else parse_constant(text, sorts[name])
        for name, text in step.substitution
    }


def subterm(term: Tree, path: Path) -> Tree | None:
    """The subterm at a path, or None if there is none."""
    for child in path:
        children = children_of_tree(term)
        if not 0 <= child < len(children):
            return None
        term = children[child]
    return term


def with_subterm(term: Tree, path: Path, new: Tree) -> Tree:
    """The term with another subterm at a path that it has."""
    if not path:
        return new
    first, *rest = path
    parts: list[Any] = list(term)
    at = [place for place, part in enumerate(parts) if isinstance(part, tuple)][first]
    parts[at] = with_subterm(parts[at], tuple(rest), new)
    return tuple(parts)
