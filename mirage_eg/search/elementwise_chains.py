"""Long elementwise chains, whose first ops alone count towards the limits on ops.

The other ops of a chain have one derivation each, so that they do not enlarge the search. An op that repeats the binary op
before it counts, since laws reassociate the operands of both.
"""

from collections.abc import Iterable, Mapping

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.search.heuristics import SEARCH


def continued(program: Graph) -> dict[int, int]:
    """The predecessor of each node that continues a chain, and is its only reader; both by position."""
    makers = program.makers
    readers: dict[int, set[int]] = {}
    for position, item in enumerate(program.nodes):
        for operand in item.operands:
            readers.setdefault(makers[operand], set()).add(position)
    predecessors = {}
    for position, item in enumerate(program.nodes):
        computed = {makers[operand] for operand in item.operands if program.nodes[makers[operand]].op != "input"}
        if item.kind is not Kind.ELEMENTWISE or len(computed) != 1:
            continue
        [before] = computed
        other = program.nodes[before]
        repeats = other.op == item.op and len(set(item.operands)) > 1
        if other.kind is Kind.ELEMENTWISE and readers[before] == {position} and not repeats:
            predecessors[position] = before
    return predecessors


def uncounted(predecessors: Mapping[int, int], nodes: Iterable[int]) -> int:
    """How many of these nodes come after the first `SEARCH.chain_ops` of a chain; `predecessors` are those of the program."""
    index: dict[int, int] = {}
    for position in sorted(nodes):
        index[position] = 1 + index.get(predecessors.get(position, -1), -1)
    return sum(number >= SEARCH.chain_ops for number in index.values())


def uncounted_ops(program: Graph) -> int:
    """How many ops of a program do not count towards its limits."""
    return uncounted(continued(program), range(len(program.nodes)))
