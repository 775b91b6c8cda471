"""Verification at full size: finalists and the kernels inside them against the program, on inputs that are drawn meanwhile.

All of it runs in this process: inputs of full size are large, and stand in memory once. Drawing them needs no candidates, so
that it begins with the run, on a thread beside the search.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_eg.backends.evaluator.cpu_threads import background_task
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.work import Work
from mirage_eg.pipeline.stage_records import Ranked, Watch
from mirage_eg.verify.evidence import combine_evidence
from mirage_eg.verify.float_check import float_checks
from mirage_eg.verify.proof import Proof, Prover
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.subgraph_check import Subgraph, SubgraphCheck
from mirage_eg.verify.verdict import FloatCheck, Verdict

STAGE = "verify"
PROOF_NODES = 200_000  # of the e-graphs of all proofs; µGraphs behind that are tested alone
NOT_TRIED = Proof(False, reason=f"no proof was tried: the others took {PROOF_NODES:,} e-nodes")
Checked = tuple[Verdict, FloatCheck | None]  # no float check where the verdict is not `equal`


@dataclass(frozen=True, slots=True)
class Verified:
    """What came out: those that are equal with their checks, the verdicts on the others and on the parts."""

    kept: tuple[tuple[Ranked, Verdict, FloatCheck], ...]
    rejected: tuple[Verdict, ...]
    parts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class FullSize:
    """A program at full size: its reference, and what waits until that is drawn."""

    reference: Reference
    ready: Callable[[], None]
    rulebook: Rulebook
    watch: Watch

    def verify(self, finalists: Sequence[Ranked], primitive: Graph, parts: Sequence[Subgraph], work: Work) -> Verified:
        """Finalists in random fields, with what the indexed laws prove of them, and a float check of each that is equal.

        The kernels `parts` are checked where they stand in `primitive`, the program in primitive ops.
        """
        item = (tuple((entry.graph, entry.proved) for entry in finalists), primitive, tuple(parts))
        subgraphs = SubgraphCheck(primitive, parts) if parts else None
        checked, inside = work.once(
            STAGE, item, lambda: self._verify(finalists, subgraphs), tuple[list[Checked], list[Verdict]]
        )
        pairs: list[tuple[Ranked, Checked]] = [*zip(finalists, checked, strict=True)]
        return Verified(
            tuple((entry, verdict, check) for entry, (verdict, check) in pairs if check is not None),
            tuple(verdict for _, (verdict, check) in pairs if check is None),
            tuple(inside),
        )

    def _verify(self, finalists: Sequence[Ranked], subgraphs: SubgraphCheck | None) -> tuple[list[Checked], list[Verdict]]:
        prover = Prover(self.reference.program, self.rulebook if self.rulebook.domain == "indexed" else None)
        proofs = [prover.prove(entry.graph) if prover.nodes <= PROOF_NODES else NOT_TRIED for entry in finalists]
        self.ready()

        def progress(done: int, total: int) -> None:  # fields are the first half of the work
            self.watch.observer(STAGE, done * len(finalists) // total, 2 * len(finalists), "fields")

        tested = [verdict for verdict, _ in self.reference.check_all([entry.graph for entry in finalists], progress, subgraphs)]
        verdicts = [
            combine_evidence(verdict, f"candidate {place}", proof, entry.proved and self.rulebook.packaged)
            for place, (entry, verdict, proof) in enumerate(zip(finalists, tested, proofs, strict=False))
        ]
        equal = [entry.graph for entry, verdict in zip(finalists, verdicts, strict=True) if verdict.equal]

        def progress_of_floats(done: int, total: int) -> None:
            place = len(finalists) + done * len(finalists) // total
            self.watch.observer(STAGE, place, 2 * len(finalists), f"{len(equal)} equal, floats")

        checks = iter(float_checks(self.reference, equal, progress_of_floats))
        return [(verdict, next(checks) if verdict.equal else None) for verdict in verdicts], tested[len(finalists) :]


@contextmanager
def at_full_size(program: Graph, rulebook: Rulebook, options: Options, watch: Watch, work: Work) -> Iterator[FullSize]:
    """What verifies candidates for `program`; its inputs are drawn beside the body, unless an earlier run has verified.

    Raises:
        UnsupportedError: the program is too large.
    """
    reference = Reference(program, trials=options.trials, seed=options.seed)
    if work.has(STAGE):
        yield FullSize(reference, lambda: None, rulebook, watch)
        return
    with background_task(reference.compute_ahead) as ready:
        yield FullSize(reference, ready, rulebook, watch)
