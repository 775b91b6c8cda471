"""Long chains of elementwise ops, of which limits of ops count the first few: the rest has one way to be computed, and makes a
search no larger. An op that repeats the binary one before it counts: laws would arrange the operands of both anew."""

from collections.abc import Iterable, Mapping

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind

SHORT = 4  # ops of a chain that count


def continued(program: Graph) -> dict[int, int]:
    """Of each node that goes on with a chain the node before it, which it alone reads; both by position."""
    makers = [position for position, (_, values) in enumerate(program.numbered()) for _ in values]
    readers: dict[int, set[int]] = {}
    for position, item in enumerate(program.nodes):
        for operand in item.operands:
            readers.setdefault(makers[operand], set()).add(position)
    found = {}
    for position, item in enumerate(program.nodes):
        made = {makers[operand] for operand in item.operands if program.nodes[makers[operand]].op != "input"}
        if OPS[item.op].kind is not Kind.ELEMENTWISE or len(made) != 1:
            continue
        [before] = made
        other = program.nodes[before]
        repeats = other.op == item.op and len(set(item.operands)) > 1
        if OPS[other.op].kind is Kind.ELEMENTWISE and readers[before] == {position} and not repeats:
            found[position] = before
    return found


def uncounted(chains: Mapping[int, int], nodes: Iterable[int]) -> int:
    """How many of these nodes, ops of a program whose `chains` are continued so, stand behind the first few of a chain."""
    place: dict[int, int] = {}
    for position in sorted(nodes):
        place[position] = 1 + place.get(chains.get(position, -1), -1)
    return sum(number >= SHORT for number in place.values())


def uncounted_ops(program: Graph) -> int:
    """How many ops of a program its limits need not count."""
    return uncounted(continued(program), range(len(program.nodes)))


__all__ = ["SHORT", "continued", "uncounted", "uncounted_ops"]
