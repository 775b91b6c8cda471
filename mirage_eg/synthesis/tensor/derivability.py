"""Do rewrites of tensors derive an equation? Asked of an e-graph that holds one side of it only, with shapes.

The shapes are ground: each segment has an extent of its own, so that no condition holds by chance. The rewrites are the lines
of the rule file, conditions and all. Many questions share an e-graph; their variables have names of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from egglog import bindings

from mirage_eg.egraph.terms import run_once, table_sizes
from mirage_eg.synthesis.derivation import SaturationEffort
from mirage_eg.synthesis.tensor.normal_form import proved
from mirage_eg.synthesis.tensor.ops import op
from mirage_eg.synthesis.tensor.rule_lines import rewrites
from mirage_eg.synthesis.tensor.term import Equation
from mirage_eg.synthesis.tensor.typing import Dim, TypedEquation, TypedTerm, typed

_PADDED = "(Padded 2 2 1 1 1 1 1 1)"  # any window with a stride
_GROUPS = "7"  # the language's shape rules do not look at groups
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
    shapes = tuple((name, tuple(extent_of(dim, known) for dim in dims)) for name, dims in known.variables.items())
    sides = [_ground(side, known) for side in (known.left, known.right)]
    return tuple(TensorQuestion(sides[it.backward], sides[not it.backward], shapes) for it in rewrites(equation))


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
    if isinstance(term.term, str):
        return f'(Input "{term.term}@")'
    row = op(term.op)
    attributes = equation.shapes.attributes
    window = _PADDED if attributes.any_window else "(Same)"
    head = [row.base]
    if row.base == "Conv2d":
        head += [window, _GROUPS if attributes.any_groups else "1", f'"{term.op.split()[1]}"']
    elif row.base in ("AvgPool", "MaxPool"):
        head.append(window)
    elif row.base == "Unary":
        head.append(f'"{term.op.split()[1]}"')
    elif row.base in ("Concat", "Split0", "Split1"):
        head.append(str(row.axis))
    slots = [str(extent_of(dim, equation)) for dim in term.slots]
    if row.base == "Iconv":
        decided = {
            it
            for dims in (*equation.variables.values(), equation.shapes.kernels)
            for dim in dims
            for it in equation.shapes.word(dim)
        }
        slots[1:] = [
            size if decided >= set(equation.shapes.word(dim)) else "1"
            for size, dim in zip(slots[1:], term.slots[1:], strict=True)
        ]  # as `rewrites` writes it
    if row.base == "One":
        slots = [f"(vec-of {' '.join(slots)})"]
    return f"({' '.join([*head, *slots, *(_ground(it, equation) for it in term.operands)])})"


@cache
def language() -> str:
    """The declarations of rules/tensor, with the shapes of ops."""
    return (resources.files("mirage_eg") / "rules" / "tensor" / "00_language.egg").read_text(encoding="utf-8")


class TensorSession:
    """One e-graph for many questions: rewrites are added, and answers read, without inserting the goals."""

    def __init__(self, rules: Iterable[str], asked: Sequence[TensorQuestion], effort: SaturationEffort) -> None:
        self._asked, self._effort = asked, effort
        self._open = set(range(len(asked)))
        self._egraph = bindings.EGraph()
        self._run(language())
        for number, question in enumerate(asked):
            for name, shape in question.shapes:
                extents = f"(vec-of {' '.join(map(str, shape))})" if shape else "(vec-empty)"
                self._run(f'(set (shape (Input "{name}@{number}")) {extents})')
            self._run(f"(let $start{number}_ {question.start.replace('@', f'@{number}')})")
        self._shapes()
        self.add(*rules)

    def _run(self, text: str) -> list[Any]:
        return self._egraph.run_program(*self._egraph.parse_program(text))

    def _shapes(self) -> None:
        while run_once(self._egraph, "shapes").updated:
            pass  # shapes only go up the terms

    @property
    def nodes(self) -> int:
        """The number of e-nodes."""
        return sum(size for name, size in table_sizes(self._egraph) if name[0].isupper())

    @property
    def crowded(self) -> bool:
        """Whether the e-graph is too large for further rewrites."""
        return self.nodes > self._effort.nodes

    def add(self, *rules: str) -> None:
        """Add rewrites, and apply all."""
        if rules:
            self._run("\n".join(rules))
        for _ in range(self._effort.iterations):
            if self.crowded or not run_once(self._egraph, "tensor").updated:
                break
            self._shapes()

    def answers(self) -> list[bool]:
        """Which goals are in the classes of their starts."""
        for number in sorted(self._open):
            if self._reached(number):
                self._open.discard(number)
        return [number not in self._open for number in range(len(self._asked))]

    def _reached(self, number: int) -> bool:
        goal = self._asked[number].goal.replace("@", f"@{number}")
        try:
            self._run(f"(check (= $start{number}_ {goal}))")
        except bindings.EggSmolError as error:
            if "Check failed" in str(error):
                return False
            raise
        return True
