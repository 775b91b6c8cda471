"""Prove a concrete µGraph: program and candidate as terms of one e-graph over shared parts, saturated together.

A block graph is flattened into ops on arrays of all its tiles (`ir.flatten`). Axis inference over both graphs, outputs aligned,
splits every axis into the parts of the candidate's grid, loop, tiles and strided sums. The candidate is proved if every output
of it is in the class of the program's output. A candidate that cannot be translated is not proved. `evidence` combines proofs
with tests. Trusted for the word `proved`, together with axis inference, the laws and egglog; not for `tested`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from weakref import finalize

from mirage_eg.egraph.expression import Expression, Split, express, needed_for
from mirage_eg.egraph.oracle import Limits, Oracle, saturate, spellings, undeclared
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.sandbox import Worker
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.dissolve import dissolved
from mirage_eg.ir.errors import RuleError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.flatten import Flat, append
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.program_ends import core_of
from mirage_eg.verify.proof_scope import ProofScope

LIMITS = Limits(iterations=40, nodes=40_000, seconds=10.0)

MINIMIZED_NODES = 5_000  # e-graphs up to this size are saturated again to drop laws, in a few tenths of a second each
RECENT_SETS = 2  # sets of laws of the latest proofs that are tried first: µGraphs of one program mostly need the same laws


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the laws show the candidate equal; a sufficient set of laws, or the reason why not.

    With `partial` laws among them the proof holds where program and candidate are both defined. `doubt` is the reason why a
    user's law among them does not overrule a difference in the field.
    """

    proved: bool
    laws: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    doubt: str | None = None
    reason: str | None = None


class Prover:
    """Proves candidates of one program by one rulebook; µGraphs with equal terms share a proof.

    User laws run in a process of their own, which ends with the prover.
    """

    def __init__(self, program: Graph, rulebook: Rulebook | None = None, limits: Limits = LIMITS) -> None:
        self.program, self.limits = program, limits
        self.rulebook = rulebook or load_rules("indexed")
        laws = self.rulebook.laws
        self._equations = tuple(law.name for law in laws if any(action.kind == "union" for action in law.actions))
        self._scope = ProofScope(self.rulebook)
        self._memo: dict[Expression, Proof] = {}
        self._sufficient_sets: dict[tuple[str, ...], None] = {}  # of earlier proofs, the latest last
        self._worker: Worker | None = None
        self.nodes = 0  # e-nodes of all saturations: the cost of the proofs

    def prove(self, candidate: Graph) -> Proof:
        """The proof that `candidate` computes the program, or the reason why there is none."""
        try:
            joint = express_both(self.program, candidate)
        except UnsupportedError as error:
            return Proof(False, reason=f"cannot be translated: {error}")
        if joint not in self._memo:
            self._memo[joint] = self._proof(joint)
        return self._memo[joint]

    def _proof(self, joint: Expression) -> Proof:
        if (unknown := undeclared(self.rulebook, joint)) is not None:
            return Proof(False, reason=f"cannot be translated: no loaded theory declares {unknown}")
        for laws in (*[*reversed(self._sufficient_sets)][:RECENT_SETS], self._equations):
            without = frozenset(self._equations).difference(laws)
            try:
                oracle = self._saturate(joint, without)
            except RuleError as error:  # user laws hit a limit
                reason = str(error)
                continue
            if _agree(oracle):
                needed = self._sufficient(joint, oracle, without)
                doubt, own = self._scope.doubt(joint, needed), self._scope.own
                if doubt is not None and self._agrees(joint, own):
                    doubt, needed = None, self._sufficient(joint, self._saturate(joint, own), own)
                partial = self._scope.partial(needed)
                if partial and not self._agree_separately(joint, needed):
                    return Proof(False, needed, partial, reason="the laws show it only where every output is defined")
                self._sufficient_sets.pop(needed, None)
                self._sufficient_sets[needed] = None
                return Proof(True, needed, partial, doubt)
            stopped = oracle.saturation.stopped
            reason = f"saturation {stopped}" if stopped else "the laws do not show it"
        return Proof(False, reason=reason)

    def _saturate(self, joint: Expression, without: frozenset[str] = frozenset()) -> Oracle:
        oracle = self._oracle(joint, without)
        self.nodes += oracle.saturation.nodes
        return oracle

    def _oracle(self, joint: Expression, without: frozenset[str]) -> Oracle:
        if self.rulebook.packaged:
            return saturate(self.rulebook, joint, self.limits, without)
        if self._worker is None:
            self._worker = Worker()
            finalize(self, self._worker.close)
        paths = ", ".join(theory.path for theory in self.rulebook.theories if not theory.packaged)
        task = f"{paths}: saturation of program and µGraph together"
        arguments = (saturate, self.rulebook, joint, self.limits, without)
        try:
            oracle: Oracle = self._worker.call(*arguments, seconds=2.0 * self.limits.seconds + 1.0, task=task)
        except RuleError:  # the process may have ended, or may never end
            self._worker.close()
            self._worker = None
            raise
        return oracle

    def _agree_separately(self, joint: Expression, laws: tuple[str, ...]) -> bool:
        """Whether each output is proved by itself: a proof of all may pass through an undefined term of another output."""
        without = frozenset(self._equations).difference(laws)
        half = len(joint.outputs) // 2
        pairs = zip(joint.outputs[:half], joint.outputs[half:], strict=True)
        return half == 1 or all(self._agrees(needed_for(joint, pair), without) for pair in pairs)

    def _agrees(self, joint: Expression, without: frozenset[str]) -> bool:
        try:
            return _agree(self._saturate(joint, without))
        except RuleError:  # a limit: the laws in `without` count as needed
            return False

    def _sufficient(self, joint: Expression, oracle: Oracle, without: frozenset[str]) -> tuple[str, ...]:
        """A sufficient set of laws: of the laws that matched, superfluous ones are dropped in halves, then one by one.

        A set from an earlier proof is reduced one by one from the start. A large e-graph keeps all laws that matched.
        """
        matched = {law for law, count in oracle.saturation.matches if count}
        needed = [law for law in self._equations if law not in without and any(name in matched for name in spellings(law))]
        if oracle.saturation.nodes > MINIMIZED_NODES:
            return tuple(needed)
        dropped = set(self._equations) - set(needed)
        size = 1 if without else max(1, len(needed) // 2)
        while True:
            for start in range(0, len(needed), size):
                chunk = needed[start : start + size]
                if chunk and self._agrees(joint, frozenset(dropped.union(chunk))):
                    dropped.update(chunk)
            needed = [law for law in needed if law not in dropped]
            if size == 1:
                return tuple(needed)
            size = max(1, size // 2)


def _agree(oracle: Oracle) -> bool:
    half = len(oracle.outputs) // 2
    return oracle.outputs[:half] == oracle.outputs[half:]


def express_both(program: Graph, candidate: Graph) -> Expression:
    """Both graphs as indexed terms over the same parts: the program's outputs, then the candidate's.

    Raises:
        UnsupportedError: axes that cannot be inferred, or that the two graphs use contradictorily.
    """
    flat = Flat()
    inputs = [flat.apply("input", shape=kind.shape, dtype=str(kind.dtype)) for kind in program.input_types]
    outputs = [append(flat, graph, inputs) for graph in (program, candidate)]
    both = [flat.apply("maximum", *pair) for pair in zip(*outputs, strict=True)]  # equal indices of both are one axis index
    joint = _without_slices(Graph((*_with_opaque_values(flat), *(node("output", value) for value in both))))
    nodes = [item for item in joint.nodes if item.op != "output"]
    pairs = [nodes[_aligned_pair(nodes, item.operands[0])].operands for item in joint.outputs]
    axes = _joint_axes(program, joint)
    for wanted, got in pairs:
        if axes.dims[wanted] != axes.dims[got]:
            raise UnsupportedError(f"the outputs have the axes {axes.show(wanted)} and {axes.show(got)}")
    ends = [node("output", pair[side]) for side in (0, 1) for pair in pairs]
    return express(Graph((*nodes, *ends)), axes, Split(), "indexed")


def _without_slices(graph: Graph) -> Graph:
    """The graph with slices of inputs as inputs, and with the operands of concatenations as outputs."""
    graph = dissolved(graph, everywhere=True)
    core = core_of(graph)
    return graph if core is None else core.program


def _aligned_pair(nodes: Sequence[Node], value: int) -> int:
    """The op on program and candidate whose piece an output is."""
    while nodes[value].op == "reshape":
        [value] = nodes[value].operands
    return value


def _with_opaque_values(flat: Flat) -> tuple[Node, ...]:
    """The nodes with an input in place of each library op: equal ops on equal operands are one opaque value."""
    pairs = zip(flat.nodes, flat.checker.types, strict=True)
    return tuple(
        node("input", shape=kind.shape, dtype=str(kind.dtype)) if OPS[item.op].kind is Kind.LIBRARY else item
        for item, kind in pairs
    )


def _joint_axes(program: Graph, both: Graph) -> Axes:
    """The common axes of both graphs; else the message names the graph that has none, or the axes that they use differently."""
    try:
        return infer_axes(both)
    except UnsupportedError:
        try:
            infer_axes(_without_slices(expand(program)))
        except UnsupportedError as error:
            raise UnsupportedError(f"the program: {error}") from None
    try:
        axes = infer_axes(both, repeats=True)
    except UnsupportedError:
        raise UnsupportedError("program and µGraph split an axis into parts without a common refinement") from None
    for value, name in enumerate(program.input_names):
        for (one, dim), (two, other) in combinations(enumerate(axes.dims[value]), 2):
            if set(dim) & set(other):
                raise UnsupportedError(
                    f"the µGraph walks dims {one} and {two} of {name} by one index, which are two axes in the program"
                )
    raise UnsupportedError("the µGraph walks two axes of the program by one index")
