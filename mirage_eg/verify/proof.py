"""Proofs for concrete µGraphs: program and candidate as terms of one e-graph over shared parts, saturated together.

A block graph is flattened into ops on arrays of all its tiles (`ir.flatten`); axis inference over both graphs at once, outputs
aligned, splits every axis into the parts that the candidate's grid, loop, tiles and strided sums make of it. The candidate is
proved if every one of its outputs ends in the class of the program's. What cannot be translated is said not to be proved.
What a proof is worth, `evidence` says.
Trusted for the word `proved`, together with axis inference, the rules and egglog; not for `tested`.
"""

from dataclasses import dataclass
from itertools import combinations
from weakref import finalize

from mirage_eg.egraph.expression import Expression, Split, express, needed_for
from mirage_eg.egraph.oracle import Limits, Oracle, saturate, spellings, undeclared
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.sandbox import Worker
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import RuleError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.flatten import Flat, append
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.proof_scope import Evidence

LIMITS = Limits(iterations=40, nodes=40_000, seconds=10.0)

SEARCHED_NODES = 5_000  # fewer laws are looked for where the e-graph is no larger: a saturation takes a few tenths of a second
TRIED_AGAIN = 2  # sets of laws that were enough for other µGraphs, the last ones: those of one program mostly need the same


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the laws show the candidate equal; the laws that suffice together, or the reason why not.

    Where some of these laws are `partial`, it is shown equal where program and candidate are both defined. `doubt` says why
    a user's law among them does not overrule a difference in the field.
    """

    proved: bool
    laws: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    doubt: str | None = None
    reason: str | None = None


class Prover:
    """A program, and the rules to prove candidates by; proofs of µGraphs that say the same are kept.

    Laws of a user's run in a process of their own, which ends with the prover.
    """

    def __init__(self, program: Graph, rulebook: Rulebook | None = None, limits: Limits = LIMITS) -> None:
        self.program, self.limits = program, limits
        self.rulebook = rulebook or load_rules("indexed")
        laws = self.rulebook.laws
        self._equations = tuple(law.name for law in laws if any(action.kind == "union" for action in law.actions))
        self._evidence = Evidence(self.rulebook)
        self._known: dict[Expression, Proof] = {}
        self._enough: dict[tuple[str, ...], None] = {}  # laws that proved µGraphs, the last ones last
        self._worker: Worker | None = None
        self.nodes = 0  # e-nodes of all saturations: what the proofs took

    def prove(self, candidate: Graph) -> Proof:
        """The proof that `candidate` computes the program, if the laws give one."""
        try:
            joint = express_both(self.program, candidate)
        except UnsupportedError as error:
            return Proof(False, reason=f"cannot be translated: {error}")
        if joint not in self._known:
            self._known[joint] = self._proof(joint)
        return self._known[joint]

    def _proof(self, joint: Expression) -> Proof:
        if (unknown := undeclared(self.rulebook, joint)) is not None:
            return Proof(False, reason=f"cannot be translated: no loaded theory declares {unknown}")
        for laws in (*[*reversed(self._enough)][:TRIED_AGAIN], self._equations):
            without = frozenset(self._equations).difference(laws)
            try:
                oracle = self._saturate(joint, without)
            except RuleError as error:  # a user's laws hit a limit
                reason = str(error)
                continue
            if _agree(oracle):
                needed = self._sufficient(joint, oracle, without)
                doubt, own = self._evidence.doubt(joint, needed), self._evidence.own
                if doubt is not None and self._agrees(joint, own):
                    doubt, needed = None, self._sufficient(joint, self._saturate(joint, own), own)
                partial = self._evidence.partial(needed)
                if partial and not self._agree_one_by_one(joint, needed):
                    return Proof(False, needed, partial, reason="the laws show it only where every output is defined")
                self._enough.pop(needed, None)
                self._enough[needed] = None
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
        what = f"{paths}: saturation of program and µGraph together"
        arguments = (saturate, self.rulebook, joint, self.limits, without)
        try:
            oracle: Oracle = self._worker.call(*arguments, seconds=2.0 * self.limits.seconds + 1.0, what=what)
        except RuleError:  # the process may be gone, or busy without end
            self._worker.close()
            self._worker = None
            raise
        return oracle

    def _agree_one_by_one(self, joint: Expression, laws: tuple[str, ...]) -> bool:
        """Whether each output is proved alone too: an undefined term of another output may stand in the middle of a proof."""
        without = frozenset(self._equations).difference(laws)
        half = len(joint.outputs) // 2
        pairs = zip(joint.outputs[:half], joint.outputs[half:], strict=True)
        return half == 1 or all(self._agrees(needed_for(joint, pair), without) for pair in pairs)

    def _agrees(self, joint: Expression, without: frozenset[str]) -> bool:
        try:
            return _agree(self._saturate(joint, without))
        except RuleError:  # a limit: the laws in `without` are taken to be needed
            return False

    def _sufficient(self, joint: Expression, oracle: Oracle, without: frozenset[str]) -> tuple[str, ...]:
        """Laws that prove it together: of those that matched, others are dropped in halves, then one by one; where they were
        enough for another µGraph, one by one at once.

        Where the e-graph is large, all that matched.
        """
        matched = {law for law, count in oracle.saturation.matches if count}
        needed = [law for law in self._equations if law not in without and any(name in matched for name in spellings(law))]
        if oracle.saturation.nodes > SEARCHED_NODES:
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
        UnsupportedError: axes that cannot be inferred, or that the two graphs use in contradicting ways.
    """
    flat = Flat()
    inputs = [flat.apply("input", shape=kind.shape, dtype=str(kind.dtype)) for kind in program.input_types]
    outputs = [append(flat, graph, inputs) for graph in (program, candidate)]
    for value in outputs[0] + outputs[1]:
        flat.apply("output", value)
    count = len(flat.nodes)
    for wanted, got in zip(*outputs, strict=True):  # aligned: an index of one output is that index of the other
        flat.apply("add", wanted, got)
    axes = _joint_axes(program, Graph(tuple(flat.nodes)))
    for wanted, got in zip(*outputs, strict=True):
        if axes.dims[wanted] != axes.dims[got]:
            raise UnsupportedError(f"the outputs have the axes {axes.show(wanted)} and {axes.show(got)}")
    return express(Graph(tuple(flat.nodes[:count])), axes, Split(), "indexed")


def _joint_axes(program: Graph, both: Graph) -> Axes:
    """The axes of both graphs together; where they have none, the message says which of the two, or what they disagree on."""
    try:
        return infer_axes(both)
    except UnsupportedError:
        try:
            infer_axes(expand(program))
        except UnsupportedError as error:
            raise UnsupportedError(f"the program: {error}") from None
    try:
        axes = infer_axes(both, repeats=True)
    except UnsupportedError:
        raise UnsupportedError("program and µGraph split an axis in ways that have no common parts") from None
    for value, name in enumerate(program.input_names):
        for (one, dim), (two, other) in combinations(enumerate(axes.dims[value]), 2):
            if set(dim) & set(other):
                raise UnsupportedError(
                    f"the µGraph walks dims {one} and {two} of {name} by one index, which are two axes in the program"
                )
    raise UnsupportedError("the µGraph walks two axes of the program by one index")
