"""Check one rule file: is every law true, which lints apply, and how large do the e-graphs of programs grow?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from mirage_eg.egraph.equations import instance
from mirage_eg.egraph.expression import Expression, express, flatten, needed_for, primes, splits
from mirage_eg.egraph.laws import Apply, Equal, Law, Signature, Variable, inlined, wording
from mirage_eg.egraph.oracle import BuildOracle, Limits, Oracle, check_saturated, oracle_builder, saturate
from mirage_eg.egraph.rule_errors import MEANING
from mirage_eg.egraph.rule_files import header
from mirage_eg.egraph.rulebook import Rulebook, Theory, load_file, load_rules, raise_errors
from mirage_eg.egraph.soundness.boundaries import unmodelled_ops
from mirage_eg.egraph.soundness.check_law import EXAMPLES, Finding, Truth, check_law
from mirage_eg.egraph.soundness.claims import CheckableLaw, checkable_law
from mirage_eg.egraph.soundness.definedness import definedness
from mirage_eg.egraph.soundness.indices import uses_indices
from mirage_eg.egraph.soundness.lints import Lint, Severity, lint_collapse, lint_guards, lint_law, lint_rounded_constants
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted


@dataclass(frozen=True, slots=True)
class Size:
    """The largest e-graph of a workload's splits: e-nodes, classes, milliseconds of saturation."""

    workload: str
    nodes: int
    classes: int
    milliseconds: float


@cache
def targets(program: Graph, domain: str) -> tuple[tuple[str, Expression], ...]:
    """A program's expressions with the names of their splits."""
    program = expand(program)
    axes = infer_axes(program)
    return tuple((split.label(axes), express(program, axes, split, domain)) for split in splits(axes))


def oracles(
    build: BuildOracle, domain: str, programs: Mapping[str, Graph], on_progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[str, str, Oracle]]:
    """The oracle for each program and split."""
    jobs = [(name, *target) for name, program in programs.items() for target in targets(program, domain)]
    for done, (name, split, target) in enumerate(jobs, 1):
        yield name, split, build(target)
        if on_progress is not None:
            on_progress(done, len(jobs))


def sizes(measured: Sequence[tuple[str, str, Oracle]]) -> tuple[Size, ...]:
    """The largest e-graph of each workload."""
    grouped: dict[str, list[Oracle]] = {}
    for workload, _, oracle in measured:
        grouped.setdefault(workload, []).append(oracle)
    return tuple(
        Size(
            workload,
            max(oracle.saturation.nodes for oracle in group),
            max(oracle.saturation.classes for oracle in group),
            1000 * max(oracle.saturation.seconds for oracle in group),
        )
        for workload, group in grouped.items()
    )


CHECK_LIMITS = Limits(iterations=64, nodes=20_000, seconds=5.0)
EXAMPLES_PER_FILE, LEAST_EXAMPLES = 60_000, 200
CONSEQUENCE_SECONDS = 4.0  # laws that remain then are counted, not checked
_PROOF_LIMITS = Limits(iterations=8, nodes=2_000, seconds=1.0)

Progress = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `rules check` for one file; `growth`: sizes without and with it; `unmeasured`: why there are none."""

    path: str
    domain: str
    sha256: str
    findings: tuple[Finding, ...]
    lints: tuple[Lint, ...]
    growth: tuple[tuple[Size, Size], ...]
    unmeasured: str | None = None

    @property
    def sound(self) -> bool:
        """Whether each law is proved or held, and no lint is an error."""
        return _passes(self.findings, self.lints)


def check_file(
    path: str | Path,
    programs: Mapping[str, Graph],
    domain: str | None = None,
    examples: int | None = None,
    seed: int = 0,
    limits: Limits = CHECK_LIMITS,
    on_progress: Progress = lambda stage, done, total: None,
) -> Report:
    """Test the laws of a rule file, lint it, and measure the growth of the e-graphs of programs.

    The domain defaults to that of the file's header (`; domain: …`), else indexed. A packaged file is compared with the other
    packaged theories. `examples` assignments for each law default to 1,500, or fewer for many laws, so that a file takes
    seconds.

    Raises RuleError: the file does not load, none of its laws can be tested, or a limit was hit.
    """
    rulebook, theory = load_file(path, domain)
    examples = examples or max(LEAST_EXAMPLES, min(EXAMPLES, EXAMPLES_PER_FILE // max(1, len(theory.laws))))
    findings: list[Finding] = []
    lints: list[Lint] = []
    for done, law in enumerate(theory.laws, 1):
        try:
            finding, notes = _checked(law, rulebook, theory, examples, seed)
        except RuleError as error:
            finding, notes = untested(law, error), []
        findings.append(finding)
        lints += notes
        on_progress("laws", done, len(theory.laws))
    raise_without_test(findings)
    failed = not _passes(findings, lints)
    lints += _lint_consequences(rulebook, theory, _failed(findings, lints), on_progress)
    growth: tuple[tuple[Size, Size], ...] = ()
    unmeasured = None
    try:
        found, before = _measure(rulebook, theory, programs, limits, on_progress)
        collapse = list(lint_collapse(theory.path, found))
        lints += collapse
        failed = failed or bool(collapse)
        for name, split, oracle in found:
            check_saturated(rulebook, dict(targets(programs[name], rulebook.domain))[split], limits, oracle.saturation)
        growth = tuple(zip(before, sizes(found), strict=True))
    except RuleError as error:  # errors found before matter more
        if not failed:
            raise
        unmeasured = str(error)
    return Report(theory.path, rulebook.domain, theory.sha256, tuple(findings), tuple(lints), growth, unmeasured)


def untested(law: Law, error: RuleError) -> Finding:
    """The finding on a law that no test fits."""
    return Finding(law, Truth.UNTESTED, 0, because=str(error).removeprefix(f"{law.place}: "))


def raise_without_test(findings: Sequence[Finding]) -> None:
    """Raise one error for all laws if none can be tested."""
    if all(it.truth is Truth.UNTESTED for it in findings):
        raise_errors([f"{it.law.place}: {it.because}" for it in findings])


def _checked(law: Law, rulebook: Rulebook, theory: Theory, examples: int, seed: int) -> tuple[Finding, list[Lint]]:
    """The verdict on one law, and its lints."""
    forms = unfolded(law, rulebook.laws, rulebook.signatures)
    finding = check_law(law, rulebook.domain, rulebook.signatures, examples, seed, forms)
    checkables = [checkable_law(form, rulebook.signatures) for form in forms]
    merges = law.ruleset != MEANING and law.unions  # else no e-graph merges anything
    lints = list(dict.fromkeys(lint for checkable in checkables if merges or law.subsumes for lint in lint_law(checkable)))
    if finding.truth is Truth.REFUTED and rulebook.domain == "indexed":
        lints += dict.fromkeys(lint for checkable in checkables for lint in lint_guards(checkable))
    if finding.truth is Truth.REFUTED:
        lints += dict.fromkeys(lint for checkable in checkables for lint in lint_rounded_constants(checkable))
    return finding, [*lints, *_note_field(law), *_lint_definedness(law, forms, rulebook, theory)]


def _passes(findings: Sequence[Finding], lints: Sequence[Lint]) -> bool:
    return all(finding.truth in (Truth.PROVED, Truth.HELD) for finding in findings) and all(
        lint.level is not Severity.ERROR for lint in lints
    )


def _failed(findings: Sequence[Finding], lints: Sequence[Lint]) -> frozenset[str]:
    """The names of the laws that are not known to be sound: others may follow from them."""
    wrong = {lint.place for lint in lints if lint.level is Severity.ERROR}
    sound = (Truth.PROVED, Truth.HELD)
    return frozenset(it.law.name for it in findings if it.truth not in sound or it.law.place in wrong)


def _note_field(law: Law) -> Iterator[Lint]:
    """A note on ops that obey other laws in the finite field, for all constants."""
    unmodelled = sorted(unmodelled_ops(law))
    if unmodelled and law.unions:
        yield Lint(
            Severity.NOTE,
            law.place,
            f"the finite field does not model {', '.join(unmodelled)}: it alone refutes no µGraph that needs this law",
        )


def _lint_definedness(law: Law, forms: Sequence[Law], rulebook: Rulebook, theory: Theory) -> Iterator[Lint]:
    """Lints on values at which one side of a law is defined and the other is not; a packaged law must not narrow."""
    found = definedness(law, rulebook.domain, rulebook.signatures, forms)
    if found.narrows is not None:
        yield Lint(
            Severity.ERROR if theory.packaged else Severity.WARNING,
            law.place,
            f"narrows: {found.narrows}, where all that the law matches is defined; chains of laws through undefined terms can "
            "prove what is false: keep the other direction alone, or add a condition",
        )
    elif found.widens is not None:
        yield Lint(
            Severity.NOTE,
            law.place,
            f"widens: {found.widens}, where the other side is defined; a proof by it holds where both are",
        )


def _lint_consequences(rulebook: Rulebook, theory: Theory, failed: frozenset[str], on_progress: Progress) -> Iterator[Lint]:
    """Lints on laws that others prove, on an instance with the fewest axes that their conditions allow; `failed` prove none."""
    start = perf_counter()
    others = {wording(law): law.place for other in rulebook.theories if other != theory for law in other.laws}
    for done, law in enumerate(theory.laws, 1):
        if perf_counter() - start > CONSEQUENCE_SECONDS:
            left = counted(len(theory.laws) - done + 1, "law")
            yield Lint(Severity.NOTE, theory.path, f"no time was left to ask of the last {left} whether others prove it")
            return
        if (words := wording(law)) in others:
            yield Lint(Severity.WARNING, law.place, f"law {law.name!r} says what the law at {others[words]} says")
            continue
        asked = law.name not in failed and unfolded(law, rulebook.laws, rulebook.signatures) == (law,)  # no definition
        if asked and _follows(checkable_law(law, rulebook.signatures), rulebook, failed):
            yield Lint(Severity.WARNING, law.place, f"law {law.name!r} follows from the others, on an instance of it at least")
        on_progress("consequences", done, len(theory.laws))


def _follows(checkable: CheckableLaw, rulebook: Rulebook, failed: frozenset[str]) -> bool:
    """Whether the other laws derive a law's right side from its left; for a birewrite in both directions."""
    pairs = sides(checkable, rulebook.signatures)
    if checkable.law.form == "birewrite":
        pairs += [replace(both, outputs=both.outputs[::-1]) for both in pairs]
    task = f"does the law at {checkable.law.place} follow from the others"
    others = (_PROOF_LIMITS, failed | {checkable.law.name})
    answers = (rulebook.call(reaches, rulebook, pair, *others, seconds=_PROOF_LIMITS.seconds + 10, task=task) for pair in pairs)
    return bool(pairs) and all(answers)


def _measure(
    rulebook: Rulebook, theory: Theory, programs: Mapping[str, Graph], limits: Limits, on_progress: Progress
) -> tuple[list[tuple[str, str, Oracle]], tuple[Size, ...]]:
    """All oracles of the programs with the file, and the sizes without it; no sizes if saturation hit a limit."""
    found = []
    with oracle_builder(rulebook, replace(limits, allow_cut=True)) as build:
        for entry in oracles(build, rulebook.domain, programs, partial(on_progress, "growth")):
            found.append(entry)
            if entry[2].saturation.stopped is not None:
                return found, ()
    on = theory.packaged and header(theory.text, "default") != "off" and bool(theory.laws)  # others need its declarations
    with oracle_builder(load_rules(rulebook.domain, without=[theory.name] if on else [])) as build:
        before = list(oracles(build, rulebook.domain, programs, partial(on_progress, "growth without")))
    return found, sizes(before)


_CONSTANTS = (Fraction(3, 7), Fraction(-5, 11), Fraction(13, 4))


def reaches(rulebook: Rulebook, both: Expression, limits: Limits, without: frozenset[str] = frozenset()) -> bool:
    """Whether the laws, but those in `without`, derive the second output of `both` from the first within the limits."""
    left, right = both.outputs
    oracle = saturate(rulebook, needed_for(both, (left,)), limits, without)
    return oracle.class_of(both, right) == oracle.outputs[0]


def sides(checkable: CheckableLaw, signatures: Mapping[str, Signature]) -> list[Expression]:
    """Both sides of a law as one expression with its variables as inputs, for several constants, negative ones too.

    Empty if the law is no union or has conditions other than guards on axes.
    """
    action = checkable.law.actions[-1]
    if action.kind != "union" or len(checkable.law.actions) > 1 or uses_indices(checkable):
        return []
    names = dict(checkable.named)
    excluded: dict[str, set[str]] = {}
    for condition in checkable.conditions:
        match condition:
            case Apply("set-not-contains" | "set-contains" as kind, (Variable(a), Variable(i))) if a in names:
                match names[a]:
                    case Apply("axes", (Variable(x),)):
                        excluded.setdefault(x, set()).update({i} if kind == "set-not-contains" else ())
                    case _:
                        return []
            case Equal() | Apply():
                return []
    strings = [name for name, sort in checkable.variables.items() if sort == "String"]
    values: dict[str, Any] = dict(zip(strings, strings, strict=True))
    values |= dict(zip((name for name, sort in checkable.variables.items() if sort == "i64"), primes(), strict=False))
    rationals = [name for name, sort in checkable.variables.items() if sort == "BigRat"]
    free = {name: frozenset(strings) - excluded.get(name, set()) for name, sort in checkable.variables.items() if sort == "E"}
    values |= {name: ("Var", name) for name in free}
    found = []
    for first in range(len(_CONSTANTS) if rationals else 1):
        constants = islice(cycle(_CONSTANTS), first, None)
        chosen = values | dict(zip(rationals, constants, strict=False))
        found.append(flatten([instance(inlined(side, names), chosen, signatures) for side in action.arguments], free))
    return found
