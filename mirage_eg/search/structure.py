"""Structures: block graphs up to their extents, the results of the search.

A structure reduces in the tile before it accumulates over the loop; lowering may exchange the two.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_eg.egraph.expression import Constant, Split
from mirage_eg.ir.op.elementwise import DIFFERENCES, FACTORS
from mirage_eg.ir.ops import OPS, Kind


@dataclass(frozen=True, slots=True)
class Load:
    """A tensor as a block loads it: `looped` in tiles over the loop, or with the looped axis whole before the loop.

    `input` counts the program's inputs, then the outputs of the kernel before this one.
    """

    input: int
    looped: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a structure; operands are positions among the loads and the earlier steps."""

    op: str
    operands: tuple[int, ...]
    constants: tuple[Constant, ...] = ()
    reduced: tuple[int, ...] = ()  # the axes that a reduction or matmul reduces

    @property
    def kind(self) -> Kind:
        return OPS[self.op].kind


@dataclass(frozen=True, slots=True)
class Structure:
    """A block graph up to its extents; `proved` if the indexed laws show it equal to the program."""

    split: Split
    loads: tuple[Load, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    proved: bool

    @property
    def ops(self) -> int:
        """Block ops without loads and stores."""
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class SplitReduction:
    """Split-K as a pair of structures: `first` splits a reduced axis over its grid, `last` reduces the partial results."""

    first: Structure
    last: Structure

    @property
    def split(self) -> Split:
        return self.first.split

    @property
    def ops(self) -> int:
        return self.first.ops + self.last.ops

    @property
    def proved(self) -> bool:
        return self.first.proved and self.last.proved


AnyStructure = Structure | SplitReduction


def is_swappable(op: str) -> bool:
    """Whether exchanging the operands gives the same op; the order of the factors of a product is a matter of layout."""
    return OPS[op].commutative or OPS[op].kind is Kind.MATMUL


def reduced_in_order(structure: Structure) -> Structure:
    """The structure with chains of equal reductions in the order from the last axis on, if nothing else reads their results.

    A chain has the same value in every order. A tile of several dims has neighbours of its last dim in one thread.
    """
    readers = Counter(i for step in structure.steps for i in step.operands) + Counter(structure.outputs)
    steps, before = list(structure.steps), len(structure.loads)
    for end in reversed(range(len(steps))):
        chain = [end]
        while OPS[steps[end].op].kind is Kind.REDUCTION:
            [operand] = steps[chain[-1]].operands
            if operand < before or steps[operand - before].op != steps[end].op or readers[operand] > 1:
                break
            chain.append(operand - before)
        ordered = sorted((steps[i] for i in chain), key=lambda step: step.reduced)
        for i, step in zip(chain, ordered, strict=True):
            steps[i] = replace(steps[i], constants=step.constants, reduced=step.reduced)
    return replace(structure, steps=tuple(steps))


def expands_products(structure: AnyStructure) -> bool:
    """Whether it subtracts products of the same factor: those are rounded before they cancel, which (a - b) c is not."""
    if isinstance(structure, SplitReduction):
        return expands_products(structure.first) or expands_products(structure.last)
    before = len(structure.loads)
    for step in structure.steps:
        made = [structure.steps[i - before] for i in step.operands if i >= before]
        products = [{*zip(it.operands, FACTORS[it.op], strict=True)} for it in made if it.op in FACTORS]
        if step.op in DIFFERENCES and len(products) == 2 and set.intersection(*products):
            return True
    return False


def canonical(structure: AnyStructure) -> object:
    """The structure without unused loads, and without the order of its steps, partial results and swappable operands."""
    if isinstance(structure, Structure):
        values = _canonical_values(structure, {})
        return structure.split, frozenset(values[len(structure.loads) :]), tuple(values[i] for i in structure.outputs)
    first, last = structure.first, structure.last
    inside = _canonical_values(first, {})
    after = 1 + max(load.input for load in last.loads) - len(first.outputs)
    partials = {after + i: inside[output] for i, output in enumerate(first.outputs)}
    values = _canonical_values(last, partials)
    steps = frozenset(inside[len(first.loads) :]), frozenset(values[len(last.loads) :])
    return first.split, *steps, frozenset(partials.values()), tuple(values[i] for i in last.outputs)


def _canonical_values(structure: Structure, partials: Mapping[int, object]) -> list[object]:
    """The values of loads and steps; `partials` are those of inputs that a kernel before computes."""
    structure = reduced_in_order(structure)
    values: list[object] = [partials.get(load.input, (load.input, load.looped)) for load in structure.loads]
    for step in structure.steps:
        operands = [values[i] for i in step.operands]
        if is_swappable(step.op):
            operands.sort(key=repr)
        values.append((step.op, tuple(operands), step.constants, tuple(sorted(step.reduced))))
    return values
