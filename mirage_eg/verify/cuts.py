"""A µGraph and its program, cut at values that both compute: pairs of smaller ones, which decide about the whole.

If each kernel computes from its operands what the program computes from the same values, then, kernel by kernel, all these
values are equal, and so are the outputs. Which values of the program a kernel reads and computes is a guess: the values that
agree in a random field at sizes of 2 and 3, or, where that takes too long, operands of the same library ops. A wrong guess
gives a pair that is not equal, and then the whole is checked; so nothing here is trusted but the composition itself.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import count

from mirage_eg.backends.evaluator.array_module import evaluation_size
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, nodes_between
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import DIVISIONS, EXPONENTIALS, LOGARITHMS, QUOTIENTS, ROOTS
from mirage_eg.ir.op.moves import CUTS_AND_JOINS, WHOLE_VIEWS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_repeats
from mirage_eg.ir.reached import reached
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED
from mirage_eg.verify.random_inputs import RandomInputs
from mirage_eg.verify.restriction import joint_axes

AVERAGES = frozenset(("sum", "mean"))
MOST_ELEMENTS = 1 << 25  # of all values, where an axis has no smaller size: a guess costs more than it saves


@dataclass(frozen=True)
class Pair:
    """A part of a program, and the kernels that compute it from the same inputs."""

    program: Graph
    kernels: Graph

    @cached_property
    def by_definition(self) -> bool:
        """Whether the kernels are the ops of the program: a derived op is its primitive ops."""
        return expand(self.kernels) == expand(self.program)


def pairs_of(program: Graph, candidate: Graph, seed: int) -> tuple[Pair, ...]:
    """The pairs whose composition are program and µGraph; one pair where no value between is known to both."""
    primitive = expand(program)
    is_cut = primitive.ops and candidate.ops and _ends_are_apart(primitive, candidate)
    same = _same_values(primitive, candidate, seed) if is_cut else {}
    if same is None:
        primitive = without_repeats(primitive)
        same = _read_alike(primitive, candidate)
    ends, hidden = _ends(candidate), _exponents(primitive) | _unnormalized(primitive)
    same = {value: other for value, other in same.items() if value not in ends and other not in hidden}
    parts = _Parts(cache(partial(part_of, primitive)), cache(partial(part_of, candidate)))
    while same:
        found = _cut(primitive, candidate, same, parts)
        if not isinstance(found, int):
            return found
        del same[found]
    return (Pair(program, candidate),)


def _same_values(program: Graph, candidate: Graph, seed: int) -> dict[int, int] | None:
    """For inner values of the µGraph the values of the program that seem to be the same; None where that takes too long."""
    try:
        joint = joint_axes(program, candidate)
        small, kernels = joint.at(joint.tiny())
        if evaluation_size(small) + evaluation_size(kernels) > MOST_ELEMENTS:
            return None
        shared = _shared_products(small, kernels)
        parts = [_behind(graph, [pair[side] for pair in shared]) for side, graph in enumerate((small, kernels))]
        trial = RandomInputs(parts[0][0], seed).field(0)
    except (GraphError, UnsupportedError):
        return {}
    known = dict[tuple[object, ...], int]()
    found = {value: other for other, value in shared}
    for (part, inner), whole in zip(parts, (program, candidate), strict=True):
        components = trial.algebra.read(evaluate(part, trial.inputs, trial.algebra, stack=trial.algebra.stack))
        for value, component in zip(inner, components, strict=True):
            undefined = None if component.undefined is None else component.undefined.tobytes()
            key = (whole.types[value], component.residues.tobytes(), undefined)
            if whole is program:
                known.setdefault(key, value)
            elif key in known:
                found[value] = known[key]
    return found


def _read_alike(program: Graph, candidate: Graph) -> dict[int, int]:
    """For first operands of library ops, cuts and joins in a µGraph those of the same ops in the program, in their order.

    Of an operand and the values that it is a view of, the first that has the same type in both; ops of which the two have
    different numbers are left out.
    """
    found: list[dict[object, list[list[int]]]] = []
    for graph in (program, candidate):
        read = dict[object, list[list[int]]]()
        for item, _ in graph.numbered():
            if item.kind is Kind.LIBRARY or item.op in CUTS_AND_JOINS:
                types = tuple(graph.types[it] for it in item.operands)
                read.setdefault((item.op, item.attributes, types), []).append(_viewed(graph, item.operands[0]))
        found.append(read)
    same = dict[int, int]()
    for key, values in found[0].items():
        own = found[1].get(key, ())
        for one, other in zip(own, values, strict=True) if len(own) == len(values) else ():
            alike = [(x, y) for y in other for x in one if candidate.types[x] == program.types[y]]
            same |= {x: y for x, y in alike[-1:] if candidate.node_of[x].op != "input"}
    return same


def _viewed(graph: Graph, value: int) -> list[int]:
    """A value and those of which it is a view, the nearest first."""
    found = [value]
    while graph.node_of[found[-1]].op in WHOLE_VIEWS:
        found.append(graph.node_of[found[-1]].operands[0])
    return found


def _shared_products(program: Graph, candidate: Graph) -> list[tuple[int, int]]:
    """The products and convolutions that both compute by the same ops from inputs that nothing else reads, as values of each.

    Their values are equal at all inputs: random ones take less time.
    """
    numbers = dict[object, int]()
    found: list[dict[int, int]] = []
    for graph in (program, candidate):
        inputs, own, products = count(), list[int](), dict[int, int]()
        for item, values in graph.numbered():
            read = (next(inputs),) if item.op == "input" else (item.op, item.attributes, *(own[it] for it in item.operands))
            for place, value in enumerate(values):
                own.append(numbers.setdefault((read, place), len(numbers)))
                if _is_product(item) and _reads_alone(graph, value):
                    products.setdefault(own[-1], value)
        found.append(products)
    return [(value, found[1][number]) for number, value in found[0].items() if number in found[1]]


def _reads_alone(graph: Graph, value: int) -> bool:
    """Whether nothing but a value is computed from what it is computed from."""
    inside = [*reached([value], lambda it: graph.node_of[it].operands)]
    places = {graph.makers[it] for it in inside}
    return all(places.issuperset(graph.readers[it]) for it in inside if it != value)


def _behind(graph: Graph, given: Sequence[int]) -> tuple[Graph, list[int]]:
    """The graph with the values `given` as inputs behind its own, and its other inner values as outputs; those as values."""
    inner = [value for item, values in graph.numbered() if item.op != "input" for value in values if value not in given]
    copy = part_of(graph, (*graph.input_values, *given), inner)
    assert copy is not None
    return copy, inner


def _exponents(program: Graph) -> set[int]:
    """Values from which an exponent is computed element by element.

    A mask that absorbs scores is wrong where it is added, and the part behind a cut would not show it. The result of a product
    has no mask yet; values that are averaged are taken to have none.
    """
    found = set[int]()
    for item, values in reversed(program.numbered()):
        if item.op in EXPONENTIALS or (found.intersection(values) and item.kind in (Kind.ELEMENTWISE, Kind.REARRANGEMENT)):
            found.update(item.operands)
    for item, values in program.numbered():
        found.difference_update(values if _is_product(item) else item.operands if item.op in AVERAGES else ())
    return found


def _unnormalized(program: Graph) -> set[int]:
    """Exponentials, and values computed from them, up to a quotient of two or a logarithm: they overflow where this does not.
    At a cut behind them nobody would know that, since inputs are only so large that no value of a part overflows."""
    large, found = set[int](), set[int]()
    for item, values in program.numbered():
        if item.op in EXPONENTIALS or (
            large.intersection(item.operands) and item.op not in ROOTS - DIVISIONS and not _normalizes(item, large)
        ):
            large.update(values)
    for item, values in reversed(program.numbered()):
        if _normalizes(item, large) or found.intersection(values):
            found.update(large.intersection(item.operands))
    return found


def _normalizes(item: Node, large: Collection[int]) -> bool:
    return (item.op in QUOTIENTS and item.operands[1] in large) or (item.op in LOGARITHMS and item.operands[0] in large)


def _is_product(item: Node) -> bool:
    return item.kind is Kind.MATMUL or item.op in CONVOLUTIONS + TRANSPOSED


@dataclass(frozen=True, slots=True)
class _Parts:
    """`part_of` program and µGraph: without one of the cuts most parts are as they were."""

    program: Callable[[tuple[int, ...], tuple[int, ...]], Graph | None]
    candidate: Callable[[tuple[int, ...], tuple[int, ...]], Graph | None]


def _cut(program: Graph, candidate: Graph, same: dict[int, int], parts: _Parts) -> tuple[Pair, ...] | int:
    """The pairs, or a value that is no cut: what the µGraph computes from it the program computes from others."""
    ends = dict(zip(_ends(candidate), _ends(program), strict=True))
    known = dict(zip(candidate.input_values, program.input_values, strict=True)) | same
    known |= {value: other for value, other in ends.items() if candidate.types[value] == program.types[other]}
    pairs, done = list[Pair](), set[int]()
    left = [*ends]
    while left:
        place = candidate.makers[left.pop()]
        item, values = candidate.numbered()[place]
        if place in done or item.op == "input":
            continue
        done.add(place)
        makes = tuple(value for value in values if value in ends or value in known)
        reads = tuple(sorted(_read_by(candidate, place, known)))
        if moved := _moved(program, reads, known, parts) & same.keys():
            return min(moved)
        kernels = parts.candidate(reads, makes)
        own = parts.program(
            tuple(known[value] for value in reads), tuple(known.get(value, ends.get(value, -1)) for value in makes)
        )
        if own is None or kernels is None or own.output_types != kernels.output_types:
            return next(value for value in (*reads, *makes, *same) if value in same)
        left += reads
        if own != kernels:
            pairs.append(Pair(own, kernels))
    return tuple(pairs)


def _ends_are_apart(program: Graph, candidate: Graph) -> bool:
    """Whether each output of the µGraph is one of the program, and of inputs the same input: no part would make another."""
    given = dict(zip(candidate.input_values, program.input_values, strict=True))
    ends = set(zip(_ends(candidate), _ends(program), strict=True))
    return len(ends) == len({value for value, _ in ends}) and all(given.get(value, other) == other for value, other in ends)


def _ends(graph: Graph) -> list[int]:
    return [item.operands[0] for item in graph.outputs]


def _read_by(graph: Graph, place: int, known: Collection[int]) -> set[int]:
    """The known values from which a node's are computed."""
    found = reached(graph.nodes[place].operands, lambda value: () if value in known else graph.node_of[value].operands)
    return {value for value in found if value in known}


def _moved(program: Graph, reads: Collection[int], known: Mapping[int, int], parts: _Parts) -> set[int]:
    """The values that a part reads although it also reads all their elements as parts of others, from which the µGraph computes
    them: as inputs of the part they would be independent of these."""
    places, found = {known[value]: value for value in reads}, set[int]()
    for value in reads:
        sources, left, seen = set[int](), [known[value]], set[int]()
        while left:
            item = program.node_of[left.pop()]
            operands = {*item.operands} - seen if item.kind is Kind.REARRANGEMENT else set[int]()
            seen |= operands
            sources.update(places[operand] for operand in operands if operand in places)
            left += operands - places.keys()
        if sources and parts.candidate(tuple(sorted(sources)), (value,)) is not None:
            found.add(value)
    return found


def part_of(graph: Graph, reads: Sequence[int], makes: Sequence[int]) -> Graph | None:
    """The part of a kernel graph that computes some values from others, as a graph; None if it reads further inputs."""
    inside = nodes_between(graph, reads, makes)
    if any(item.op == "input" for item, _ in inside):
        return None
    copy = GraphCopy(graph)
    for number, value in enumerate(reads):
        copy.read(value, name=f"x{number}")
    given = dict(copy.position)
    for item, values in inside:
        copy.copy(item, values)
        copy.position |= given
    dtypes = {item.operands[0]: item.get("dtype") for item in graph.outputs}
    for number, value in enumerate(makes):
        copy.write(value, name=f"out{number}", dtype=dtypes.get(value))
    return copy.graph()
