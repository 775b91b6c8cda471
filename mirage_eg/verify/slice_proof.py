"""Prove that a graph parted at its slices and concatenations (`ir/dissolve`) computes the same values, by the laws of slices.

The terms of both graphs are in one e-graph, with the laws of `rules/indexed/35_slices.egg` alone. For each box in which an
output is computed, the slice of the given graph's output must be in the class of the parted graph's value. The values between
are linked for axis inference alone, so that both graphs name an axis by one name.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import prod

from mirage_eg.egraph.expression import Expression, Split, express
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.sufficient_laws import SufficientLaws
from mirage_eg.ir import write
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.dissolve import Box, Dissolution, dissolve, take
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.flatten import Flat
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.op.moves import JOINS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.selections import are_disjoint, count, is_everything
from mirage_eg.ir.shapes import Shape

LIMITS = Limits(iterations=1_000, nodes=30_000, seconds=10.0)  # an iteration moves slices and axes by one op
THEORIES = ("05_axes", "35_slices")
ASSOCIATIVE = ("add associates", "maximum of two associates")  # sums over the parts of a concatenation of concatenations


def parting_claims(graph: Graph, parting: Dissolution, *, of_operands: bool = False) -> Expression | None:
    """The claims that each output is computed in its parts: slices of it, then the parts. None where nothing is parted.

    With `of_operands` an output is an elementwise op, and the claims are about its operands in the parts of the output.

    Raises UnsupportedError: the parts do not make up an output, or axes cannot be inferred.
    """
    if parting.graph is graph:
        return None
    flat = Flat()
    given, parted = _appended(flat, graph), _appended(flat, parting.graph)
    pairs = {key: (take(flat, given[key[0]], key[1]), parted[part]) for key, part in parting.parts.items()}
    joined = [] if of_operands else [*_joined_slices(graph, parting, flat, given)]
    prefixes = [*_prefixes(parting, flat, given, parted)]
    links = [flat.add(write.maximum(*pair)) for pair in (*pairs.values(), *joined, *prefixes)]
    terms = (it for it, _ in (*joined, *prefixes))
    claims = [] if of_operands else [(it, it) for it in terms]  # they hold anyway
    for item in graph.outputs:
        [output] = item.operands
        boxes = _boxes(parting, output, graph.types[output].shape)
        claims += [pairs[it, box] for box in boxes for it in (graph.nodes[output].operands if of_operands else (output,))]
    linked = Graph((*flat.nodes, *(node("output", link) for link in links)))
    axes = infer_axes(linked, slices=True)
    ends = [node("output", pair[side]) for side in (0, 1) for pair in claims]
    return express(Graph((*flat.nodes, *ends)), axes, Split(), "indexed")


def partition_is_proved(program: Graph, undivided: frozenset[int], rulebook: Rulebook) -> bool:
    """Whether the laws of slices prove the partition of a program in primitive ops without dead code (`ir.dissolve.dissolve`).

    Library ops are opaque: their operands are outputs, and their results inputs.
    """
    if any(len(values) != 1 for item, values in program.numbered() if item.op != "output"):
        return False
    graph = _with_opaque_ops(program)
    try:
        claims = parting_claims(graph, dissolve(graph, undivided))
    except UnsupportedError:
        return False
    if claims is None:
        return True
    return laws_of_parting(claims, SufficientLaws(rulebook, LIMITS)) is not None


def laws_that_may_part(rulebook: Rulebook) -> frozenset[str]:
    """The laws with which `laws_of_parting` tries to prove a partition."""
    of_slices = (law.name for theory in rulebook.theories if theory.name in THEORIES for law in theory.laws)
    return frozenset((*ASSOCIATIVE, *of_slices))


def laws_of_parting(claims: Expression, laws: SufficientLaws) -> tuple[str, ...] | None:
    """Laws of slices that prove the claims, or None. Laws of the order of sums are tried last: e-graphs grow."""
    others = frozenset(law.name for theory in laws.rulebook.theories if theory.name not in THEORIES for law in theory.laws)
    found = laws.matching(claims, others)
    return laws.matching(claims, others.difference(ASSOCIATIVE)) if found is None else found


def _with_opaque_ops(program: Graph) -> Graph:
    nodes = with_opaque_values(program.nodes[: len(program.types)], program.types)
    read = dict.fromkeys(operand for item in program.nodes if item.kind is Kind.LIBRARY for operand in item.operands)
    return Graph((*nodes, *program.outputs, *(node("output", value) for value in read)))


def with_opaque_values(nodes: Sequence[Node], types: Sequence[TensorType]) -> tuple[Node, ...]:
    """The nodes, of one result each, with an input in place of each library op: equal ones are one opaque value."""
    pairs = zip(nodes, types, strict=True)
    return tuple(write.source(kind) if item.kind is Kind.LIBRARY else item for item, kind in pairs)


def _is_whole(box: Box) -> bool:
    return all(map(is_everything, box))


def _joined_slices(graph: Graph, parting: Dissolution, flat: Flat, given: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Slices that reach over cuts, each after its parts joined: sums over them are parted at such concatenations."""
    for value, item in enumerate(graph.nodes):
        if item.op == "slice":
            dim, extent = item["dim"], graph.types[value].shape[item["dim"]]
            found = {box[dim] for other, box in parting.parts if other == value and len(box[dim]) == 1}
            ranges = sorted((taken.start, taken.stop) for [(_, taken)] in found if len(taken) < extent)
            starts, ends = [0, *(stop for _, stop in ranges)], [*(start for start, _ in ranges), extent]
            if starts != ends:  # parts that do not make it up
                continue
            whole = given[value]
            for start, stop in reversed(ranges[1:]):  # concatenations are of two
                parts = [
                    flat.apply("slice", given[value], dim=dim, start=it, stop=end, step=1)
                    for it, end in ((0, start), (start, stop))
                ]
                yield flat.add(write.concat(*parts, dim=dim)), whole
                whole = parts[0]


def _prefixes(parting: Dissolution, flat: Flat, given: Sequence[int], parted: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The two slices that split a value which is joined from its parts, the first of them split alike, and so on.

    Each slice comes with the value of the same elements in the parted graph, whose axes name those of the slice. By the law of
    splits and joins the whole value is the concatenation of these slices, however the given graph joins it.
    """
    for (value, box), part in parting.parts.items():
        item = parting.graph.nodes[part]
        if _is_whole(box) and item.op in JOINS:
            whole, joined, dim = given[value], parted[part], item["dim"]
            for _ in item.operands[1:]:
                joined, last = flat.nodes[joined].operands
                ranges = pairwise((0, flat.shape(joined)[dim], flat.shape(whole)[dim]))
                first, rest = (flat.apply("slice", whole, dim=dim, start=it, stop=end, step=1) for it, end in ranges)
                yield from ((first, joined), (rest, last))
                whole = first


def _boxes(parting: Dissolution, value: int, shape: Shape) -> list[Box]:
    """The boxes in which a value is computed: all of it, or parts that make it up."""
    boxes = [box for other, box in parting.parts if other == value]
    parts = [box for box in boxes if not _is_whole(box)]
    apart = all(are_disjoint(*pair) for pair in combinations(parts, 2))
    if apart and sum(prod(map(count, box)) for box in parts) == prod(shape):
        return parts
    if len(parts) == len(boxes):
        raise UnsupportedError("the parts of an output are not known to make it up")
    return [box for box in boxes if box not in parts]


def _appended(flat: Flat, graph: Graph) -> list[int]:
    """The values of a graph on the inputs that `flat` has, or gets; concatenations are of two."""
    inputs: Iterator[int] = iter([value for value, item in enumerate(flat.nodes) if item.op == "input"])
    values: list[int] = []
    for item in graph.nodes:
        operands = [values[i] for i in item.operands]
        if item.op == "input":
            found = next(inputs, None)
            values.append(flat.apply("input", **item.mapping) if found is None else found)
        elif item.op in JOINS:
            joined = operands[0]
            for operand in operands[1:]:
                joined = flat.add(write.concat(joined, operand, dim=item["dim"]))
            values.append(joined)
        elif item.op == "slice" and graph.types[len(values)] == graph.types[item.operands[0]]:
            values += operands  # all of it, under the names of its axes
        elif item.op != "output":
            values.append(flat.apply(item.op, *operands, **item.mapping))
    return values
