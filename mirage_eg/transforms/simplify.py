"""Clean-up before the search: what a program says twice or in vain is taken out, by rewrites in an e-graph (`rules/cleanup`).

First broadcasts move behind the ops that read them (`broadcasts`), and logarithms of ratios are written without the ratio.
Common subexpressions fall together by hash-consing, dead code is what no output reaches, and laws merge constants and cancel
transposes and reshapes. The cheapest program is read back; it replaces the given one only if it is cheaper. Nothing here is
trusted: what is found is verified against the program as it was written.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib import resources
from itertools import permutations
from math import inf
from time import perf_counter
from typing import Any

from egglog import bindings

from mirage_eg.egraph.terms import call, literal, term_name
from mirage_eg.ir.graph import Graph, Node, node
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.transforms.broadcasts import with_late_broadcasts
from mirage_eg.transforms.matrix_chains import associate

_SPAN = bindings.RustSpan(__name__, 0, 0)
_WEIGHTS = {"In": 0, "Transpose": 4, "Reshape": 2, "Square": 9}  # of what an op costs, against 10 of any other
_WEIGHT = 10
_ITERATIONS, _NODES, _SECONDS = 30, 20_000, 2.0
_CONSTANTS = {"scale": ("Scale", "factor"), "shift": ("Shift", "offset"), "pow": ("Pow", "exponent")}


@dataclass(frozen=True, slots=True)
class Simplification:
    """The program before and after; how often each law matched, and the limit that stopped saturation, if one did.

    `passes` has the program behind each pass, in order.
    """

    before: Graph
    after: Graph
    passes: tuple[tuple[str, Graph], ...]
    laws: tuple[tuple[str, int], ...]
    stopped: str | None
    seconds: float


def simplify(program: Graph) -> Simplification:
    """The same function with fewer ops, if the laws give it; `program` itself where nothing is to be done.

    Programs with block graphs are left as they are.
    """
    begin = perf_counter()
    if any(OPS[item.op].kind is Kind.GRAPH for item in program.nodes):
        return Simplification(program, program, (), (), None, 0.0)
    narrow = with_late_broadcasts(program)
    near = without_far_logarithms(narrow)
    alive = without_dead_code(near)
    plain = without_repeats(alive)
    terms = _Terms(plain)
    egraph = bindings.EGraph()
    egraph.run_program(*egraph.parse_program(_laws(), "rules/cleanup/00_cleanup.egg"))
    egraph.run_program(*terms.commands())
    matches, stopped = _saturate(egraph, begin)
    found = _Reader(egraph, terms).program(plain)
    after = min((plain, found), key=weight)
    if weight(after) >= weight(near):
        alive = plain = after = near
    associated = associate(after)
    passes = (
        *(("broadcasts", narrow), ("logarithms", near)),
        *(("dead code", alive), ("common subexpressions", plain), ("laws", after), ("chains of products", associated)),
    )
    return Simplification(program, associated, passes, tuple(sorted(matches.items())), stopped, perf_counter() - begin)


@cache
def _laws() -> str:
    return (resources.files("mirage_eg") / "rules" / "cleanup" / "00_cleanup.egg").read_text(encoding="utf-8")


def weight(graph: Graph) -> int:
    """What the ops of a program cost, roughly, each counted once."""
    return sum(_WEIGHTS.get(item.op.capitalize(), _WEIGHT) for item in graph.nodes if OPS[item.op].kind is not Kind.BOUNDARY)


def without_dead_code(program: Graph) -> Graph:
    """The program without what no output reaches; all inputs stay."""
    numbered = list(program.numbered())
    makers = [position for position, (_, values) in enumerate(numbered) for _ in values]
    needed: set[int] = set()
    frontier = [position for position, (item, _) in enumerate(numbered) if item.op in ("input", "output")]
    while frontier:
        position = frontier.pop()
        if position not in needed:
            needed.add(position)
            frontier += [makers[i] for i in numbered[position][0].operands]
    place: dict[int, int] = {}
    for position, (_, values) in enumerate(numbered):
        if position in needed:
            place.update(zip(values, range(len(place), len(place) + len(values)), strict=True))
    if len(needed) == len(numbered):
        return program
    kept = (item for position, (item, _) in enumerate(numbered) if position in needed)
    return Graph(tuple(Node(item.op, tuple(place[i] for i in item.operands), item.attributes) for item in kept))


def without_repeats(program: Graph) -> Graph:
    """The program without common subexpressions."""
    place: dict[int, int] = {}
    known: dict[Node, int] = {}
    nodes: list[Node] = []
    count = 0
    for item, values in program.numbered():
        moved = Node(item.op, tuple(place[i] for i in item.operands), item.attributes)
        if moved in known and OPS[item.op].kind is not Kind.BOUNDARY:
            place[values[0]] = known[moved]
            continue
        nodes.append(moved)
        for value in values:
            known[moved] = place[value] = count
            count += 1
    return program if len(nodes) == len(program.nodes) else Graph(tuple(nodes))


@dataclass(slots=True)
class _Terms:
    """A program as terms; `ops` says what the names of operators stand for."""

    program: Graph
    ops: dict[str, Node] = field(default_factory=lambda: {"square": Node("square", (), ())})  # which a law writes
    orders: set[tuple[int, ...]] = field(default_factory=set)

    def name(self, item: Node) -> str:
        text = " ".join([item.op, *(f"{key}={value}" for key, value in item.attributes)])
        self.ops[text] = Node(item.op, (), item.attributes)
        return text

    def term(self, item: Node, values: range, number: int) -> bindings.Call:
        operands = [bindings.Var(_SPAN, term_name(i)) for i in item.operands]
        shapes = [self.program.types[i] for i in item.operands]
        if item.op == "input":
            return call("In", number)
        if len(operands) == 1 and _is_idle(item) and shapes[0] == self.program.types[values[0]]:
            return call("Idle", self.name(item), operands[0])
        match item.op:
            case "scale" | "shift" | "pow":
                name, constant = _CONSTANTS[item.op]
                return call(name, item[constant], operands[0])
            case "transpose":
                self.orders.add(item["permutation"])
                return call("Transpose", _text(item["permutation"]), operands[0])
            case "reshape":
                return call("Reshape", _text(item["shape"]), operands[0])
            case "matmul":
                return call("Matmul", *operands)
        match OPS[item.op].kind, len(operands):
            case Kind.ELEMENTWISE, 1:
                return call("Unary", self.name(item), operands[0])
            case Kind.ELEMENTWISE, 2:
                return call("Binary", self.name(item), *operands)
        listed = call("Nil")
        for operand in reversed(operands):
            listed = call("Cons", operand, listed)
        return call("Other", self.name(item), listed)

    def commands(self) -> Iterator[Any]:
        inputs = 0
        for item, values in self.program.numbered():
            if item.op == "output":
                continue
            [value] = values
            yield bindings.ActionCommand(bindings.Let(_SPAN, term_name(value), self.term(item, values, inputs)))
            inputs += item.op == "input"
            shape = literal(_text(self.program.types[value].shape))
            yield bindings.ActionCommand(bindings.Set(_SPAN, "shape", [bindings.Var(_SPAN, term_name(value))], shape))
        orders = _closed(self.orders)
        for order in orders:
            rank = len(order)
            if list(order) == sorted(order):
                yield _fact("identity", _text(order))
            if rank > 1 and order == (*range(rank - 2), rank - 1, rank - 2):
                yield _fact("swap", _text(order))
            for first in orders:
                if len(first) == rank and (both := tuple(first[dim] for dim in order)) in orders:
                    yield _fact("composed", _text(order), _text(first), _text(both))


def _closed(orders: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """With all that they compose to, where these are few."""
    closed = set(orders)
    for rank in {len(order) for order in orders}:
        if rank <= 4:
            closed |= set(permutations(range(rank)))
        else:
            own = {order for order in orders if len(order) == rank}
            closed |= {tuple(first[dim] for dim in order) for order in own for first in own} | {tuple(range(rank))}
    return closed


def _is_idle(item: Node) -> bool:
    """Whether this op does nothing where it keeps the shape of its operand."""
    return item.op in ("sum", "mean", "max", "broadcast", "repeat", "split", "concat")


def _text(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def _fact(name: str, *arguments: str) -> Any:
    return bindings.ActionCommand(bindings.Expr_(_SPAN, call(name, *arguments)))


def _saturate(egraph: bindings.EGraph, begin: float) -> tuple[Counter[str], str | None]:
    """How often each law matched, and the limit that was hit."""
    matches: Counter[str] = Counter()
    steps = [bindings.RunSchedule(bindings.Run(_SPAN, bindings.RunConfig(name, None))) for name in ("shapes", "cleanup")]
    for _ in range(_ITERATIONS):
        updated = False
        for step in steps:
            [output] = egraph.run_program(step)
            assert isinstance(output, bindings.RunScheduleOutput)
            updated |= output.report.updated
            matches.update(
                {law: count for law, count in output.report.num_matches_per_rule.items() if count and "shape of" not in law}
            )
        if not updated:
            return matches, None
        [sizes] = egraph.run_program(bindings.PrintSize(_SPAN, None))
        assert isinstance(sizes, bindings.PrintAllFunctionsSize)
        if sum(size for _, size in sizes.sizes) > _NODES:
            return matches, f"stopped at {_NODES:,} nodes"
        if perf_counter() - begin > _SECONDS:
            return matches, f"stopped after {_SECONDS:g} s"
    return matches, f"stopped after {_ITERATIONS} iterations"


class _Reader:
    """Reads the cheapest terms out of the e-graph; of equal ones that which the program has."""

    def __init__(self, egraph: bindings.EGraph, terms: _Terms) -> None:
        self.egraph, self.terms = egraph, terms
        readers = {"String": egraph.value_to_string, "i64": egraph.value_to_i64, "BigRat": egraph.value_to_bigrat}
        self.nodes: list[tuple[Any, str, tuple[Any, ...], tuple[Any, ...]]] = []  # class, constructor, constants, children
        for name, function in egraph.freeze().functions.items():
            if not name[0].isupper():
                continue
            sorts = function.input_sorts
            for row in function.rows:
                pairs = list(zip(sorts, row.inputs, strict=True))
                constants = tuple(readers[sort](value) for sort, value in pairs if sort in readers)
                children = tuple(value for sort, value in pairs if sort not in readers)
                self.nodes.append((row.output, name, constants, children))
        self.nodes.sort(key=lambda entry: (entry[1], str(entry[2])))  # the same choice in every run
        self.best: dict[Any, tuple[float, tuple[str, tuple[Any, ...], tuple[Any, ...]]]] = {}
        changed = True
        while changed:
            changed = False
            for made, name, constants, children in self.nodes:
                if name == "Idle":
                    continue
                cost = self._weight(name, constants) + sum(
                    self.best[child][0] if child in self.best else inf for child in children
                )
                if cost < self.best.get(made, (inf,))[0]:
                    self.best[made] = cost, (name, constants, children)
                    changed = True

    @staticmethod
    def _weight(name: str, constants: tuple[Any, ...]) -> float:
        if name in ("Nil", "Cons"):
            return 0.001
        return 0.001 + _WEIGHTS.get(constants[0].capitalize() if name == "Unary" else name, _WEIGHT)

    def program(self, program: Graph) -> Graph:
        """The program with the cheapest term of each output."""
        nodes = list(program.inputs)
        inputs = list(range(len(nodes)))
        known: dict[Any, int] = {}

        def build(root: Any) -> int:
            stack = [root]
            while stack:
                at = stack[-1]
                name, constants, children = self.best[at][1]
                if at in known:
                    stack.pop()
                    continue
                if name == "In":
                    known[at] = inputs[constants[0]]
                    continue
                operands = list(self._flat(children))
                missing = [child for child in operands if child not in known]
                if missing:
                    stack += reversed(missing)
                    continue
                nodes.append(self._node(name, constants, [known[child] for child in operands]))
                known[at] = len(nodes) - 1
            return known[root]

        ends = [(item, bindings.Var(_SPAN, term_name(item.operands[0]))) for item in program.outputs]
        made = [(item, build(self.egraph.eval_expr(end)[1])) for item, end in ends]
        outputs = [Node("output", (value,), item.attributes) for item, value in made]
        return Graph((*nodes, *outputs))

    def _flat(self, children: tuple[Any, ...]) -> Iterator[Any]:
        """The operands; of `Other` they stand in a list."""
        for child in children:
            name, _, inner = self.best[child][1]
            if name in ("Cons", "Nil"):
                yield from self._flat(inner)
            else:
                yield child

    def _node(self, name: str, constants: tuple[Any, ...], operands: list[int]) -> Node:
        match name:
            case "Scale" | "Shift" | "Pow":
                op, (_, key) = next((op, entry) for op, entry in _CONSTANTS.items() if entry[0] == name)
                return node(op, *operands, **{key: Fraction(constants[0])})
            case "Transpose":
                return node("transpose", *operands, permutation=_numbers(constants[0]))
            case "Reshape":
                return node("reshape", *operands, shape=_numbers(constants[0]))
            case "Matmul":
                return node("matmul", *operands)
            case _:
                own = self.terms.ops[constants[0]]
                return Node(own.op, tuple(operands), own.attributes)


def simplification_record(cleaned: Simplification) -> dict[str, Any]:
    """Before and after in JSON's types; both programs are listed where something changed."""
    counts: tuple[Mapping[str, int], ...] = tuple(
        Counter(item.op for item in graph.nodes if OPS[item.op].kind is not Kind.BOUNDARY)
        for graph in (cleaned.before, cleaned.after)
    )
    changed = cleaned.after != cleaned.before
    programs = (cleaned.before, *(graph for _, graph in cleaned.passes))
    return {
        "changed": changed,
        "ops": {
            op: {"before": counts[0].get(op, 0), "after": counts[1].get(op, 0)}
            for op in sorted({*counts[0], *counts[1]})
            if counts[0].get(op, 0) != counts[1].get(op, 0)
        },
        "count": {"before": sum(counts[0].values()), "after": sum(counts[1].values())},
        "passes": [
            {"pass": name, "before": _listed(before), "after": _listed(after)}
            for (name, after), before in zip(cleaned.passes, programs, strict=False)
            if after != before
        ],
        "laws": dict(cleaned.laws) if changed else {},
        "before": _listed(cleaned.before) if changed else None,
        "after": _listed(cleaned.after) if changed else None,
        "stopped": cleaned.stopped,
        "seconds": cleaned.seconds,
    }


def _listed(program: Graph) -> list[str]:
    return str(program).splitlines()


__all__ = ["Simplification", "simplification_record", "simplify", "weight", "without_dead_code", "without_repeats"]
