"""Prove a concrete µGraph: program and candidate as terms of one e-graph over shared parts, saturated together.

A block graph is flattened into ops on arrays of all its tiles (`ir.flatten`). Axis inference over both graphs, outputs aligned,
splits every axis into the parts of the candidate's grid, loop, tiles and strided sums. The candidate is proved if every output
of it is in the class of the program's output. A candidate that cannot be translated is not proved. A proof becomes a chain of
steps for each output, which a checker without an e-graph replays. `evidence` combines proofs with tests. Trusted for the word
`proved`, together with axis inference, the laws and egglog; not for `tested`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from mirage_eg.egraph.chain_checker import ChainError, check_chain
from mirage_eg.egraph.chain_search import Chains, find_chains
from mirage_eg.egraph.expression import Expression, Split, express, needed_for
from mirage_eg.egraph.oracle import Limits, undeclared
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.soundness.chain_values import check_values
from mirage_eg.egraph.sufficient_laws import NOT_SHOWN, PROOF_LIMITS, SufficientLaws
from mirage_eg.ir import write
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.dissolve import dissolve
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand, has_choices
from mirage_eg.ir.flatten import Flat, append
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.integer_ranges import place_ranges, with_wraps
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.program_ends import core_of
from mirage_eg.verify.box_proof import proved_by_boxes
from mirage_eg.verify.proof_scope import ProofScope
from mirage_eg.verify.slice_proof import LIMITS as PARTING_LIMITS
from mirage_eg.verify.slice_proof import laws_of_parting, laws_that_may_part, parting_claims, with_opaque_values

CHAIN_LIMITS = Limits(iterations=40, nodes=5_000, seconds=10.0)  # of the search of a chain of steps for one proof


@dataclass(frozen=True, slots=True)
class JointTerms:
    """The terms of a proof: `both` has the program's outputs, then the candidate's, in parts without slices; `parting`
    claims that they are computed in these parts (None: no slice or concatenation is there)."""

    both: Expression
    parting: Expression | None


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the laws show the candidate equal; a sufficient set of laws, or the reason why not.

    With `partial` laws among them the proof holds where program and candidate are both defined. `doubt` is the reason why a
    user's law among them does not overrule a difference in the field. `boxes` counts the boxes of positions of a proof without
    laws (`box_proof`).
    """

    proved: bool
    laws: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    doubt: str | None = None
    reason: str | None = None
    boxes: int = 0


class Prover:
    """Proves candidates of one program by one rulebook; µGraphs with equal terms share a proof.

    Unless the sets of laws are to be `minimal`, superfluous laws are left out only if they are partial or a user's. User laws
    run in a process of their own, which ends with the prover.
    """

    def __init__(
        self,
        program: Graph,
        rulebook: Rulebook | None = None,
        limits: Limits = PROOF_LIMITS,
        keeps: bool = False,
        minimal: bool = True,
    ) -> None:
        keeps = keeps or has_choices(program) or (rulebook is None and program.keeps_undefined)
        self.program, self._keeps, self._minimal = program, keeps, minimal  # keeps: undefined values
        rulebook = rulebook or load_rules("indexed", undefined="keep" if self._keeps else "free")
        self.rulebook = rulebook.keeping_undefined() if self._keeps else rulebook
        self._laws = SufficientLaws(self.rulebook, limits)
        self._scope = ProofScope(self.rulebook)
        self._laws_of_slices = SufficientLaws(self.rulebook, PARTING_LIMITS)
        self._memo: dict[JointTerms, Proof] = {}
        self._chains: dict[JointTerms, Chains] = {}

    @property
    def nodes(self) -> int:
        """E-nodes of all saturations: the cost of the proofs."""
        return self._laws.nodes + self._laws_of_slices.nodes

    @property
    def seconds(self) -> float:
        """The processor time of all saturations."""
        return self._laws.seconds + self._laws_of_slices.seconds

    def prove(self, candidate: Graph) -> Proof:
        """The proof that `candidate` computes the program, or the reason why there is none."""
        if not self._keeps and has_choices(candidate):
            return Prover(self.program, self.rulebook, keeps=True).prove(candidate)
        try:
            joint = express_both(self.program, candidate)
        except UnsupportedError as error:
            return Proof(False, reason=f"cannot be translated: {error}")
        if joint not in self._memo:
            self._memo[joint] = self._proof_in_parts(joint)
        return self._memo[joint]

    def prove_by_all_means(self, candidate: Graph) -> Proof:
        """The proof by laws, or else by boxes of positions: for candidates that a person gives, not for those of a search."""
        proof = self.prove(candidate)
        if proof.proved or (boxes := proved_by_boxes(self.program, candidate)) is None:
            return proof
        return Proof(True, boxes=boxes)

    def chains(self, candidate: Graph) -> Chains:
        """The proof as chains of steps (`proof_in_steps`); µGraphs with equal terms share them."""
        proof = self.prove(candidate)
        if not proof.proved:
            return Chains(missing=proof.reason)
        joint = express_both(self.program, candidate)
        if joint not in self._chains:
            self._chains[joint] = proof_in_steps(joint, proof.laws, self.rulebook, self.program.input_names)
        return self._chains[joint]

    def _proof_in_parts(self, joint: JointTerms) -> Proof:
        """The proof of the parts, and before it that of the partition, by the laws of slices alone.

        Where two parts of one value are written differently, the laws of slices and all others are tried together.
        """
        if joint.parting is None:
            return self._proof(joint.both, self._minimal)
        if (unknown := undeclared(self.rulebook, joint.parting)) is not None:
            return Proof(False, reason=f"cannot be translated: no loaded theory declares {unknown}")
        used = laws_of_parting(joint.parting, self._laws_of_slices)
        if used is None:
            return Proof(False, reason="the laws of slices do not show that the parts are those of the program and µGraph")
        proof = self._proof(joint.both, self._minimal)
        if not proof.proved and proof.reason == NOT_SHOWN:
            claims = joint.parting.outputs[: len(joint.parting.outputs) // 2]
            proof = self._proof(needed_for(joint.parting, (*claims[::2], *claims[1::2])), self._minimal)
        return replace(proof, laws=tuple(dict.fromkeys((*used, *proof.laws)))) if proof.proved else proof

    def _proof(self, joint: Expression, minimal: bool) -> Proof:
        if (unknown := undeclared(self.rulebook, joint)) is not None:
            return Proof(False, reason=f"cannot be translated: no loaded theory declares {unknown}")
        needed = self._laws.find(joint, minimal)
        if isinstance(needed, str):
            return Proof(False, reason=needed)
        if not minimal:
            needed = self._laws.without_superfluous(joint, needed, self._scope.own.union(self._scope.partial(needed)))
        doubt = self._scope.doubt(joint, needed)
        if doubt is not None and (others := self._laws.find_without(joint, self._scope.own)) is not None:
            doubt, needed = None, others
        partial = self._scope.partial(needed)
        if partial and not self._agree_separately(joint, needed):
            return Proof(False, needed, partial, reason="the laws show it only where every output is defined")
        return Proof(True, needed, partial, doubt)

    def _agree_separately(self, joint: Expression, laws: tuple[str, ...]) -> bool:
        """Whether each output is proved by itself: a proof of all may pass through an undefined term of another output."""
        half = len(joint.outputs) // 2
        pairs = zip(joint.outputs[:half], joint.outputs[half:], strict=True)
        return half == 1 or all(self._laws.suffices(needed_for(joint, pair), laws) for pair in pairs)


def minimal_laws(joint: JointTerms, laws: Sequence[str], rulebook: Rulebook, limits: Limits = PROOF_LIMITS) -> tuple[str, ...]:
    """Of laws that prove the terms equal those that are not superfluous, with those that may show the partition.

    All, where the parts are equal only together with the partition.
    """
    sufficient = SufficientLaws(rulebook, limits)
    if joint.parting is None:
        return sufficient.without_superfluous(joint.both, laws)
    if not sufficient.suffices(joint.both, laws):
        return tuple(laws)
    return sufficient.without_superfluous(joint.both, laws, set(laws) - laws_that_may_part(rulebook))


def proof_in_steps(joint: JointTerms, laws: Sequence[str], rulebook: Rulebook, names: Sequence[str] = ()) -> Chains:
    """A chain of steps by these laws for each output.

    Where slices and concatenations are dissolved, first for each claim that an output is computed in its parts (trivial claims
    are left out), then for each part.
    """
    found = chains_between(joint.both, laws, rulebook, names)
    several = len(found.chains) > 1
    if joint.parting is None or found.missing is not None or found.refused is not None:
        return replace(found, chains=_named(found.chains, "output")) if several else found
    parted = chains_between(joint.parting, laws, rulebook, names)
    if parted.refused is not None:
        return parted
    if parted.missing is not None:
        reason = f"the steps are those of the parts; the laws of slices prove the partition, without steps: {parted.missing}"
        return Chains(_named(found.chains, "part"), reason)
    claims = _named(tuple(chain for chain in parted.chains if chain.steps), "claim of the partition")
    return Chains((*claims, *_named(found.chains, "part")))


def _named(chains: Sequence[ProofChain], claim: str) -> tuple[ProofChain, ...]:
    return tuple(replace(chain, claim=f"{claim} {number}") for number, chain in enumerate(chains, 1))


def chains_between(joint: Expression, laws: Sequence[str], rulebook: Rulebook, names: Sequence[str] = ()) -> Chains:
    """A chain of steps by these laws for each pair of outputs, replayed by the checker and tested in the model of the laws.

    `names` are those of the inputs. A proof of which the checker or the model refuses a chain is `refused` as a whole: one of
    its laws or mirage_eg is wrong.
    """
    found = find_chains(joint, laws, rulebook, names, CHAIN_LIMITS)
    own = {law.name for theory in rulebook.theories if not theory.packaged for law in theory.laws}
    for chain in found.chains:
        try:
            check_chain(chain, rulebook)
            check_values(chain, rulebook)
        except ChainError as error:
            cause = "" if own.isdisjoint(chain.laws) else "a law of the user is false: "
            return Chains(refused=f"the proof fails its check: {cause}{error}")
    return found


def express_both(program: Graph, candidate: Graph) -> JointTerms:
    """Both graphs as indexed terms over the same parts.

    Raises UnsupportedError: axes that cannot be inferred, or that the two graphs use contradictorily.
    """
    flat, ranges = Flat(), place_ranges(program)
    inputs = [flat.add(write.source(kind)) for kind in program.input_types]
    outputs = [append(flat, with_wraps(graph, ranges), inputs) for graph in (program, candidate)]
    both = [flat.add(write.maximum(*pair)) for pair in zip(*outputs, strict=True)]  # equal indices of both are one axis index
    whole = without_dead_code(
        Graph((*with_opaque_values(flat.nodes, flat.checker.types), *(node("output", value) for value in both)))
    )
    parting = dissolve(whole, everywhere=True)
    joint = _between_ends(parting.graph)
    nodes = [item for item in joint.nodes if item.op != "output"]
    pairs = [nodes[_aligned_pair(nodes, item.operands[0])].operands for item in joint.outputs]
    axes = _joint_axes(program, joint)
    for wanted, got in pairs:
        if axes.dims[wanted] != axes.dims[got]:
            raise UnsupportedError(f"the outputs have the axes {axes.show(wanted)} and {axes.show(got)}")
    ends = [node("output", pair[side]) for side in (0, 1) for pair in pairs]
    return JointTerms(
        express(Graph((*nodes, *ends)), axes, Split(), "indexed"), parting_claims(whole, parting, of_operands=True)
    )


def _between_ends(graph: Graph) -> Graph:
    """The graph with slices of inputs as inputs, and with the operands of concatenations as outputs."""
    core = core_of(graph)
    return graph if core is None else core.program


def _aligned_pair(nodes: Sequence[Node], value: int) -> int:
    """The op on program and candidate whose piece an output is."""
    while nodes[value].op in RESHAPES:
        [value] = nodes[value].operands
    return value


def _joint_axes(program: Graph, both: Graph) -> Axes:
    """The common axes of both graphs; else the message names the graph that has none, or the axes that they use differently."""
    try:
        return infer_axes(both)
    except UnsupportedError:
        try:
            infer_axes(_between_ends(dissolve(expand(program), everywhere=True).graph))
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
