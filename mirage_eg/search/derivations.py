"""The derivation graph of one space: all values that a block can compute, and every derivation of each value.

`close` computes values forwards from the loads; `walk_back` keeps the derivations from which a goal is reachable. Both depend
on values alone, not on their derivations, so that the graph is small and is built once for each space. Values and derivations
are plain ints. The bit of a value is that of its class and axes: no block has two values with one bit (indexed domain).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from mirage_eg.egraph.expression import Constant
from mirage_eg.ir.reached import reached
from mirage_eg.search.split_space import PruneLog, Space, Value
from mirage_eg.search.structure import is_swappable


@dataclass(frozen=True, slots=True)
class Derivation:
    """One op that computes a value; operands and result are positions in `Derivations.values`."""

    op: str
    operands: tuple[int, ...]
    constants: tuple[Constant, ...]
    reduced: tuple[int, ...]
    result: int
    swappable: bool  # whether exchanging the operands gives the same op
    work: int = 0  # combinations of elements of the operands


@dataclass(frozen=True, slots=True)
class Derivations:
    """The values, loads first, and their derivations; `uses` omits derivations that no goal needs."""

    values: tuple[Value, ...]
    optional: tuple[bool, ...]  # for each load whether a block may omit it
    derivations: tuple[Derivation, ...]
    uses: tuple[tuple[int, ...], ...]  # for each value the derivations with it as an operand, once each
    bits: tuple[int, ...]  # for each value; 0 for loads that every block has
    goals: tuple[tuple[int, ...], ...]  # for each goal the values that equal it
    above: tuple[int, ...]  # for each value the bits that any block with it adds to reach a goal
    needed: tuple[int, ...]  # for each goal the bits of the values in any block that computes it
    path: tuple[int, ...]  # for each value the least number of ops between it and a goal


FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class Closure:
    """All values of a space, loads first, and all their derivations."""

    values: tuple[Value, ...]
    loads: int
    optional: tuple[bool, ...]  # for each load whether a block may omit it
    derivations: tuple[Derivation, ...]


def walk_back(closure: Closure, goals: Sequence[Collection[Value]], bounds: Collection[str], log: PruneLog) -> Derivations:
    """Keep the derivations that the goals need; a goal is a set of values, any of which serves."""
    values, derivations, loads = closure.values, closure.derivations, closure.loads
    position = {value: i for i, value in enumerate(values)}
    wanted = tuple(tuple(sorted(position[value] for value in goal if value in position)) for goal in goals)
    makers: list[list[Derivation]] = [[] for _ in values]
    users: list[list[Derivation]] = [[] for _ in values]
    for item in derivations:
        makers[item.result].append(item)
        for operand in set(item.operands):
            users[operand].append(item)
    ends = {i for goal in wanted for i in goal}
    useful = {*reached(ends, lambda i: (operand for item in makers[i] for operand in item.operands))}
    if "leads nowhere" in bounds:
        for item in derivations:
            if item.result not in useful:
                log.prune("leads nowhere", item.op, tuple(values[i][0] for i in item.operands))
        derivations = tuple(item for item in derivations if item.result in useful)
    numbers: dict[tuple[int, int], int] = {}
    for i, (class_, axes, _) in enumerate(values):
        if i >= loads or closure.optional[i]:
            numbers.setdefault((class_, axes), len(numbers))
    bits = tuple(1 << numbers[value[:2]] if i >= loads or closure.optional[i] else 0 for i, value in enumerate(values))
    below = _below(values, loads, bits, makers)
    uses: list[list[int]] = [[] for _ in values]
    for number, item in enumerate(derivations):
        for operand in sorted(set(item.operands)):
            uses[operand].append(number)
    return Derivations(
        values,
        closure.optional,
        derivations,
        tuple(map(tuple, uses)),
        bits,
        wanted,
        _above(bits, users, below, ends, useful) if "forced ops" in bounds else (0,) * len(values),
        tuple(reduce(and_, (below[i] for i in goal)) if goal and "forced ops" in bounds else 0 for goal in wanted),
        _paths(values, makers, ends) if "ops left" in bounds else (0,) * len(values),
    )


def close(space: Space, log: PruneLog) -> Closure:
    """All values that the ops of `space` compute from its loads."""
    values: list[Value] = [value for _, value in space.loads]
    positions = {value: i for i, value in enumerate(values)}
    optional = tuple(space.is_optional(load) for load in range(len(values)))
    loaded = {value[:2] for value, free in zip(values, optional, strict=True) if space.indexed and not free}
    partners: dict[int, set[int]] = {}
    for left, right in space.binary:
        partners.setdefault(left, set()).add(right)
        partners.setdefault(right, set()).add(left)
    of_class: dict[int, list[int]] = {}
    derivations: list[Derivation] = []
    position = 0
    while position < len(values):
        value = values[position]
        of_class.setdefault(value[0], []).append(position)
        items = list(space.follow_one(position, value, log))
        for other in sorted(i for class_ in partners.get(value[0], ()) for i in of_class.get(class_, ())):
            items += space.follow_two(other, position, values[other], value, log)
        items += space.follow_three(position, values, of_class, log)
        for op, operands, constants, reduced, result in items:
            if result[:2] in loaded:
                log.counts["value twice"] += 1
                continue
            if result not in positions:
                positions[result] = len(values)
                values.append(result)
            work = space.elements(reduce(or_, (values[operand][1] for operand in operands)))
            derivations.append(Derivation(op, operands, constants, reduced, positions[result], is_swappable(op), work))
        position += 1
    return Closure(tuple(values), len(space.loads), optional, tuple(derivations))


def _below(values: Sequence[Value], loads: int, bits: Sequence[int], makers: Sequence[Sequence[Derivation]]) -> list[int]:
    """For each value the bits of the values in every block that computes it, itself included: the greatest fixed point."""
    everything = (1 << max(bits, default=0).bit_length()) - 1
    below = [0 if i < loads else everything for i in range(len(values))]
    changed = True
    while changed:
        changed = False
        for i in range(loads, len(values)):
            new = everything
            for item in makers[i]:
                new &= reduce(or_, (below[operand] for operand in item.operands))
            new |= bits[i]
            changed |= new != below[i]
            below[i] = new
    return below


def _above(
    bits: Sequence[int],
    users: Sequence[Sequence[Derivation]],
    below: Sequence[int],
    ends: Collection[int],
    useful: Collection[int],
) -> tuple[int, ...]:
    """For each value the bits that every block adds on its path to a goal: results, and their other operands."""
    everything = (1 << max(bits, default=0).bit_length()) - 1
    above = [everything if i in useful and i not in ends else 0 for i in range(len(bits))]
    changed = True
    while changed:
        changed = False
        for i in sorted({*useful} - {*ends}, reverse=True):
            new = everything
            for item in users[i]:
                if item.result in useful:
                    others = (below[operand] for operand in item.operands if operand != i)
                    new &= reduce(or_, others, above[item.result] | bits[item.result])
            changed |= new != above[i]
            above[i] = new
    return tuple(above)


def _paths(values: Sequence[Value], makers: Sequence[Sequence[Derivation]], ends: Collection[int]) -> tuple[int, ...]:
    """For each value the least number of ops from it to a goal, by breadth-first search from the goals."""
    path = [FAR] * len(values)
    frontier = sorted(ends)
    for i in frontier:
        path[i] = 0
    while frontier:
        nearer: list[int] = []
        for i in frontier:
            for item in makers[i]:
                for operand in item.operands:
                    if path[operand] > path[i] + 1:
                        path[operand] = path[i] + 1
                        nearer.append(operand)
        frontier = nearer
    return tuple(length if length < FAR else 0 for length in path)
