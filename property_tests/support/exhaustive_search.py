"""The exhaustive search, without an oracle: every structure of the program's ops whose function is the program's.

It measures what the guided search loses. Every term is a class of its own, added at its first
look-up; a term's function is its float64 value on random tensors over named parts. No bounds of the guided search are used.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mirage_eg.egraph.expression import REDUCTIONS, Constant, Expression, Split, Term, express, op_of
from mirage_eg.egraph.oracle import Key, Oracle, Saturation
from mirage_eg.egraph.soundness.models import FLOAT64, Model, TensorValue, UndefinedError
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.split_space import LOOP, Application, Index, PruneLog, Space, Value
from mirage_eg.search.structure import Load

_PART_SIZE = 2
_NOTHING = Saturation(0, 0, True, None, 0, 0.0, (), ())


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The ops that may be used: (constructor, constants) of elementwise ops, and constructors of reductions."""

    elementwise: tuple[tuple[str, tuple[Constant, ...]], ...]
    reductions: frozenset[str]


def alphabet_of(table: dict[Key, int]) -> Alphabet:
    """The ops that occur in an oracle's table."""
    elementwise = set()
    reductions = set()
    for name, *arguments in table:
        op = op_of(str(name))
        if op is None:
            continue
        row = OPS[op]
        if row.kind is Kind.REDUCTION:
            reductions.add(str(name))
        else:
            elementwise.add((str(name), tuple(arguments[: len(arguments) - row.arity[0]])))
    return Alphabet(tuple(sorted(elementwise, key=str)), frozenset(reductions))


class Terms(dict[Key, int]):
    """A table of every e-node: a look-up adds the e-node's class."""

    def __init__(self, expression: Expression, alphabet: Alphabet, seed: int = 0) -> None:
        super().__init__()
        self.alphabet = alphabet
        self.terms: list[Term] = []
        self.semantics: dict[int, TensorValue | None] = {}
        parts = sorted(
            {part for free in expression.free for part in free}
            | {str(term.constants[0]) for term in expression.terms if term.constructor in REDUCTIONS}
        )
        self.model = Model("indexed", FLOAT64, dict.fromkeys(parts, _PART_SIZE))
        generator = np.random.default_rng(seed)
        for position, free in zip(expression.inputs, expression.free, strict=True):
            shape = [_PART_SIZE if part in free else 1 for part in parts]
            value = self.model.tensor(generator.uniform(0.5, 1.5, shape), free)
            self.semantics[self._add(expression.terms[position])] = value
        self.inputs = tuple(range(len(expression.inputs)))
        classes = dict(zip(expression.inputs, self.inputs, strict=True))
        for position, term in enumerate(expression.terms):
            if position not in classes:
                classes[position] = self.intern(term.constructor, term.constants, [classes[child] for child in term.children])
        self.outputs = tuple(classes[position] for position in expression.outputs)

    def _add(self, term: Term) -> int:
        self.terms.append(term)
        number = len(self.terms) - 1
        self[(term.constructor, *term.constants, *term.children)] = number
        return number

    def intern(self, name: str, constants: Sequence[Constant], children: Sequence[int]) -> int:
        """The class of a term."""
        op = op_of(name)
        if op is not None and OPS[op].commutative:
            children = sorted(children)
        key = (name, *constants, *children)
        if (class_ := super().get(key)) is not None:
            return class_
        return self._add(Term(name, tuple(constants), tuple(children)))

    def meaning(self, number: int) -> TensorValue | None:
        """The value of a term on the random tensors, computed once; None where undefined."""
        if number not in self.semantics:
            term = self.terms[number]
            operands = [self.meaning(child) for child in term.children]
            self.semantics[number] = None
            if all(operand is not None for operand in operands):
                with contextlib.suppress(UndefinedError):
                    self.semantics[number] = self.model.apply(
                        term.constructor, term.constants, cast(list[TensorValue], operands)
                    )
        return self.semantics[number]

    def get(self, key: Key, default: Any = None) -> Any:
        """A reduction of a class."""
        name, constant, child = key
        if name not in self.alphabet.reductions:
            return default
        return self.intern(str(name), [constant], [int(child)])

    def items(self) -> Any:
        """No items: `_Unary` and `_Binary` take the place of the index."""
        return ()

    def same_function(self, left: int, right: int) -> bool:
        """Whether two terms have one value on the random tensors."""
        a, b = self.meaning(left), self.meaning(right)
        return a is not None and b is not None and FLOAT64.equal(*np.broadcast_arrays(a.array, b.array))


class _Unary(dict[int, Any]):
    def __init__(self, terms: Terms) -> None:
        super().__init__()
        ops = [(op_of(name), name, constants) for name, constants in terms.alphabet.elementwise]
        self.terms, self.ops = terms, [entry for entry in ops if OPS[str(entry[0])].arity[0] == 1]

    def get(self, class_: int, default: Any = None) -> Any:
        return [(op, constants, self.terms.intern(name, constants, [class_])) for op, name, constants in self.ops]


class _Binary(dict[tuple[int, int], Any]):
    def __init__(self, terms: Terms) -> None:
        super().__init__()
        ops = [(op_of(name), name, constants) for name, constants in terms.alphabet.elementwise]
        self.terms, self.ops = terms, [entry for entry in ops if OPS[str(entry[0])].arity[0] == 2]

    def get(self, pair: tuple[int, int], default: Any = None) -> Any:
        return [(op, constants, self.terms.intern(name, constants, pair)) for op, name, constants in self.ops]


@dataclass(frozen=True, slots=True)
class Solution:
    """A structure whose function is the program's: its steps, and the terms of all its values with their axes."""

    steps: tuple[Application, ...]
    values: tuple[Value, ...]


@dataclass(slots=True)
class Exhaustive:
    """Enumerates one split of a program with one output."""

    program: Graph
    axes: Axes
    split: Split
    alphabet: Alphabet
    max_ops: int
    whole: int | None = None
    loads: tuple[Load, ...] = ()

    def run(self) -> Iterator[tuple[Solution, Terms]]:
        """Every structure with the program's function, without unused values and repeated terms."""
        terms = Terms(express(self.program, self.axes, self.split, "indexed"), self.alphabet)
        oracle = Oracle(terms, terms.inputs, terms.outputs, _NOTHING)
        space = Space(
            self.program, self.axes, self.split, "indexed", Index(oracle), () if self.whole is None else (self.whole,)
        )
        space.unary, space.binary, space.ternary = _Unary(terms), _Binary(terms), {}
        self.loads = tuple(load for load, _ in space.loads)
        values: list[Value] = []
        agenda: list[Application] = []
        for _, value in space.loads:
            values.append(value)
            agenda += space.follow(values, PruneLog())
        for solution in self._extend(space, terms, values, agenda, 0, [], frozenset()):
            yield solution, terms

    def _extend(
        self,
        space: Space,
        terms: Terms,
        values: list[Value],
        agenda: list[Application],
        first: int,
        steps: list[Application],
        unused: frozenset[int],
    ) -> Iterator[Solution]:
        left = self.max_ops - len(steps)
        [(goal, goal_axes)] = space.outputs
        for position in range(first, len(agenda) if left else 0):
            item = agenda[position]
            value = item[4]
            if any(value[:2] == other[:2] for other in values):
                continue
            still_unused = unused.difference(item[1]) | {len(values)}
            if len(still_unused) > left:  # each further op uses at most one of them
                continue
            values.append(value)
            steps.append(item)
            if len(still_unused) == 1 and value[1] == goal_axes and value[2] != LOOP and terms.same_function(value[0], goal):
                yield Solution(tuple(steps), tuple(values))
            added = space.follow(values, PruneLog())
            agenda += added
            yield from self._extend(space, terms, values, agenda, position + 1, steps, still_unused)
            del agenda[len(agenda) - len(added) :]
            values.pop()
            steps.pop()
