"""The rule file of a synthesis: each law with how it was found."""

from mirage_eg.egraph.rule_files import readable
from mirage_eg.lab.synthesis.check import FoundLaw
from mirage_eg.lab.synthesis.synthesize import Synthesis
from mirage_eg.lab.synthesis.term_pair import ops


def rule_text(found: Synthesis) -> str:
    """An ordinary rule file; equal syntheses have equal texts."""
    funnel = found.funnel
    lines = [
        f"; domain: {found.domain}",
        f"; Laws over {', '.join(found.ops)} with up to {found.size} ops a side, found by enumeration:",
        f";   mirage-eg rules synthesize --ops {','.join(found.ops)} --size {found.size} --seed {found.seed}",
        f"; {funnel.terms:,} terms in {funnel.classes:,} classes gave {funnel.pairs:,} pairs of equal terms. Of their laws",
        f"; {funnel.refuted:,} were refuted, {funnel.derived:,} follow from others, {funnel.cancelling:,} cancel tensors",
        f"; and are left out, and {funnel.kept:,} are kept.",
        "",
    ]
    for it in found.laws:
        lines += [f"; {evidence(it)}", readable(it.law.text)]
    return "\n".join(lines) + "\n"


def evidence(it: FoundLaw) -> str:
    """How a law was found: sizes of its sides, and the tests that it passed."""
    left, right = ops(it.pair.left), ops(it.pair.right)
    field = "equal in the finite field" if it.in_field else "not modelled by the finite field"
    partial = "; partial: one side is defined where the other is not" if it.partial else ""
    return f"size {left} = {right}; equal in float64; {field}; held in {it.trials} random assignments{partial}"
