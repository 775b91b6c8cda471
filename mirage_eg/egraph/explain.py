"""Why the oracle keeps or prunes an expression: a path of e-nodes from an output, each with the law that added it.

The explanation reads the frozen table only. The search does not need this file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.laws import Apply, Law, Literal, Pattern, Variable
from mirage_eg.egraph.oracle import Key, Oracle, children_of, show_node, spellings
from mirage_eg.egraph.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Explanation:
    """A path of e-nodes from an output down to the class of a kept expression; or the first e-node that is pruned."""

    kept: bool
    steps: tuple[tuple[str, str], ...]  # an e-node, and the law that added it, or "the program"

    def __str__(self) -> str:
        head = "kept: it is part of the program by" if self.kept else "pruned at"
        return "\n".join([head, *(f"  {node}  [{reason}]" for node, reason in self.steps)])


def explain(
    oracle: Oracle, expression: Expression, term: int, rulebook: Rulebook, program: Expression, names: Sequence[str] = ()
) -> Explanation:
    """Why the oracle for `program` keeps a term of `expression`, or the first subterm that the oracle prunes.

    `names` are those of the program's inputs, and replace x0, x1 … in the text.
    """
    classes: list[int | None] = []
    for position, item in enumerate(expression.terms[: term + 1]):
        children = [classes[child] for child in item.children]
        class_ = None
        if None not in children:
            class_ = oracle.class_of(expression, position)
            if class_ is None and _is_subterm(expression, term, position):
                node = " ".join([item.constructor, *map(str, item.constants), *(f"#{child}" for child in children)])
                return Explanation(False, ((node, "no expression that the laws make equal to the program has this e-node"),))
        classes.append(class_)
    goal = classes[term]
    if goal is None:
        raise AssertionError("a pruned term has a pruned subterm that the loop meets first")
    of_program = {
        (item.constructor, *item.constants, *(oracle.class_of(program, child) for child in item.children))
        for item in program.terms
    }
    finder = _LawFinder(oracle, rulebook)
    path = _path(oracle, goal)
    steps = [(show_node(oracle, key, names), "the program" if key in of_program else finder.reason(key)) for key in path]
    return Explanation(True, tuple(steps) or (("the program itself", "the program"),))


def _is_subterm(expression: Expression, term: int, position: int) -> bool:
    subterms = {term}
    for parent in range(term, position, -1):
        if parent in subterms:
            subterms.update(expression.terms[parent].children)
    return position in subterms


def _path(oracle: Oracle, goal: int) -> list[Key]:
    """A shortest path of e-nodes from an output to the class `goal`."""
    by_class: dict[int, list[Key]] = {}
    for key, class_ in oracle.table.items():
        by_class.setdefault(class_, []).append(key)
    frontier = list(oracle.outputs)
    paths: dict[int, list[Key]] = {class_: [] for class_ in frontier}
    for class_ in frontier:
        for key in by_class.get(class_, ()):
            for child in children_of(oracle, key):
                if child not in paths:
                    paths[child] = [*paths[class_], key]
                    frontier.append(child)
    return paths[goal]


class _LawFinder:
    """Finds a law that added an e-node to its class: one side matches the e-node, the other side the class."""

    def __init__(self, oracle: Oracle, rulebook: Rulebook) -> None:
        matched = {name for name, _ in oracle.saturation.matches}
        self.laws = [law for law in rulebook.laws if law.sides and any(name in matched for name in spellings(law.name))]
        self.nodes: dict[int, list[Key]] = {}
        self.oracle = oracle
        for key, class_ in oracle.table.items():
            self.nodes.setdefault(class_, []).append(key)

    def reason(self, key: Key) -> str:
        """The name of the law that added an e-node."""
        class_ = self.oracle.table[key]
        for law in self.laws:
            for left, right in _directions(law):
                for bound in self._match_node(right, key, {}):
                    if any(True for _ in self._match(left, class_, bound)):
                        return law.name
        return "several laws together"

    def _match(self, pattern: Pattern, value: object, bound: dict[str, object]) -> Iterator[dict[str, object]]:
        match pattern:
            case Variable(name):
                if bound.setdefault(name, value) == value:
                    yield bound
            case Literal(literal):
                if literal == value:
                    yield bound
            case Apply() if isinstance(value, int):
                for key in self.nodes.get(value, ()):
                    yield from self._match_node(pattern, key, dict(bound))

    def _match_node(self, pattern: Pattern, key: Key, bound: dict[str, object]) -> Iterator[dict[str, object]]:
        if not isinstance(pattern, Apply) or pattern.name != key[0] or len(pattern.arguments) != len(key) - 1:
            return
        matches = [dict(bound)]
        for argument, value in zip(pattern.arguments, key[1:], strict=True):
            matches = [longer for shorter in matches for longer in self._match(argument, value, dict(shorter))]
        yield from matches


def _directions(law: Law) -> Iterator[tuple[Pattern, Pattern]]:
    assert law.sides is not None
    left, right = law.sides
    yield left, right
    if law.form == "birewrite":
        yield right, left
