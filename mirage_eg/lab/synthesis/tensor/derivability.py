"""Do rewrites of tensors derive an equation? Asked of an e-graph that holds one side of it only, with shapes.

The shapes are ground: each segment has an extent of its own, so that no condition holds by chance. The rewrites are the lines
of the rule file, conditions and all. They are compiled once; each question has a copy of the e-graph for itself.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import Apply, Literal, Pattern
from mirage_eg.egraph.rule_files import packaged_text
from mirage_eg.egraph.scheduler import count_nodes
from mirage_eg.egraph.tensor.normal_form import proved
from mirage_eg.egraph.tensor.term import Equation
from mirage_eg.egraph.tensor.typing import Dim, TypedEquation, TypedTerm, typed
from mirage_eg.egraph.tensor.written import SAME, Written, text_of, written
from mirage_eg.egraph.terms import run_once
from mirage_eg.lab.synthesis.derivation import SaturationEffort
from mirage_eg.lab.synthesis.tensor.rule_lines import rewrites

_PADDED = Apply("Padded", tuple(map(Literal, (2, 2, 1, 1, 1, 1, 1, 1))))  # any window with a stride
_GROUPS = 7  # the language's shape rules do not look at groups
_STRIDE = 2


@dataclass(frozen=True, slots=True)
class TensorQuestion:
    """Do rewrites turn `start` into `goal`? `shapes` are the facts about the inputs."""

    start: str
    goal: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


@cache
def questions(equation: Equation) -> tuple[TensorQuestion, ...]:
    """The directions of a proved equation that a rule file can have; all must be answered by yes."""
    attributes = proved(equation)
    assert attributes is not None
    known = typed(equation, attributes)
    asked = question(known)
    swapped = TensorQuestion(asked.goal, asked.start, asked.shapes)
    return tuple(swapped if it.backward else asked for it in rewrites(equation))


def question(known: TypedEquation) -> TensorQuestion:
    """Whether rewrites turn the left side into the right one, at extents that are all different."""
    shapes = tuple((name, tuple(extent_of(dim, known) for dim in dims)) for name, dims in known.variables.items())
    return TensorQuestion(_ground(known.left, known), _ground(known.right, known), shapes)


def extent_of(dim: Dim, equation: TypedEquation) -> int:
    """An odd extent for each segment, larger for enlarged kernels; sums of few of them differ."""
    total = 0
    for segment in equation.shapes.word(dim):
        if isinstance(segment, int):
            total += 2 * (10_007 * (segment + 3) + 97 * (segment + 3) ** 3) + 1
        else:
            total += 1 + (extent_of(segment[2], equation) - extent_of(segment[3], equation) + 2) // _STRIDE
    return total


def _ground(term: TypedTerm, equation: TypedEquation) -> str:
    shapes = equation.shapes

    def sizes(part: TypedTerm) -> tuple[Pattern, ...]:
        extents: list[Pattern] = [Literal(extent_of(dim, equation)) for dim in part.slots]
        if part.op == "Iconv":
            every = (*equation.variables.values(), shapes.kernels)
            decided = {it for dims in every for dim in dims for it in shapes.word(dim)}
            extents[1:] = [  # as `rewrites` writes it
                size if decided >= set(shapes.word(dim)) else Literal(1)
                for size, dim in zip(extents[1:], part.slots[1:], strict=True)
            ]
        return (Apply("vec-of", tuple(extents)),) if part.op == "One" else tuple(extents)

    window = _PADDED if shapes.attributes.any_window else SAME
    return text_of(_with_inputs(written(term, sizes, window, Literal(_GROUPS if shapes.attributes.any_groups else 1))))


def _with_inputs(term: Written) -> Written:
    if term.is_variable:
        return replace(term, name=f'(Input "{term.name}")')
    return replace(term, operands=tuple(map(_with_inputs, term.operands)))


class TensorSession:
    """Compiled laws, each a ruleset of its own; each question has a copy of the e-graph, cheap while it has no terms."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self._egraph = bindings.EGraph()
        self._laws = 0
        self._combined: dict[tuple[int, ...], str] = {}  # the ruleset of some laws
        self._run(packaged_text("tensor/00_language.egg"))
        if rules:
            self.add(*rules)

    def add(self, *rules: str) -> int:
        """Use one more law, in all its directions, for the questions to come; its number."""
        number, self._laws = self._laws, self._laws + 1
        self._run(
            "\n".join((f"(ruleset law{number})", *(it.replace(":ruleset tensor", f":ruleset law{number}") for it in rules)))
        )
        return number

    def derives(self, asked: Iterable[TensorQuestion], effort: SaturationEffort, without: Container[int] = ()) -> bool:
        """Whether the laws, but for those `without`, answer all these questions by yes."""
        ruleset = self._ruleset(tuple(it for it in range(self._laws) if it not in without))
        return all(self._reaches(it, effort, ruleset) for it in asked)

    def _ruleset(self, laws: tuple[int, ...]) -> str:
        if laws not in self._combined:
            name = f"combined{len(self._combined)}"
            self._run(f"(unstable-combined-ruleset {name} {' '.join(f'law{number}' for number in laws)})")
            self._combined[laws] = name
        return self._combined[laws]

    def _reaches(self, question: TensorQuestion, effort: SaturationEffort, ruleset: str) -> bool:
        self._run("(push)")
        for name, shape in question.shapes:
            extents = f"(vec-of {' '.join(map(str, shape))})" if shape else "(vec-empty)"
            self._run(f'(set (shape (Input "{name}")) {extents})')
        self._run(f"(let $start {question.start})")
        self._shapes()
        reached = self._holds(question)
        for _ in range(effort.iterations):
            if reached or count_nodes(self._egraph) > effort.nodes or not run_once(self._egraph, ruleset).updated:
                break
            self._shapes()
            reached = self._holds(question)
        self._run("(pop)")
        return reached

    def _holds(self, question: TensorQuestion) -> bool:
        try:
            self._run(f"(check (= $start {question.goal}))")
        except bindings.EggSmolError as error:
            if "Check failed" in str(error):
                return False
            raise
        return True

    def _shapes(self) -> None:
        while run_once(self._egraph, "shapes").updated:
            pass  # shapes only go up the terms

    def _run(self, text: str) -> list[Any]:
        return self._egraph.run_program(*self._egraph.parse_program(text))
