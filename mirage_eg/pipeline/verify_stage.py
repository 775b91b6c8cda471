"""Verification of finalists and of the kernels inside them against the program, on random inputs, in this process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.egraph.chain_search import Chains
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.sufficient_laws import PROOF_LIMITS
from mirage_eg.ir.deadline import Deadline
from mirage_eg.ir.errors import RuleError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import JOINS, VIEWS_OF_A_PART
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.pipeline.compile_stage import Compiled, candidate_of
from mirage_eg.pipeline.found import Lowered
from mirage_eg.pipeline.partition_stage import parts_to_check
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.plan_records import PlanPart
from mirage_eg.transforms.whole_products import whole_products
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.evidence import combine_evidence, with_chains
from mirage_eg.verify.proof import Proof, Prover, express_both, minimal_laws, proof_in_steps
from mirage_eg.verify.slice_proof import partition_is_proved
from mirage_eg.verify.subgraph_check import Subgraph
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

STAGE = "verify"
NOT_TRIED = Proof(False, reason=f"no proof was tried: the others took {HEURISTICS.proof_nodes:,} e-nodes, or the budget")
NOT_WANTED = "no proof was asked for, and the tests decide"
Checked = tuple[Verdict, FloatCheck | None]  # no float check where the verdict is not `equal`


@dataclass(frozen=True, slots=True)
class Verified:
    """The candidates that are equal to the program, those that are not, and the verdicts on the kernels of their plans."""

    equal: tuple[Candidate, ...] = ()
    rejected: tuple[tuple[Lowered, Verdict], ...] = ()
    parts: Mapping[PlanPart, Verdict] = field(default_factory=dict)
    computed_on: str = ""  # the device of the evaluator
    notes: tuple[str, ...] = ()

    def joined(self, further: "Verified") -> "Verified":
        parts = {**self.parts, **further.parts}
        equal, rejected = self.equal + further.equal, self.rejected + further.rejected
        return Verified(equal, rejected, parts, further.computed_on, self.notes + further.notes)


def verify(
    run: Run,
    reference: BlockReference,
    mugraphs: Sequence[Lowered],
    primitive: Graph,
    compiled: Callable[[], Sequence[Compiled]],
) -> Verified:
    """µGraphs in random fields, with what the indexed laws prove of them, and a float check of each that is equal.

    `reference` has the program at full size. For the report the kernels of plans are checked where they are in `primitive`, the
    program in primitive ops. `compiled` waits for the programs of the µGraphs.
    """
    parts = parts_to_check(mugraphs, run.device) if run.wanted.diagnosis else {}
    item = (tuple((entry.graph, entry.found.proved_by_search) for entry in mugraphs), primitive, tuple(parts.values()))
    wanted = tuple[list[Checked], list[Verdict], str]
    with run.watch.stage(STAGE):
        checked, inside, device = run.work.once(
            STAGE, item, lambda: _check(run, reference, mugraphs, primitive, item[-1]), wanted
        )
    equal, rejected = list[Candidate](), list[tuple[Lowered, Verdict]]()
    for entry, (verdict, check), made in zip(mugraphs, checked, compiled(), strict=True):
        if check is None:
            rejected.append((entry, verdict))
        else:
            equal.append(candidate_of(entry, made, verdict, check))
    return Verified(tuple(equal), tuple(rejected), dict(zip(parts, inside, strict=True)), device)


def _check(
    run: Run, reference: BlockReference, finalists: Sequence[Lowered], primitive: Graph, parts: Sequence[Subgraph]
) -> tuple[list[Checked], list[Verdict], str]:
    def progress(done: int, total: int) -> None:  # fields are the first half of the work
        run.watch.observer(STAGE, done * len(finalists) // total, 2 * len(finalists), "fields")

    tested = [verdict for verdict, _ in reference.check_all([entry.graph for entry in finalists], progress)]
    verdicts = _with_proofs(run, reference, primitive, finalists, tested)
    equal = [entry.graph for entry, verdict in zip(finalists, verdicts, strict=True) if verdict.equal]

    def progress_of_floats(done: int, total: int) -> None:
        count = len(finalists) + done * len(finalists) // total
        run.watch.observer(STAGE, count, 2 * len(finalists), f"{len(equal)} equal, floats")

    checks = iter(reference.float_checks(equal, progress_of_floats))
    inside = reference.check_parts(primitive, parts)
    return [(verdict, next(checks) if verdict.equal else None) for verdict in verdicts], inside, reference.computed_on


def _with_proofs(
    run: Run, reference: BlockReference, primitive: Graph, finalists: Sequence[Lowered], tested: Sequence[Verdict]
) -> list[Verdict]:
    """The verdicts of the tests with those proofs that are wanted.

    The search proves µGraphs equal to the `primitive` program. Where the field alone differs, as it does for max(x + b) and
    max(x) + b, tests of that program decide.
    """
    program = reference.program
    needed = [run.wanted.proofs or verdict.verdict is Equality.UNDECIDED for verdict in tested]
    if not any(needed):
        return [replace(verdict, unproved_because=NOT_WANTED) for verdict in tested]
    rulebook = run.rulebook
    searched = rulebook.packaged and _starts_from_a_proved_partition(program)
    until = _until_proofs(run)
    prover = Prover(program, rulebook if rulebook.domain == "indexed" else None, _limits(until), minimal=False)
    verdicts = list[Verdict]()
    for position, (entry, verdict) in enumerate(zip(finalists, tested, strict=True)):
        if not needed[position]:
            verdicts.append(replace(verdict, unproved_because=NOT_WANTED))
            continue
        in_time = prover.nodes <= HEURISTICS.proof_nodes and not until.passed()
        proof = prover.prove(entry.graph) if in_time else NOT_TRIED
        combined = combine_evidence(verdict, f"candidate {position}", proof, entry.found.proved_by_search and searched)
        by_search = rulebook.packaged and entry.found.proved_by_search and not proof.partial
        if by_search and combined.differs_in_field_alone and reference.check(primitive).equal:
            combined = replace(combined, verdict=Equality.EQUAL, difference=None)
        verdicts.append(combined)
    return verdicts


def _until_proofs(run: Run) -> Deadline:
    return run.until.part(HEURISTICS.until_proofs).or_before(run.until.halfway())


def _limits(until: Deadline) -> Limits:
    return replace(PROOF_LIMITS, seconds=max(0.0, min(PROOF_LIMITS.seconds, until.left())))


def with_steps(run: Run, candidate: Candidate) -> Candidate:
    """A proved candidate with its proof in steps, by no superfluous law; it is only tested if the checker refuses the proof."""
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
            with ending(run.until):
                joint = express_both(run.program, candidate.graph)
                verdict = replace(verdict, laws=minimal_laws(joint, verdict.laws, rulebook, _limits(_until_proofs(run))))
                found = proof_in_steps(joint, verdict.laws, rulebook, run.program.input_names)
        except UnsupportedError as error:
            found = Chains(missing=f"cannot be translated: {error}")
        except OverdueError:
            found = Chains(missing="the budget was spent")
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
    if not any(item.op in VIEWS_OF_A_PART | JOINS for item in program.nodes):
        return True
    plain = without_dead_code(expand(program))
    try:
        return partition_is_proved(plain, whole_products(plain), load_rules("indexed"))
    except RuleError:
        return False
