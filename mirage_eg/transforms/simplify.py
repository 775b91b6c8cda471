"""Simplify a program before the search: redundant ops are removed by rewrites in an e-graph (`rules/simplify`).

First pads become those of windows (`padded_windows`), sums of convolutions of one image one convolution
(`joined_convolutions`), norms factors of filters (`folded_norms`), convolutions of 1×1 windows and of patches products
(`pointwise_convolutions`), factors of queries and keys factors of their product (`scaled_scores`). Slices and concatenations
move to the ends (`ir/dissolve`), broadcasts after the ops that read them (`broadcasts`), picks by indices before them
(`early_picks`), and logarithms of ratios lose the ratio. Then dead code and common subexpressions are removed, and laws merge
constants and cancel transposes and reshapes. The cheapest program is extracted; it replaces the given
one only if it is cheaper. Last, a relu behind a convolution is one of its image (`folded_norms`), and chains of products are
associated (`matrix_chains`). Nothing here is trusted: results of the search are verified against the program as it was written.

A program is cheap if each of its terms is: a value that several terms share counts once for each of them.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from time import perf_counter

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.extraction import cheapest_nodes
from mirage_eg.egraph.op_terms import ENode, OpTerms, op_node, read_enodes
from mirage_eg.egraph.oracle import Limits, saturate_until
from mirage_eg.egraph.rule_files import packaged_text
from mirage_eg.egraph.terms import call, term
from mirage_eg.ir.dissolve import dissolve
from mirage_eg.ir.dtypes import DType, promote
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code, without_repeats
from mirage_eg.ir.reached import operands_first
from mirage_eg.transforms.broadcasts import with_late_broadcasts
from mirage_eg.transforms.early_picks import with_early_picks
from mirage_eg.transforms.folded_norms import with_activated_images, with_folded_norms
from mirage_eg.transforms.joined_convolutions import with_joined_convolutions
from mirage_eg.transforms.matrix_chains import associate
from mirage_eg.transforms.merged_reductions import with_merged_reductions
from mirage_eg.transforms.padded_windows import with_pads_of_windows
from mirage_eg.transforms.pointwise_convolutions import with_patch_products, with_pointwise_products
from mirage_eg.transforms.scaled_scores import with_scaled_scores
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.transforms.whole_products import filled_products, scores_of_attentions, whole_products

_WEIGHTS = {"In": 0, "Transpose": 4, "Reshape": 2, "Square": 9}  # rough costs of ops
_WEIGHT = 10  # of any other op
_LIMITS = Limits(iterations=30, nodes=10_000, seconds=2.0)


@dataclass(frozen=True, slots=True)
class Simplification:
    """The program before and after; how often each law matched, and the limit that stopped saturation, if one did.

    `passes` has the program after each pass, in order.
    """

    before: Graph
    after: Graph
    passes: tuple[tuple[str, Graph], ...]
    laws: tuple[tuple[str, int], ...]
    stopped: str | None
    seconds: float


def simplify(program: Graph) -> Simplification:
    """The same function with fewer or cheaper ops; `program` itself where nothing is redundant, or where it has block
    graphs."""
    start = perf_counter()
    if any(item.kind is Kind.GRAPH for item in program.nodes):
        return Simplification(program, program, (), (), None, 0.0)
    passes: dict[str, Graph] = {}
    plain = program
    for name, rewritten in _PASSES.items():
        plain = passes[name] = rewritten(plain)
    terms = OpTerms()
    egraph = bindings.EGraph()
    egraph.run_program(*_laws())
    egraph.run_program(*terms.commands(plain, partial(_term, plain, terms)))
    matches = Counter[str]()
    _, stopped = saturate_until(egraph, ("shapes", "simplify"), _LIMITS, matches)
    passes["laws"] = min((plain, _cheapest(egraph, plain, terms.names)), key=weight)
    near = passes["logarithms"]
    if weight(passes["laws"]) >= weight(near):  # nothing was gained
        passes |= dict.fromkeys(("dead code", "common subexpressions", "laws"), near)
    passes["activated images"] = with_activated_images(passes["laws"])
    passes["chains of products"] = after = associate(passes["activated images"])
    laws = tuple(sorted((law, count) for law, count in matches.items() if "shape of" not in law))
    return Simplification(program, after, tuple(passes.items()), laws, stopped, perf_counter() - start)


@cache
def _laws() -> tuple[bindings._Command, ...]:
    return tuple(bindings.EGraph().parse_program(packaged_text("simplify/00_simplify.egg"), "rules/simplify/00_simplify.egg"))


def _with_late_slices(program: Graph) -> Graph:
    return dissolve(program, whole_products(program), scores_of_attentions(program), filled_products(program)).graph


_PASSES: Mapping[str, Callable[[Graph], Graph]] = {
    "pads of windows": with_pads_of_windows,
    "sums of convolutions": with_joined_convolutions,
    "norms of channels": with_folded_norms,
    "1×1 convolutions": with_pointwise_products,
    "patch convolutions": with_patch_products,
    "scores": with_scaled_scores,
    "slices": _with_late_slices,
    "broadcasts": with_late_broadcasts,
    "picks": with_early_picks,
    "logarithms": without_far_logarithms,
    "dead code": without_dead_code,
    "common subexpressions": without_repeats,
}
"""Before the laws, in order."""


def _cheapest(egraph: bindings.EGraph, program: Graph, names: Mapping[str, Node]) -> Graph:
    """`program` with the cheapest term of each output; ties are the same in every run. `names` has the ops of the terms."""
    rows = sorted(read_enodes(egraph), key=lambda row: (row[1].constructor, str(row[1].constants)))
    entries = [(class_, enode, own, enode.children) for class_, enode in rows if (own := _cost(enode)) < inf]
    best = {class_: enode for class_, (_, enode) in cheapest_nodes(entries, {}).items() if enode is not None}
    nodes = list(program.inputs)
    values: dict[bindings.Value, int] = {}
    roots = [egraph.eval_expr(term(item.operands[0]))[1] for item in program.outputs]
    for class_ in operands_first(roots, lambda class_: best[class_].children):
        enode = best[class_]
        if enode.constructor == "In":
            values[class_] = enode.constants[0]
        else:
            values[class_] = len(nodes)
            operands = [values[child] for child in enode.children]
            nodes.append(op_node(enode.constructor, enode.constants, operands, names))
    ends = zip(roots, program.outputs, strict=True)
    return Graph((*nodes, *(Node("output", (values[root],), item.attributes) for root, item in ends)))


def weight(graph: Graph) -> int:
    """The rough cost of a program's ops, each counted once."""
    return sum(_WEIGHTS.get(item.op.capitalize(), _WEIGHT) for item in graph.nodes if item.kind is not Kind.BOUNDARY)


def _cost(enode: ENode) -> float:
    """The cost of an e-node for extraction: positive, so that the smallest of equal terms is extracted."""
    if enode.constructor == "NoOp":
        return inf
    op = enode.constants[0].capitalize() if enode.constructor == "Unary" else enode.constructor
    return 0.001 + _WEIGHTS.get(op, _WEIGHT)


def _term(program: Graph, terms: OpTerms, item: Node, value: int) -> bindings.Call:
    if item.op in CASTS and (kept := _without_cast(program, item)) is not None:
        return call("NoOp", terms.name(item), term(kept))
    return terms.of(program, item, value)


def _without_cast(program: Graph, item: Node) -> int | None:
    """The value that a cast gives back: its operand, or the operand of a cast to a wider type."""
    [value] = item.operands
    maker = program.node_of[value]
    source = maker.operands[0] if maker.op in CASTS else value
    wanted, between, have = DType(item["dtype"]), program.types[value].dtype, program.types[source].dtype
    return source if have is wanted and promote(have, between) is between else None


def primitive_form(expanded: Graph) -> Graph:
    """The form that is searched of a program of primitive ops: simplified, exponentials unshifted, and reductions merged."""
    return as_searched(simplify(expanded).after)


def as_searched(simplified: Graph) -> Graph:
    """The form that is searched of a simplified program."""
    return with_merged_reductions(drop_shifts(simplified))
