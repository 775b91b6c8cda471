"""The linear parts of a program: subprograms of several contractions, and each contraction; programs with a part replaced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand_all
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.partial_equivalence.small_sizes import contractions
from mirage_eg.partial_equivalence.sums_of_products import is_linear

MOST_OPS = 5  # of a linear program that is changed as a whole


@dataclass(frozen=True, slots=True)
class LinearPart:
    """A linear program with one output, and where it is in a whole program: its last nodes, and the values that each reads.

    Without nodes it is the whole program.
    """

    program: Graph
    nodes: tuple[int, ...] = ()
    reads: tuple[tuple[int, ...], ...] = ()

    @property
    def ops(self) -> int:
        """The number of its ops."""
        return len(self.program.nodes) - len(self.program.inputs) - len(self.program.outputs)


def linear_parts(program: Graph) -> list[LinearPart]:
    """The linear parts of a program, equal ones once: subprograms of several contractions first, then each contraction.

    Raises UnsupportedError: there is none with a sum of products.
    """
    given = expand_all(program)
    found = contractions(given)
    if not found:
        names = ", ".join(sorted({item.op for item in given.nodes} - {"input", "output"})) or "no op"
        raise UnsupportedError(f"nothing to mutate: got {names}; wanted a convolution, a product, an average pool or a sum")
    ops = [number for number, item in enumerate(given.nodes) if item.op not in ("input", "output")]
    is_whole = all(is_linear(given.nodes[number].op) for number in ops) and len(ops) <= MOST_OPS and len(given.outputs) == 1
    if is_whole and len(ops) == 1:
        return [LinearPart(given)]
    subprograms = [] if is_whole else [it for it in _subprograms(given) if len(it & {*found}) > 1]
    parts: dict[Graph, dict[int, tuple[int, ...]]] = {}
    for numbers in (*subprograms, *({number} for number in found if is_linear(given.nodes[number].op))):
        part, reads = _alone(given, sorted(numbers))
        parts.setdefault(part, {})[max(numbers)] = reads
    if not parts:
        names = ", ".join(sorted({given.nodes[number].op for number in found}))
        raise UnsupportedError(f"nothing to mutate: got {names}, which is not linear; wanted a convolution, a product or a sum")
    whole = [LinearPart(given)] if is_whole else []
    return [*whole, *(LinearPart(part, tuple(places), tuple(places.values())) for part, places in parts.items())]


def named_ops(program: Graph) -> tuple[list[str], list[str]]:
    """The names of the ops in linear parts, and of all others."""
    changed = {item.op for part in linear_parts(program) for item in part.program.nodes}
    names = {item.op for item in expand_all(program).nodes} - {"input", "output"}
    return sorted(names & changed), sorted(names - changed)


def _subprograms(program: Graph) -> Iterator[set[int]]:
    """Sets of up to MOST_OPS linear nodes of which only the last one is read by other nodes, from the last one on."""
    nodes, taken = program.numbered(), set[int]()
    linear = [item.op not in ("input", "output") and is_linear(item.op) for item, _ in nodes]
    for last in reversed(range(len(nodes))):
        if not linear[last] or last in taken:
            continue
        found = {last}
        for number in reversed(range(last)):
            readers = [reader for value in nodes[number][1] for reader in program.readers[value]]
            if linear[number] and readers and {*readers} <= found and len(found) < MOST_OPS:
                found.add(number)
        taken |= found
        yield found


def _alone(program: Graph, numbers: Sequence[int]) -> tuple[Graph, tuple[int, ...]]:
    """Some nodes as a program, and the values that it reads; a value that is read twice is one input."""
    nodes = program.numbered()
    own = [value for number in numbers for value in nodes[number][1]]
    reads = tuple(dict.fromkeys(it for number in numbers for it in nodes[number][0].operands if it not in own))
    copy = GraphCopy(program)
    for value in reads:
        copy.read(value)
    for number in numbers:
        copy.copy(*nodes[number])
    copy.write(own[-1])
    return copy.graph(), reads


def replaced(program: Graph, part: LinearPart, replacement: Graph) -> Graph:
    """The program with another program in the place of a part, everywhere."""
    if not part.nodes:
        return replacement
    program, reads = expand_all(program), dict(zip(part.nodes, part.reads, strict=True))
    if program.blocks:
        raise UnsupportedError("got a graph with kernels, wanted a program: give the one that they compute")
    copy = GraphCopy(program)
    for number, (item, values) in enumerate(copy):
        if number in reads:
            [copy.position[values[0]]] = copy.inlined(replacement, [copy.position[it] for it in reads[number]])
        else:
            copy.copy(item, values)
    return without_dead_code(copy.graph())
