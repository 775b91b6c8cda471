"""Check laws of whole tensors: each is proved for all shapes, by the normal form or by laws of elements, refuted, or tested."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from mirage_eg.egraph.expression import Expression, primes
from mirage_eg.egraph.laws import Law, wording
from mirage_eg.egraph.rule_files import TENSOR, domain_of, read_files
from mirage_eg.egraph.rulebook import Theory, load_file
from mirage_eg.egraph.soundness.check_file import Progress, Report, check_file, raise_without_test, untested
from mirage_eg.egraph.soundness.check_law import Finding, Truth
from mirage_eg.egraph.soundness.lints import Lint, Severity
from mirage_eg.egraph.tensor.decide import TensorVerdict, compare, decide
from mirage_eg.egraph.tensor.programs import Sizes, Window, any_function, program
from mirage_eg.egraph.tensor.typing import TypedEquation
from mirage_eg.egraph.tensor.written import read_term, written, written_laws
from mirage_eg.ir.errors import GraphError, RuleError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.proof import Proof, Prover, express_both

_OF_ELEMENTS = frozenset({"Add", "Mul", "Smul", "Relu", "Unary", "Binary", "Transpose"})
NO_WINDOW = Window((1, 1), (0, 0, 0, 0), (1, 1))


def equal_for_all_shapes(left: str, right: str) -> TensorVerdict:
    """Whether two terms of whole tensors are equal for all shapes that fit both; the verdict is true where that is proved.

    The terms are texts: `(Transpose (Matmul A B))`, with the ops of `rules/tensor` and without sizes: `(Split0 1 x)` is the
    first part of x along axis 1, wherever it is cut. Elementwise ops have their names, as in `(exp x)`. Convolutions are
    `(Conv2d x w)`, poolings `(MaxPool x)`; the verdict says for which windows and groups it holds.

    Raises OptionError: a text is no term.
    """
    return compare((read_term(left), read_term(right)), proving_laws)


def proving_laws(equation: TypedEquation) -> str | None:
    """The laws of elements (`rules/indexed`) that prove an equation without windows and parts for all shapes, if any do.

    Their terms have axes and no sizes: terms that are the same at two choices of extents are those of every choice.
    """
    sides = [written(it, lambda term: term.slots) for it in (equation.left, equation.right)]
    if any(any_function(part) for side in sides for part in side.parts()):
        return None  # laws prove programs, in which it would be one function
    segments = sorted(
        {it for dims in equation.variables.values() for dim in dims for it in equation.shapes.word(dim)}, key=repr
    )

    def at_some_extents() -> Iterator[tuple[Graph, Graph]]:
        for skipped in (0, 1):
            at = dict(zip(segments, islice(primes(), skipped, None), strict=False))
            shapes = {
                name: tuple(sum(at[it] for it in equation.shapes.word(dim)) for dim in dims)
                for name, dims in equation.variables.items()
            }
            sizes = Sizes(shapes, lambda dim, at=at: [sum(at.get(it, 1) for it in equation.shapes.word(dim))], NO_WINDOW)  # type: ignore[misc]
            left, right = (program(it, sizes) for it in sides)
            yield left, right

    names = {part.name.split()[0] for side in sides for part in side.parts() if not part.is_variable}
    return laws_of_all_sizes(at_some_extents(), by_cases=names <= _OF_ELEMENTS)


def laws_of_all_sizes(pairs: Iterable[tuple[Graph, Graph]], by_cases: bool = False) -> str | None:
    """The laws of elements that prove two programs equal at all sizes, from these programs at two choices of sizes.

    `by_cases`: the ops know no extents, so that a proof by boxes is one for all sizes, too.
    """
    proofs, terms = list[Proof](), list[Expression]()
    try:
        for left, right in pairs:
            joint = express_both(left, right)
            if joint.parting is not None:
                return None
            proofs.append(Prover(left).prove_by_all_means(right))
            terms.append(replace(joint.both, extents=()))
    except (GraphError, UnsupportedError):
        return None
    if terms[0] != terms[1] or not all(it.proved for it in proofs):
        return None
    if any(it.boxes for it in proofs):  # which are of these extents, but for ops that know none
        return "cases of all elements" if by_cases and all(it.boxes == 1 for it in proofs) else None
    where = ", where both sides are defined" if proofs[0].partial else ""
    return f"laws of elements{': ' if proofs[0].laws else ''}{', '.join(proofs[0].laws)}{where}"


def check_rule_file(
    path: str | Path,
    programs: Mapping[str, Graph],
    domain: str | None = None,
    examples: int | None = None,
    seed: int = 0,
    on_progress: Progress = lambda stage, done, total: None,
) -> Report:
    """`check_file`, or `check_tensor_file` for laws of whole tensors, by the domain or else by the header of the file.

    Raises RuleError: the file does not load, none of its laws can be tested, or a limit was hit.
    """
    [file] = read_files(path)
    if (domain or domain_of(file)) == TENSOR:
        return check_tensor_file(path, on_progress)
    return check_file(path, programs, domain, examples, seed, on_progress=on_progress)


def check_tensor_file(path: str | Path, on_progress: Progress = lambda stage, done, total: None) -> Report:
    """The verdict on each law of a rule file of whole tensors, and lints: conditions that it lacks, what a packaged law says.

    Raises RuleError: the file does not load, or no law says that tensors are equal.
    """
    rulebook, theory = load_file(path, TENSOR)
    packaged = {wording(law): law.place for it in rulebook.theories if it != theory for law in it.laws}
    findings: list[Finding] = []
    lints: list[Lint] = []
    for done, law in enumerate(_equations(theory), 1):
        try:
            verdict = decide(law, proving_laws)
        except RuleError as error:
            findings.append(untested(law, error))
            continue
        findings.append(Finding(law, verdict.truth, verdict.trials, verdict.counterexample, verdict.because))
        lints += [*_missing(law, verdict), *_unknown_functions(law)]
        if (words := wording(law)) in packaged:
            lints.append(Lint(Severity.NOTE, law.place, f"law {law.name!r} says what the law at {packaged[words]} says"))
        on_progress("laws", done, len(theory.laws))
    raise_without_test(findings)
    return Report(theory.path, TENSOR, theory.sha256, tuple(findings), tuple(lints), ())


def _equations(theory: Theory) -> list[Law]:
    """The laws of a file; the rules by which the packaged language knows shapes and groups are none."""
    return [law for law in theory.laws if not (theory.packaged and law.form == "rule")]


def _unknown_functions(law: Law) -> Iterator[Lint]:
    """A note on functions by names that are no op: a misspelt one is refuted where the op is not."""
    parts = (part for it in written_laws(law) for side in (it.left, it.right) for part in side.parts())
    for name in dict.fromkeys(filter(None, map(any_function, parts))):
        if not name.startswith("?"):
            yield Lint(
                Severity.NOTE, law.place, f"{name!r} is no elementwise op without attributes: it stands for any function"
            )


def _missing(law: Law, verdict: TensorVerdict) -> list[Lint]:
    if not verdict.missing:
        return []
    added = f":when ({' '.join(verdict.missing)})"
    if verdict.truth is Truth.REFUTED:
        return [Lint(Severity.NOTE, law.place, f"the law holds with {added}")]
    return [Lint(Severity.WARNING, law.place, f"narrows: the law also matches where its right side has no value; add {added}")]
