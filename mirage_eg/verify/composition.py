"""The verdict on a µGraph that is composed of verified parts, one for each region of the program.

A region is a function of its inputs. Each µGraph of a region is equal to it on all inputs, so their composition is equal to the
program. If the composition differs from the program, one of its parts differs from its region, and the tests of that part say
`equal` with a probability of at most its own bound: the largest bound of the parts bounds the whole.
"""

from collections.abc import Sequence
from dataclasses import replace

from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict


def compose_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a composition of parts with these verdicts, each of which is `equal`."""
    assert verdicts and all(verdict.equal for verdict in verdicts), "only equal parts are composed"
    bounds = [verdict.error_bound for verdict in verdicts if verdict.error_bound is not None]
    errors = [verdict.float_error for verdict in verdicts if verdict.float_error is not None]
    evidence = tuple(kind for kind in ("proved", "tested") if all(kind in verdict.evidence for verdict in verdicts))
    return Verdict(
        verdict=Equality.EQUAL,
        trials=min(verdict.trials for verdict in verdicts),
        p=verdicts[0].p,
        q=verdicts[0].q,
        seed=verdicts[0].seed,
        error_bound=max(bounds) if len(bounds) == len(verdicts) else None,
        bound_reason=f"the largest bound of {len(verdicts)} different regions, each checked on inputs of its own",
        coverage=min(verdict.coverage for verdict in verdicts),
        float_error=max(errors) if len(errors) == len(verdicts) else None,
        evidence=(*evidence, "composed"),
        laws=tuple(dict.fromkeys(law for verdict in verdicts for law in verdict.laws)),
        partial=tuple(dict.fromkeys(law for verdict in verdicts for law in verdict.partial)),
        unproved_because=next((reason for verdict in verdicts if (reason := verdict.unproved_because)), None),
        chains=tuple(
            replace(chain, claim=", ".join(filter(None, (f"region {number}", chain.claim))))
            for number, verdict in enumerate(verdicts)
            for chain in verdict.chains
        ),
        no_chains_because=_missing(verdicts) if "proved" in evidence else None,
    )


def _missing(verdicts: Sequence[Verdict]) -> str | None:
    """The regions whose proofs are not shown in steps, and why."""
    reasons: dict[str, list[int]] = {}
    for number, verdict in enumerate(verdicts):
        if (reason := verdict.no_chains_because) is not None:
            reasons.setdefault(reason, []).append(number)
    return "; ".join(f"region {', '.join(map(str, numbers))}: {reason}" for reason, numbers in reasons.items()) or None


def compose_float_checks(checks: Sequence[FloatCheck]) -> FloatCheck:
    """The worst of the float checks of the parts, each on inputs of its own."""
    return FloatCheck(
        ok=all(check.ok for check in checks),
        error=max(check.error for check in checks),
        tolerance=max(check.tolerance for check in checks),
        difference=next((check.difference for check in checks if check.difference is not None), None),
        overflows=any(check.overflows for check in checks),
        magnitude=min(check.magnitude for check in checks),
        compared=all(check.compared for check in checks),
        uncompared=next((check.uncompared for check in checks if not check.compared), checks[0].uncompared),
        share=max(check.share for check in checks),
        masked=max(check.masked for check in checks),
    )
