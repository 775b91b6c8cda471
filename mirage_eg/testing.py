"""Testing with mirage_eg: Hypothesis strategies for programs, graphs and assignments, and assertions on laws and µGraphs.

Needs Hypothesis, the extra `testing`. The tests of this package use the same strategies. A strategy appends random nodes
and keeps those that the checker accepts, so that everything that the op table allows can appear.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

try:
    from hypothesis import assume
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f'{error}; mirage_eg.testing needs Hypothesis: pip install "mirage-eg[testing]"') from None

from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rule_files import TENSOR, rule_files
from mirage_eg.egraph.rulebook import Rulebook, load_rules, read_rules
from mirage_eg.egraph.soundness.assignments import RandomAssignments, value_in
from mirage_eg.egraph.soundness.check_law import EXAMPLES, Truth, check_law
from mirage_eg.egraph.soundness.claims import CheckableLaw, FalseClaim, checkable_law, false_claim
from mirage_eg.egraph.soundness.lints import Severity
from mirage_eg.egraph.soundness.models import FLOAT64, Model, UndefinedError
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.egraph.tensor.decide import decide
from mirage_eg.frontend.workloads import paper_programs
from mirage_eg.ir import write
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError, RuleError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, Phase, node
from mirage_eg.ir.op.elementwise import PACKAGED, record_of
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.ragged import LOOP
from mirage_eg.ir.shapes import Shape
from mirage_eg.verify.evidence import check_floats, verify_candidates
from mirage_eg.verify.tensor_laws import check_rule_file, proving_laws

MAX_ELEMENTS = 3000

# Ops that neither overflow nor lose digits on small numbers: float64 results do not depend on the order of sums.
TAME = frozenset(name for name, row in OPS.items() if row.kind in (Kind.REARRANGEMENT, Kind.REDUCTION)) | {
    *(op.name for op in PACKAGED.values() if op.bounded and not op.indicator and not op.selects),
    *("matmul", "cast", "sin", "cos", "accum_sum", "accum_mean", "accum_max", "accum_strided_sum", "thread"),
}
# A rounding turns a comparison of almost equal values, and a condition must be one: `test_indicators.py` has them.
CHOICES = frozenset(op.name for op in PACKAGED.values() if op.indicator or op.conditions)
OF_A_TYPE = frozenset(op.name for op in PACKAGED.values() if op.of_integers_alone or op.dtype)
_INNER = frozenset(name for name, row in OPS.items() if row.kind not in (Kind.BOUNDARY, Kind.GRAPH, Kind.LIBRARY))
EVERY = _INNER - CHOICES - OF_A_TYPE | {"thread"}

_RATIONALS = (Fraction(1, 2), Fraction(-3, 4), Fraction(2), Fraction(1, 10))
_EXPONENTS = (Fraction(2), Fraction(-1), Fraction(1, 2), Fraction(3, 5), Fraction(0))


@st.composite
def _attributes(draw: st.DrawFn, op: str, shape: Shape) -> dict[str, Any]:
    """Attributes that have a chance to be legal for an operand of `shape`."""
    dim = draw(st.integers(0, max(0, len(shape) - 1)))
    match op:
        case "sum" | "mean" | "max" | "softmax" | "concat":
            return {"dim": dim}
        case "accum_sum" | "accum_mean" | "accum_max" | "accum_rms":
            return {"dim": draw(st.sampled_from([None, dim]))}
        case "accum_strided_sum":
            return {"dim": dim, "columns": draw(st.integers(1, 3))}
        case "rms_norm" | "layer_norm":
            return {"dims": draw(st.integers(1, 2)), "eps": draw(st.sampled_from([None, Fraction(1, 100)]))}
        case "reshape":
            return {"shape": tuple(draw(st.permutations(shape)))}
        case "transpose":
            return {"permutation": tuple(draw(st.permutations(range(len(shape)))))}
        case "split":
            return {"dim": dim, "parts": draw(st.integers(1, 3)), "index": draw(st.integers(0, 2))}
        case "slice":
            start = draw(st.integers(0, 2))
            return {"dim": dim, "start": start, "stop": start + draw(st.integers(1, 3)), "step": draw(st.integers(1, 2))}
        case "broadcast":
            return {"shape": tuple(draw(st.sampled_from([2, 3])) if extent == 1 else extent for extent in shape)}
        case "repeat":
            return {"dim": dim, "times": draw(st.integers(1, 2))}
        case "pow":
            return {"exponent": draw(st.sampled_from(_EXPONENTS))}
        case "clamp":
            return {"low": Fraction(-1, 2), "high": draw(st.sampled_from(_RATIONALS))}
        case "cast":
            return {"dtype": draw(st.sampled_from(["float16", "float32"]))}
        case _ if (record := record_of(op)) is not None:
            return {name: draw(st.sampled_from(_RATIONALS)) for name in record.attributes}
        case _:
            return {}


@st.composite
def _thread_graphs(draw: st.DrawFn, ops: frozenset[str]) -> Graph:
    """A chain of elementwise ops over one or two inputs of shape [2, 2] (float16)."""
    names = sorted(name for name in ops if name in OPS and OPS[name].kind is Kind.ELEMENTWISE)
    nodes = [node("input", shape=(2, 2), dtype="float16") for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(names))
        operands = [draw(st.integers(0, len(nodes) - 1)) for _ in range(OPS[op].arity[0])]
        nodes.append(node(op, *operands, **draw(_attributes(op, (2, 2)))))
    return Graph((*nodes, node("output", len(nodes) - 1)), Level.THREAD)


@st.composite
def _random_node(draw: st.DrawFn, checker: Checker, ops: Sequence[str]) -> Node:
    op = draw(st.sampled_from(ops))
    if op == "thread":
        graph = draw(_thread_graphs(frozenset(ops)))
        fitting = [i for i, kind in enumerate(checker.types) if kind.shape == (2, 2)] or [0]
        return node(op, *(draw(st.sampled_from(fitting)) for _ in graph.inputs), graph=graph)
    low, high = OPS[op].arity
    # Late values are more likely: graphs become deep.
    count = len(checker.types)
    operands = [count - 1 - draw(st.integers(0, count - 1)) for _ in range(draw(st.integers(low, min(high, low + 1))))]
    return node(op, *operands, **draw(_attributes(op, checker.types[operands[0]].shape)))


def _grow(draw: st.DrawFn, checker: Checker, nodes: list[Node], ops: frozenset[str], attempts: int) -> None:
    names = sorted(name for name in ops if checker.level in OPS[name].levels)
    for _ in range(attempts):
        item = draw(_random_node(checker, names))
        trial = Checker(checker.level, checker.grid, checker.loop)
        trial.types, trial.phases, trial.grid_dims = list(checker.types), list(checker.phases), list(checker.grid_dims)
        trial.cuts = dict(checker.cuts)
        try:
            trial.append(item)
        except GraphError:
            continue
        if prod(trial.types[-1].shape) <= MAX_ELEMENTS:
            checker.append(item)
            nodes.append(item)


_FEW = (2, 2, 3, 1)
_EXTENTS = st.sampled_from(_FEW)


def programs(ops: Collection[str] = EVERY, attempts: int = 6) -> st.SearchStrategy[Graph]:
    """Tensor programs of library kernels: one to three inputs of float16 with extents up to 3, one or two outputs.

    `ops` are names of the op table, those of custom ops among them; EVERY and TAME are sets of them. `attempts` bounds the ops.

    Raises GraphError: an op is not in the op table.
    """
    return _programs(_known("programs", ops), attempts)


@st.composite
def _programs(draw: st.DrawFn, ops: frozenset[str], attempts: int) -> Graph:
    checker, nodes = Checker(Level.KERNEL), list[Node]()
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(_EXTENTS, min_size=2, max_size=3)))
        nodes.append(node("input", shape=shape, dtype="float16"))
        checker.append(nodes[-1])
    _grow(draw, checker, nodes, ops, attempts)
    outputs = {len(checker.types) - 1, draw(st.integers(0, len(checker.types) - 1))}
    return Graph((*nodes, *(node("output", position) for position in sorted(outputs))))


def block_graphs(ops: Collection[str] = EVERY, attempts: int = 8, extents: Sequence[int] = _FEW) -> st.SearchStrategy[Graph]:
    """Block graphs with any grid, loop, maps and accumulators, often with a rest in the last part; one or two outputs.

    `extents` are those of grid, loop and tiles. `as_program` makes the kernel graph that runs one.

    Raises GraphError: an op is not in the op table.
    """
    return _block_graphs(_known("block_graphs", ops), attempts, st.sampled_from([*extents]))


def _known(strategy: str, ops: Collection[str]) -> frozenset[str]:
    given = [ops] if isinstance(ops, str) else list(ops)
    if not given or (unknown := [name for name in given if name not in OPS and name != "thread"]):
        got = ", ".join(map(repr, unknown)) if given else "no ops"
        raise GraphError(f"{strategy}: got {got}, wanted a set of ops of the op table, as in ops={{'matmul', 'exp'}}")
    return frozenset(given)


@st.composite
def _block_graphs(draw: st.DrawFn, ops: frozenset[str], attempts: int, extents: st.SearchStrategy[int]) -> Graph:
    rest = draw(st.integers(0, 1))
    grid = tuple(draw(st.lists(extents, min_size=1, max_size=3)))
    loop = draw(extents)
    checker, nodes = Checker(Level.BLOCK, grid, loop), list[Node]()
    for _ in range(draw(st.integers(1, 3))):
        tile = draw(st.one_of(st.just([2, 2]), st.lists(extents, min_size=2, max_size=3)))
        targets = st.integers(-1, len(tile) - 1)
        imap, fmap = tuple(draw(targets) for _ in grid), draw(targets)
        parts = list(tile)
        for extent, target in (*zip(grid, imap, strict=True), (loop, fmap)):
            if target != REPLICATED:
                tile[target] *= extent
        tile = [extent - rest if 1 < part < extent else extent for extent, part in zip(tile, parts, strict=True)]
        nodes.append(node("input", shape=tuple(tile), dtype="float16", imap=imap, fmap=fmap))
        checker.append(nodes[-1])
    _grow(draw, checker, nodes, ops, attempts)
    storable = [i for i, phase in enumerate(checker.phases) if phase is not Phase.LOOP]
    if len(checker.types) - 1 not in storable:
        uneven = [dim for dim, places in _cutting(checker, len(checker.types) - 1).items() if LOOP in places]
        for dim in uneven[1:]:
            nodes.append(node("sum", len(checker.types) - 1, dim=dim))
            checker.append(nodes[-1])
        nodes.append(node("accum_sum", len(checker.types) - 1, dim=uneven[0] if uneven else None))
        storable += checker.append(nodes[-1])
    for value in sorted({storable[-1], draw(st.sampled_from(storable))}):
        omap = []
        cutting = _cutting(checker, value)
        assume(all(one.isdisjoint(other) for one, other in combinations(cutting.values(), 2)))  # else it cannot be stored
        for dim in range(len(grid)):
            wanted = [NEW_DIM, *(place for place in range(len(checker.types[value].shape)) if place not in cutting)]
            wanted = [place for place, dims in cutting.items() if dim in dims] or wanted
            omap.append(draw(st.sampled_from(wanted if dim in checker.grid_dims[value] else [REPLICATED, *wanted])))
        nodes.append(node("output", value, omap=tuple(omap)))
    return Graph(tuple(nodes), Level.BLOCK, grid, loop)


def _cutting(checker: Checker, value: int) -> dict[int, set[int]]:
    """The ragged dims of a value, each with the grid dims and LOOP that cut it."""
    cuts = enumerate(checker.cuts.get(value, ()))
    return {dim: {place for place, _ in cut.steps} for dim, cut in cuts if cut is not None}


def as_program(block: Graph) -> Graph:
    """The kernel graph that runs one block graph."""
    nodes = [write.source(kind) for kind in block.input_types]
    call = node("block", *range(len(nodes)), graph=block)
    outputs = [node("output", len(nodes) + i) for i in range(len(block.outputs))]
    return Graph((*nodes, call, *outputs))


_SUMS = ("accum_sum", "accum_mean", "accum_max")
_MAPS = ("imap", "omap", "fmap")


def _changed(item: Node, place: int) -> Iterator[Node]:
    """The node with one map entry, operand or accumulator changed, legal or not."""
    for name, value in item.attributes:
        if name not in _MAPS:
            continue
        entries = (value,) if name == "fmap" else value
        for i in range(len(entries)):
            for target in range(-2, 4):
                if target != entries[i]:
                    new = (*entries[:i], target, *entries[i + 1 :])
                    yield node(item.op, *item.operands, **(item.mapping | {name: target if name == "fmap" else new}))
    for i in range(len(item.operands)):
        for value in range(place):
            if value != item.operands[i]:
                operands = (*item.operands[:i], value, *item.operands[i + 1 :])
                yield Node(item.op, operands, item.attributes)
    if item.op in _SUMS:
        for op in _SUMS:
            if op != item.op:
                yield Node(op, item.operands, item.attributes)


def every_mutant(block: Graph) -> list[Graph]:
    """Every legal block graph of the same input and output types that differs in one map entry, operand or accumulator."""
    found = []
    place = 0
    for i, item in enumerate(block.nodes):
        for changed in _changed(item, place):
            try:
                mutant = Graph((*block.nodes[:i], changed, *block.nodes[i + 1 :]), Level.BLOCK, block.grid, block.loop)
            except GraphError:
                continue
            if (mutant.input_types, mutant.output_types) == (block.input_types, block.output_types):
                found.append(mutant)
        place += item.op != "output"
    return found


def mutants(graph: Graph) -> st.SearchStrategy[Graph]:
    """Legal graphs of the same types that differ from a block graph, or from one block graph of a µGraph, in one place.

    The change is another entry of a map, another operand or another accumulator. A mutant may compute the same function.

    Raises GraphError: no block graph, or nothing in it can change.
    """
    if graph.level is Level.BLOCK:
        found = every_mutant(graph)
    else:
        found = []
        for place, item in enumerate(graph.nodes):
            for mutant in every_mutant(item["graph"]) if item.op == "block" else ():
                changed = node(item.op, *item.operands, graph=mutant)
                found.append(Graph((*graph.nodes[:place], changed, *graph.nodes[place + 1 :])))
    if not found:
        raise GraphError(
            "mutants: got a graph without a change that is legal, wanted a block graph, or a µGraph with block graphs"
        )
    return st.sampled_from(found)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Values of a law's variables: exact numbers with one dim for each part, parts, rationals; `sizes`: those of parts."""

    law: str
    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    checkable: CheckableLaw
    domain: str

    def counterexample(self) -> FalseClaim | None:
        """The claim of the law that these values refute in float64, if any; None also where the law claims nothing."""
        model = Model(self.domain, FLOAT64, self.sizes)
        try:
            return false_claim(self.checkable, model, {name: value_in(model, value) for name, value in self.values.items()})
        except UndefinedError:
            return None

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"Assignment({self.law}: {values}, sizes={dict(self.sizes)})"


def assignments(law: str, domain: str = "indexed") -> st.SearchStrategy[Assignment]:
    """Values of the variables of a law, as `mirage-eg rules check` samples them: near its constants, of many sizes and signs.

    Raises RuleError: the text is not one law, or has no meaning in the models.
    """
    rulebook = read_rules(law, domain)
    laws = rulebook.theories[-1].laws
    if len(laws) != 1:
        raise RuleError(f"assignments: got a text with {counted(len(laws), 'law')}, wanted 1")
    [form, *_] = unfolded(laws[0], rulebook.laws, rulebook.signatures)
    checkable = checkable_law(form, rulebook.signatures)
    drawn = RandomAssignments.of(checkable, domain)
    return st.randoms(use_true_random=False).map(
        lambda random: Assignment(laws[0].text, *drawn.next(random), checkable, domain)
    )


def assert_law_sound(text: str, domain: str = "indexed", examples: int = EXAMPLES, seed: int = 0) -> None:
    """Assert that no random assignment refutes the laws of a text; declarations may come before them.

    Laws of whole tensors (domain tensor) are asserted to be neither refuted nor ill-typed; most of them are proved.

    Raises:
        AssertionError: a law is false; the message has the shrunk counterexample.
        RuleError: the text does not load, has no law, or a law cannot be tested.
    """
    rulebook = read_rules(text, domain)
    laws = rulebook.theories[-1].laws
    if not laws:
        raise RuleError("assert_law_sound: got a text without laws, wanted (rewrite …), (birewrite …) or (rule …)")
    for law in laws:
        if domain == TENSOR:
            verdict = decide(law, proving_laws)
            if verdict.truth in (Truth.REFUTED, Truth.ILL_TYPED):
                raise AssertionError(f"{law.place}: {law.text}\nis {verdict}")
        else:
            _assert_law(law, rulebook, examples, seed)


def _assert_law(law: Law, rulebook: Rulebook, examples: int, seed: int) -> None:
    forms = unfolded(law, rulebook.laws, rulebook.signatures)
    finding = check_law(law, rulebook.domain, rulebook.signatures, examples, seed, forms)
    if finding.truth is Truth.REFUTED:
        raise AssertionError(f"{law.place}: {law.text}\nis refuted: {finding.counterexample}")


def assert_rules_sound(paths: str | Path | Iterable[str | Path], domain: str | None = None, seed: int = 0) -> None:
    """Assert that `mirage-eg rules check` calls rule files, or all files of folders, sound.

    Raises:
        AssertionError: a law is false or cannot be tested, or a lint is an error; the message names all of them.
        RuleError: a file does not load, no law of it can be tested, or its laws grow without end.
    """
    problems = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        for file in rule_files(path):
            report = check_rule_file(file, paper_programs(), domain, seed=seed)
            for finding in report.findings:
                if finding.truth not in (Truth.PROVED, Truth.HELD):
                    why = finding.counterexample or finding.because
                    problems.append(f"{finding.law.place}: {finding.law.text}\nis {finding.truth}: {why}")
            problems += [f"{lint.place}: {lint.message}" for lint in report.lints if lint.level is Severity.ERROR]
    if problems:
        raise AssertionError("\n".join(problems))


def assert_equal(
    program: Graph | KernelGraph, graph: Graph | KernelGraph, rules: Sequence[str | Path] = (), trials: int = 2, seed: int = 0
) -> None:
    """Assert that a µGraph computes a program: in the finite field, by proof where possible, and as its kernels round.

    `rules` are rule files to prove by, besides the packaged ones.

    Raises:
        AssertionError: not equal, undecided, or imprecise; the message has the first difference.
        GraphError: the inputs or outputs have other types.
    """
    program, graph = (it.graph() if isinstance(it, KernelGraph) else it for it in (program, graph))
    rulebook = load_rules("indexed", rules)
    [(verdict, _)] = verify_candidates(program, {"graph": graph}, trials=trials, seed=seed, rulebook=rulebook)
    if not verdict.equal:
        why = verdict.undecided_because or f"first difference at {verdict.difference}"
        raise AssertionError(f"{verdict.verdict}: {why}; seed {seed}\n{graph}")
    [check] = check_floats(program, {"graph": graph}, seed=seed)
    if not check.ok:
        raise AssertionError(
            f"equal, but {check.problem} as kernels compute it: error {check.error:.2g}, tolerance {check.tolerance:.2g}, "
            f"at {check.difference}\n{graph}"
        )


__all__ = [
    "EVERY",
    "TAME",
    "Assignment",
    "as_program",
    "assert_equal",
    "assert_law_sound",
    "assert_rules_sound",
    "assignments",
    "block_graphs",
    "every_mutant",
    "mutants",
    "programs",
]
