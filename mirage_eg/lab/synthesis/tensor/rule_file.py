"""The rule file of a tensor synthesis: each law with its evidence, then merges and groups that laws of concatenations give."""

from mirage_eg.egraph.tensor.decide import scope
from mirage_eg.egraph.tensor.term import size
from mirage_eg.lab.synthesis.tensor.groups import groups
from mirage_eg.lab.synthesis.tensor.rule_lines import merges
from mirage_eg.lab.synthesis.tensor.synthesize import TensorLaw, TensorSynthesis

LOADED_SIZE = 2  # laws of more ops make whole-program saturation slow: `mirage-eg rewrite` loads them with --rules alone


def tensor_rule_text(found: TensorSynthesis) -> str:
    """A rule file in the language of rules/tensor; equal syntheses have equal texts."""
    funnel = found.funnel
    chosen = ",".join(
        dict.fromkeys(name.split()[-1] if name.startswith(("Unary", "Binary")) else name.split()[0] for name in found.ops)
    )
    lines = [
        "; domain: tensor",
        *(["; default: off"] if found.size > LOADED_SIZE else []),
        f"; Laws of whole tensors with up to {found.size} ops a side, found by enumeration and proved for all shapes:",
        f";   mirage-eg rules synthesize --domain tensor --ops {chosen} --size {found.size} --seed {found.seed} --out FILE.egg",
        f"; {funnel.terms:,} terms in {funnel.classes:,} classes gave {funnel.pairs:,} equal pairs, {funnel.renamed:,} of them",
        f"; different without types and names. {funnel.proved:,} were proved, {funnel.refuted:,} refuted by a counterexample,",
        f"; {funnel.ill_typed:,} ill-typed, {funnel.tested:,} neither: only tested, and left out. The proved ones have",
        f"; {funnel.generalized:,} most general forms. {funnel.kept:,} are kept, and the others follow from them.",
        "",
    ]
    for law in found.laws:
        lines += [f"; {evidence(law)}", *law.lines]
    joint = [it for law in found.laws for it in merges(law.equation)] if found.size <= LOADED_SIZE else []
    if joint:
        lines += [
            "",
            "; Two terms anywhere that share an operand become the parts of one: laws of concatenations, read as merges.",
        ]
        lines += dict.fromkeys(it.line() for it in joint)
        lines += ["", "; All terms that share an operand become the parts of one: each merge, for any number of terms."]
        lines += [line for it in groups(joint) for line in it.lines()]
    return "\n".join(lines) + "\n"


def evidence(law: TensorLaw) -> str:
    """How a law was found: the sizes of its sides, its proof, and for which convolutions and poolings it holds."""
    left, right = map(size, law.equation)
    scopes = list(scope(law.equation, law.attributes))
    return f"size {left} = {right}; proved: normal form{', for ' if scopes else ''}{' and '.join(scopes)}"
