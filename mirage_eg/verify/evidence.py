"""Combine the evidence on candidates: random tests, and proofs from the loaded laws.

A proof and a `not equal` contradict each other: a law or mirage_eg is wrong, and the verdict stays `not equal` and says so. A
proof holds for real numbers, and a proof by partial laws where both graphs are defined; neither covers elements that are not
finite. A proof of which the checker refuses a step proves nothing.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from time import perf_counter

from mirage_eg.egraph.chain_search import Chains
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.proof import Proof, Prover
from mirage_eg.verify.reference import check_types
from mirage_eg.verify.verdict import Equality, FloatCheck, Observer, Verdict

log = logging.getLogger(__name__)


def verify_candidates(
    program: Graph,
    candidates: Mapping[str, Graph],
    *,
    trials: int = 2,
    seed: int = 0,
    rulebook: Rulebook | None = None,
    observe: Observer | None = None,
    steps: bool = True,
) -> list[tuple[Verdict, float]]:
    """The verdict on each named candidate, with `proved` where the laws prove it equal, and the seconds of its check.

    With `steps` a proof has its chains.

    Raises:
        GraphError: the inputs or outputs of a candidate have other types than the program's.
        UnsupportedError: the program divides by zero almost everywhere.
    """
    watch = observe or (lambda stage, done, total, note: None)
    reference = BlockReference(program, trials, seed)
    for name, candidate in candidates.items():
        try:
            check_types(program, candidate)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from None
    tested = reference.check_all(list(candidates.values()), lambda done, total: watch("verify", done, total, ""))
    prover = Prover(program, rulebook)
    results = []
    for (name, candidate), (verdict, seconds) in zip(candidates.items(), tested, strict=True):
        start = perf_counter()
        combined = combine_evidence(verdict, name, prover.prove_by_all_means(candidate))
        if steps and "proved" in combined.evidence and not combined.boxes:
            combined = with_chains(combined, prover.chains(candidate))
        results.append((combined, seconds + perf_counter() - start))
        watch("prove", len(results), len(candidates), "")
    return results


def with_chains(verdict: Verdict, found: Chains) -> Verdict:
    """A proved verdict with its proof in steps; the verdict of the tests alone, if the checker refuses the proof."""
    if found.refused is None:
        return replace(verdict, chains=found.chains, no_chains_because=found.missing)
    tested = tuple(it for it in verdict.evidence if it != "proved")
    decided = Equality.UNDECIDED if not tested and verdict.verdict is Equality.EQUAL else verdict.verdict
    return replace(
        verdict, verdict=decided, evidence=tested or ("tested",), laws=(), partial=(), unproved_because=found.refused
    )


def check_floats(
    program: Graph, candidates: Mapping[str, Graph], *, seed: int = 0, observe: Observer | None = None
) -> list[FloatCheck]:
    """The float check of each named candidate."""
    watch = observe or (lambda stage, done, total, note: None)
    reference = BlockReference(program, 1, seed)
    return reference.float_checks(list(candidates.values()), lambda done, total: watch("floats", done, total, ""))


def combine_evidence(verdict: Verdict, name: str, proof: Proof, searched: bool = False) -> Verdict:
    """The verdict of the tests with the proof; `searched`: the search found the candidate in the program's class."""
    if not (proof.proved or (searched and not proof.partial)):
        return replace(verdict, unproved_because=proof.reason)
    if verdict.verdict is Equality.NOT_EQUAL:
        if proof.partial or (verdict.difference is not None and not isfinite(verdict.difference.got)):
            names = f" (partial laws: {', '.join(proof.partial)})" if proof.partial else ""
            return replace(verdict, unproved_because=f"the laws show it only where both are defined{names}")
        by = (
            f"the laws {', '.join(proof.laws)}"
            if proof.laws
            else "boxes of positions"
            if proof.boxes
            else "the laws of the search"
        )
        because = (
            f"proved equal by {by}, but it differs at {verdict.difference}: a law is unsound or mirage_eg is wrong; "
            "mirage-eg rules check tests the laws"
        )
        log.warning("%s: %s", name, because)
        return replace(verdict, unproved_because=because)
    if verdict.verdict is Equality.UNDECIDED and proof.doubt is not None:
        return replace(verdict, unproved_because=proof.doubt)
    if verdict.verdict is Equality.UNDECIDED:  # the tests are undecided, and the proof decides
        return replace(
            verdict,
            verdict=Equality.EQUAL,
            difference=None,
            evidence=("proved",),
            laws=proof.laws,
            partial=proof.partial,
            boxes=proof.boxes,
        )
    return replace(verdict, evidence=("proved", "tested"), laws=proof.laws, partial=proof.partial, boxes=proof.boxes)
