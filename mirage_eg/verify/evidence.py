"""All evidence on candidates put together: random tests, and proofs from the loaded laws.

A proof against a `not equal` means that a law or this program is wrong: that is an error that stops everything. A proof holds
for real numbers, and one by partial laws where both graphs are defined: it says nothing of elements that are not finite.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from time import perf_counter

from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.errors import GraphError, MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.proof import Proof, Prover
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality, FloatCheck, Observer, Verdict


class ContradictionError(MirageError):
    """The laws prove equal what the tests show to be different."""


def verify_candidates(
    program: Graph,
    candidates: Mapping[str, Graph],
    *,
    draws: int = 2,
    seed: int = 0,
    rulebook: Rulebook | None = None,
    observe: Observer | None = None,
) -> list[tuple[Verdict, float]]:
    """The verdict on each named candidate, with `proved` where the laws show it equal, and the seconds that it took.

    Raises:
        GraphError: a candidate takes or gives tensors of other types than the program.
        UnsupportedError: the program divides by zero almost everywhere.
        ContradictionError: a candidate is proved and not equal.
    """
    watch = observe or (lambda stage, done, total, note: None)
    reference = Reference(program, draws, seed)
    for name, candidate in candidates.items():
        try:
            reference.check_types(candidate)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from None
    tested = reference.check_all(list(candidates.values()), lambda done, total: watch("verify", done, total, ""))
    prover = Prover(program, rulebook)
    results = []
    for (name, candidate), (verdict, seconds) in zip(candidates.items(), tested, strict=True):
        start = perf_counter()
        results.append((combine_evidence(verdict, name, prover.prove(candidate)), seconds + perf_counter() - start))
        watch("prove", len(results), len(candidates), "")
    return results


def check_floats(
    program: Graph, candidates: Mapping[str, Graph], *, seed: int = 0, observe: Observer | None = None
) -> list[FloatCheck]:
    """Each named candidate computed as kernels do, rounding, against the program in float64."""
    watch = observe or (lambda stage, done, total, note: None)
    reference = Reference(program, 1, seed)
    return reference.float_check_all(list(candidates.values()), lambda done, total: watch("floats", done, total, ""))


def combine_evidence(verdict: Verdict, name: str, proof: Proof, searched: bool = False) -> Verdict:
    """The verdict with what the prover says; `searched`: the search found it in the program's class, by its own laws."""
    if not (proof.proved or (searched and not proof.partial)):
        return replace(verdict, unproved_because=proof.reason)
    if verdict.verdict is Equality.NOT_EQUAL:
        if proof.partial or (verdict.difference is not None and not isfinite(verdict.difference.got)):
            names = f" (partial laws: {', '.join(proof.partial)})" if proof.partial else ""
            return replace(verdict, unproved_because=f"the laws show it only where both are defined{names}")
        by = f"the laws {', '.join(proof.laws)}" if proof.proved else "the laws of the search"
        raise ContradictionError(
            f"{name}: proved equal by {by}, but differs at {verdict.difference}: "
            "a law is unsound or mirage_eg is wrong; mirage-eg rules check tests the laws"
        )
    if verdict.verdict is Equality.UNDECIDED and proof.doubt is not None:
        return replace(verdict, unproved_because=proof.doubt)
    if verdict.verdict is Equality.UNDECIDED:  # a proof decides what the tests leave open
        return replace(
            verdict, verdict=Equality.EQUAL, difference=None, evidence=("proved",), laws=proof.laws, partial=proof.partial
        )
    return replace(verdict, evidence=("proved", "tested"), laws=proof.laws, partial=proof.partial)
