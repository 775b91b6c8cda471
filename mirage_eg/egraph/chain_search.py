"""Find a proof chain: apply laws to two terms until they are equal, and read the chain from the recorded reasons.

egglog 13.2 has proofs in Rust, but its Python bindings cannot switch them on. So the laws that suffice, found by egglog, are
applied once more here, to an e-graph that records reasons (`congruence`). Not trusted: `check_chain` replays each chain.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from time import thread_time
from typing import Any

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.egraph.chain_checker import with_subterm
from mirage_eg.egraph.congruence import CongruenceClosure, Rewrite
from mirage_eg.egraph.equations import Equation, equations, instance, is_constructed, match_tree
from mirage_eg.egraph.expression import Constant, Expression, Tree
from mirage_eg.egraph.laws import Apply, Pattern, Signature, Variable, applications, sides_of, variables
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.proof_chain import ProofChain, ProofStep
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.side_conditions import SideConditions
from mirage_eg.egraph.term_text import show_constant, show_term, tree_size, trees_of

CHAIN_LIMITS = Limits(iterations=40, nodes=20_000, seconds=10.0)
MOST_STEPS = 200  # of a chain that is shown
LARGEST_TERM = 400  # constructors of a term that is shown
_CHOICES = 64  # of terms for the variables of a conditional law, in one match

_Match = dict[str, Any]  # of variables: numbers of terms, and constants


@dataclass(frozen=True, slots=True)
class Chains:
    """A chain for each pair of outputs, or the reason why there is none to show, or only a part of the proof.

    `refused`: the reason why the checker does not accept the proof.
    """

    chains: tuple[ProofChain, ...] = ()
    missing: str | None = None
    refused: str | None = None


def find_chains(
    joint: Expression, laws: Collection[str], rulebook: Rulebook, names: Sequence[str] = (), limits: Limits = CHAIN_LIMITS
) -> Chains:
    """Chains from the first half of the outputs to the second half by the named laws; `names` are those of the inputs."""
    half = len(joint.outputs) // 2
    named = names if len(names) == len(joint.inputs) == len(set(names)) else [f"x{k}" for k in range(len(joint.inputs))]
    sizes: list[int] = []
    for term in joint.terms:
        sizes.append(1 + sum(sizes[child] for child in term.children))
    if max(sizes[output] for output in joint.outputs) > LARGEST_TERM:
        return Chains(missing=f"the terms have more than {LARGEST_TERM} constructors: a chain is too long to show")
    every = trees_of(joint, rulebook.signatures, named)
    trees = [every[position] for position in joint.outputs]
    free = dict(zip(named, joint.free, strict=True))
    search = _Search(trees, laws, rulebook, free, joint.extents)
    if (missing := search.run(limits)) is not None:
        return Chains(missing=missing)
    found = [search.chain(left, right) for left, right in zip(trees[:half], trees[half:], strict=True)]
    wrong = next((it for it in found if isinstance(it, str)), None)
    return Chains(missing=wrong) if wrong else Chains(tuple(it for it in found if isinstance(it, ProofChain)))


class _Number(int):
    """The number of a term, which is no constant."""


@dataclass(frozen=True, slots=True)
class _Direction:
    """An equation with the side that is matched."""

    equation: Equation
    side: Apply
    conditional: frozenset[str]  # the variables of its conditions
    related: bool  # whether a condition is a relation, which holds for a term by its constructor


def _directions(equation: Equation, signatures: Mapping[str, Signature]) -> Iterator[_Direction]:
    applied = [part for it in equation.conditions for side in sides_of(it) for part in applications(side)]
    names = frozenset(name for it in equation.conditions for side in sides_of(it) for name in variables(side))
    related = any(part.name in signatures and signatures[part.name].kind == "relation" for part in applied)
    for side in (equation.left, equation.right) if equation.bidirectional else (equation.left,):
        if isinstance(side, Apply) and is_constructed(side, signatures):
            yield _Direction(equation, side, names, related)


class _Search:
    """The saturation of the subterms of some trees by some laws, until pairs of them are equal."""

    def __init__(
        self,
        trees: Sequence[Tree],
        laws: Collection[str],
        rulebook: Rulebook,
        free: Mapping[str, frozenset[str]],
        extents: tuple[tuple[str, int], ...],
    ) -> None:
        self.extents = extents
        self.trees, self.free, self.signatures = trees, free, rulebook.signatures
        self.closure = CongruenceClosure()
        self.facts = SideConditions(rulebook.laws, rulebook.signatures, free, trees, dict(extents))
        self.directions = [
            direction
            for law in rulebook.laws
            if law.name in laws
            for equation in equations(law, rulebook.signatures)
            for direction in _directions(equation, rulebook.signatures)
        ]
        self.applied: set[tuple[Any, ...]] = set()
        self.by_name: dict[str, list[int]] = {}  # terms of the current iteration, one for each e-node
        self.by_class: dict[int, dict[str, list[int]]] = {}
        self.lacking: dict[tuple[int, str], int | None] = {}

    def run(self, limits: Limits) -> str | None:
        """Apply the laws until the pairs are equal; the reason if they do not become so."""
        numbers = [self.closure.add(tree) for tree in self.trees]
        pairs = list(zip(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :], strict=True))
        start = thread_time()
        for _ in range(limits.iterations):
            if all(self.closure.find(left) == self.closure.find(right) for left, right in pairs):
                return None
            size = len(self.applied)
            self._index()
            for direction in self.directions:
                for match in list(self._matches(direction)):
                    raise_if_stopped()
                    self._apply(direction, match)
                    if len(self.closure) > limits.nodes or thread_time() - start > limits.seconds:
                        return f"no chain within {limits.nodes:,} terms and {limits.seconds:g} s"
            if not self.directions:
                return "no chain: the terms differ, and no law is named that makes them equal"
            if len(self.applied) == size:
                return "no chain: a condition of a law holds for a class of terms, and for no term of it that was tried"
        return f"no chain within {limits.iterations} iterations"

    def _index(self) -> None:
        self.by_name, self.by_class, self.lacking = {}, {}, {}
        for number in self.closure.table.values():
            name = self.closure.enodes[number][0][0]
            self.by_name.setdefault(name, []).append(number)
            self.by_class.setdefault(self.closure.find(number), {}).setdefault(name, []).append(number)

    def _matches(self, direction: _Direction) -> Iterator[_Match]:
        for number in self.by_name.get(direction.side.name, ()):
            yield from self._match_enode(direction.side, number, {})

    def _match(self, pattern: Pattern, number: int, bound: _Match) -> Iterator[_Match]:
        if isinstance(pattern, Variable):
            known = bound.get(pattern.name)
            if known is None:
                yield bound | {pattern.name: _Number(number)}
            elif isinstance(known, _Number) and self.closure.find(known) == self.closure.find(number):
                yield bound
        elif isinstance(pattern, Apply):
            own = self.closure.canonical(number)
            for other in self.by_class.get(self.closure.find(number), {}).get(pattern.name, ()):
                same = self.closure.canonical(other) == own  # the term itself makes the shorter chain
                yield from self._match_enode(pattern, number if same else other, bound)

    def _match_enode(self, pattern: Apply, number: int, bound: _Match) -> Iterator[_Match]:
        (name, constants), children = self.closure.enodes[number]
        if name != pattern.name:
            return
        matches, operands = [bound], iter(children)
        for argument, constant in zip(pattern.arguments, constants, strict=True):
            if constant is None:
                child = next(operands)
                matches = [longer for match in matches for longer in self._match(argument, child, match)]
            else:
                found = (self._with_constant(argument, constant, match) for match in matches)
                matches = [longer for longer in found if longer is not None]
        yield from matches

    def _with_constant(self, pattern: Pattern, constant: Constant, bound: _Match) -> _Match | None:
        values = dict(bound)
        return values if match_tree(pattern, constant, values, self.signatures) else None

    def _apply(self, direction: _Direction, match: _Match) -> None:
        find = self.closure.find
        classes = tuple(find(value) if isinstance(value, _Number) else value for value in match.values())
        key = (direction.equation.law, direction.side, *classes)
        if key in self.applied or (values := self._values(direction, match)) is None:
            return
        self.applied.add(key)
        equation = direction.equation
        left, right = (self._put(side, values) for side in (equation.left, equation.right))
        trees = self.closure.trees
        pairs = ((name, values[name]) for name in equation.variables)
        substitution = tuple((name, trees[it] if isinstance(it, _Number) else it) for name, it in pairs)
        self.closure.union(left, right, Rewrite(equation.law, substitution))

    def _values(self, direction: _Direction, match: _Match) -> _Match | None:
        """The match with terms for which the conditions hold, and with what they define; None if no terms were found."""
        conditions = direction.equation.conditions
        if not conditions:
            return match
        trees = self.closure.trees
        choices = {name: self._choices(direction, name, match) for name in match if isinstance(match[name], _Number)}
        for chosen in islice(product(*choices.values()), _CHOICES):
            values = match | dict(zip(choices, map(_Number, chosen), strict=True))
            given = {name: trees[value] if isinstance(value, _Number) else value for name, value in values.items()}
            solution = next(self.facts.solutions(conditions, given), None)
            if solution is not None:
                defined = {name: value for name, value in solution.items() if name not in values}
                return values | {
                    name: _Number(self.closure.add(it)) if isinstance(it, tuple) else it for name, it in defined.items()
                }
        return None

    def _choices(self, direction: _Direction, name: str, match: _Match) -> list[int]:
        """Terms of the class of a variable for which conditions may hold: a condition may hold for one form of a value only."""
        number = match[name]
        if name not in direction.conditional:
            return [number]
        parts = [value for value in match.values() if isinstance(value, str)]
        without = (self._lacking(self.closure.find(number), part) for part in parts)
        members = self.closure.members(number)[:_CHOICES] if direction.related else []
        return list(dict.fromkeys([number, *(it for it in without if it is not None), *members]))

    def _lacking(self, class_: int, part: str) -> int | None:
        """A term of a class that does not vary with a part of an axis, if there is one."""
        key = class_, part
        if key not in self.lacking:
            self.lacking[key] = None  # a term is not within itself
            self.lacking[key] = next(self._lacking_terms(class_, part), None)
        return self.lacking[key]

    def _lacking_terms(self, class_: int, part: str) -> Iterator[int]:
        for number in self.closure.members(class_):
            if part not in self.facts.axes(self.closure.trees[number]):
                yield number
        for numbers in self.by_class.get(class_, {}).values():
            for number in numbers:
                label, children = self.closure.enodes[number]
                found = [self._lacking(self.closure.find(child), part) for child in children]
                if None not in found:
                    yield self.closure.add_enode(label, tuple(it for it in found if it is not None))

    def _put(self, pattern: Pattern, values: _Match) -> Any:
        """The number of an instance of a pattern, or its constant."""
        match pattern:
            case Apply(name, arguments) if is_constructed(pattern, self.signatures):
                parts = [self._put(argument, values) for argument in arguments]
                children = tuple(int(part) for part in parts if isinstance(part, _Number))
                constants = tuple(None if isinstance(part, _Number) else part for part in parts)
                return _Number(self.closure.add_enode((name, constants), children))
            case _:
                return instance(pattern, values, self.signatures)

    def chain(self, left: Tree, right: Tree) -> ProofChain | str:
        """The chain between two equal terms, or the reason why it is not shown."""
        closure = self.closure
        first, last = closure.add(left), closure.add(right)
        if (length := closure.distance(first, last)) > MOST_STEPS:
            return f"the chain has {length:,} steps, which is too long to show; at most {MOST_STEPS} are shown"
        free = tuple((name, tuple(sorted(parts))) for name, parts in self.free.items())
        term, steps, texts = left, list[ProofStep](), [show_term(left)]
        for move in closure.moves(first, last):
            for path in move.paths:
                term = with_subterm(term, path, closure.trees[move.result])
            if tree_size(term) > LARGEST_TERM:
                return f"a term of the chain has more than {LARGEST_TERM} constructors, which is too long to show"
            text = show_term(term)
            if text in texts:  # a detour
                cut = texts.index(text)
                del texts[cut + 1 :], steps[cut:]
                continue
            texts.append(text)
            steps.append(ProofStep(move.rewrite.law, move.forward, _texts(move.rewrite), move.paths, text))
        return ProofChain(texts[0], tuple(steps), free, self.extents)


def _texts(rewrite: Rewrite) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, show_term(value) if isinstance(value, tuple) else show_constant(value)) for name, value in rewrite.substitution
    )
