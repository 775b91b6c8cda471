"""Verification of finalists and of the kernels inside them against the program, on random inputs, in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_eg.backends.evaluator.array_module import array_module, evaluator_device
from mirage_eg.egraph.chain_search import Chains
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.ir.errors import RuleError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.pipeline.compile_stage import Compiled
from mirage_eg.pipeline.found import Lowered
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.kernel_plan import PlanPart
from mirage_eg.transforms.whole_products import whole_products
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.evidence import combine_evidence, with_chains
from mirage_eg.verify.proof import Proof, Prover, express_both, proof_in_steps
from mirage_eg.verify.slice_proof import partition_is_proved
from mirage_eg.verify.subgraph_check import Subgraph
from mirage_eg.verify.verdict import FloatCheck, Verdict

STAGE = "verify"
NOT_TRIED = Proof(False, reason=f"no proof was tried: the others took {HEURISTICS.proof_nodes:,} e-nodes")
Checked = tuple[Verdict, FloatCheck | None]  # no float check where the verdict is not `equal`


@dataclass(frozen=True, slots=True)
class Rejected:
    """A µGraph that is not equal to the program."""

    graph: Graph
    predicted_us: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Verified:
    """The candidates that are equal to the program, those that are not, and the verdicts on the kernels of their plans."""

    equal: tuple[Candidate, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    parts: Mapping[PlanPart, Verdict] = field(default_factory=dict)
    computed_on: str = ""  # the device of the evaluator
    notes: tuple[str, ...] = ()

    def joined(self, further: "Verified") -> "Verified":
        """These candidates, and further ones of the same program."""
        parts = {**self.parts, **further.parts}
        equal, rejected = self.equal + further.equal, self.rejected + further.rejected
        return Verified(equal, rejected, parts, further.computed_on, self.notes + further.notes)


@dataclass(frozen=True, slots=True)
class FullSize:
    """The program of a run at full size, against which its finalists are checked."""

    run: Run
    reference: BlockReference

    @classmethod
    def of(cls, run: Run) -> "FullSize":
        """That of a run, by its trials and seed."""
        return cls(run, BlockReference(run.program, run.options.trials, run.options.seed))

    def verify(
        self, finalists: Sequence[Lowered], primitive: Graph, parts: Mapping[PlanPart, Subgraph]
    ) -> tuple[list[Checked], dict[PlanPart, Verdict]]:
        """Finalists in random fields, with what the indexed laws prove of them, and a float check of each that is equal.

        The kernels `parts` are checked where they are in `primitive`, the program in primitive ops.
        """
        item = (tuple((entry.graph, entry.found.proved_by_search) for entry in finalists), primitive, tuple(parts.values()))
        wanted = tuple[list[Checked], list[Verdict]]
        with self.run.watch.stage(STAGE):
            checked, inside = self.run.work.once(STAGE, item, lambda: self._verify(finalists, primitive, item[-1]), wanted)
        self.reference.forget()
        return checked, dict(zip(parts, inside, strict=True))

    @property
    def computed_on(self) -> str:
        """The device of the evaluator."""
        return evaluator_device(array_module(self.run.program))

    def _verify(
        self, finalists: Sequence[Lowered], primitive: Graph, parts: Sequence[Subgraph]
    ) -> tuple[list[Checked], list[Verdict]]:
        rulebook = self.run.rulebook
        searched = rulebook.packaged and _starts_from_a_proved_partition(self.reference.program)
        prover = Prover(self.reference.program, rulebook if rulebook.domain == "indexed" else None)
        proofs = [prover.prove(entry.graph) if prover.nodes <= HEURISTICS.proof_nodes else NOT_TRIED for entry in finalists]

        def progress(done: int, total: int) -> None:  # fields are the first half of the work
            self.run.watch.observer(STAGE, done * len(finalists) // total, 2 * len(finalists), "fields")

        tested = [verdict for verdict, _ in self.reference.check_all([entry.graph for entry in finalists], progress)]
        verdicts = [
            combine_evidence(verdict, f"candidate {position}", proof, entry.found.proved_by_search and searched)
            for position, (entry, verdict, proof) in enumerate(zip(finalists, tested, proofs, strict=True))
        ]
        equal = [entry.graph for entry, verdict in zip(finalists, verdicts, strict=True) if verdict.equal]

        def progress_of_floats(done: int, total: int) -> None:
            count = len(finalists) + done * len(finalists) // total
            self.run.watch.observer(STAGE, count, 2 * len(finalists), f"{len(equal)} equal, floats")

        checks = iter(self.reference.float_checks(equal, progress_of_floats))
        inside = self.reference.check_parts(primitive, parts)
        return [(verdict, next(checks) if verdict.equal else None) for verdict in verdicts], inside


def verified_candidates(
    lowered: Sequence[Lowered],
    checked: Sequence[Checked],
    compiled: Sequence[Compiled],
    parts: Mapping[PlanPart, Verdict],
    computed_on: str,
) -> Verified:
    """These µGraphs, checked and compiled, as candidates; those that are not equal as rejected ones."""
    equal, rejected = list[Candidate](), list[Rejected]()
    for entry, (verdict, check), made in zip(lowered, checked, compiled, strict=True):
        found = entry.found
        if check is None:
            rejected.append(Rejected(entry.graph, found.predicted_us, verdict))
        else:
            us = None if entry.tuned is None else entry.tuned.us
            written = made.source, made.schedule, made.record
            equal.append(Candidate(entry.graph, found.predicted_us, found.fused, *written, verdict, check, found.plan, us))
    return Verified(tuple(equal), tuple(rejected), parts, computed_on)


def with_steps(run: Run, candidate: Candidate) -> Candidate:
    """A proved candidate with its proof in steps; it is only tested if the checker refuses the proof."""
    verdict = candidate.verdict
    if "proved" not in verdict.evidence or verdict.chains or verdict.no_chains_because is not None:
        return candidate
    rulebook = (
        run.rulebook
        if run.rulebook.domain == "indexed"
        else load_rules("indexed", undefined=run.options.undefined_in(run.program))
    )
    with run.watch.stage(STAGE):
        try:
            joint = express_both(run.program, candidate.graph)
            found = proof_in_steps(joint, verdict.laws, rulebook, run.program.input_names)
        except UnsupportedError as error:
            found = Chains(missing=f"cannot be translated: {error}")
    if not found.chains and not verdict.laws:
        found = Chains(missing="the search proves the structure, and no proof of the µGraph at full size was tried or found")
    return replace(candidate, verdict=with_chains(verdict, found))


def first_with_steps(run: Run, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, the first with its proof in steps, without those of which nothing but a refused proof spoke."""
    first, *others = candidates
    checked = with_steps(run, first)
    return first_with_steps(run, others) if others and not checked.verdict.equal else [checked, *others]


def _starts_from_a_proved_partition(program: Graph) -> bool:
    """Whether the search's proofs are about the program: laws prove how simplification moves its slices and concatenations."""
    if not any(item.op in ("slice", "concat", "split") for item in program.nodes):
        return True
    plain = without_dead_code(expand(program))
    try:
        return partition_is_proved(plain, whole_products(plain), load_rules("indexed"))
    except RuleError:
        return False
