"""Two rule sets side by side: e-graphs, states, structures that only one of them finds, the cheapest µGraphs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_eg.backends.cost.devices import Device
from mirage_eg.egraph.rule_files import DOMAINS, packaged_names, read_files
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.ir.errors import RuleError
from mirage_eg.lab.bench.rule_impact import OnStage, file_domain
from mirage_eg.lab.bench.rule_search import Pricing, Side, default_device, describe, rule_search
from mirage_eg.lab.bench.search_programs import SearchProgram
from mirage_eg.lab.rule_pages import comparison_html
from mirage_eg.search.structure_search import SearchLimits

_LANGUAGE = "(sort E)"  # a rule set that declares it is a whole language, and the packaged one would clash with it


@dataclass(frozen=True, slots=True)
class ProgramComparison:
    """One program searched with rule set A and with B; `only_a` and `only_b` describe structures, smallest first."""

    program: str
    a: Side
    b: Side
    best_us_a: float | None
    best_us_b: float | None
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two rule sets on programs."""

    a: str
    b: str
    max_block_ops: int
    device: str
    programs: tuple[ProgramComparison, ...]

    def _repr_html_(self) -> str:
        return comparison_html(self)


def rule_set(name: str | Path, without: Sequence[str] = ()) -> Rulebook:
    """The rule set of a name: `indexed`, `abstract`, a theory that is off by default, a file, or a folder.

    Files are added to the packaged laws of their domain, unless they declare the language (`(sort E)`) themselves. `without`
    names theories, packaged laws, or laws of the files to leave out.

    Raises RuleError: no such rule set, theory or law, or a mistake in a file.
    """
    if str(name) in DOMAINS:
        return load_rules(str(name), without=without)
    if not Path(name).exists() and not any(str(name) in packaged_names(domain) for domain in DOMAINS):
        raise RuleError(f"got rule set {str(name)!r}, wanted {', '.join(DOMAINS)}, a theory, or an existing file or folder")
    domain = file_domain(name)
    whole = Path(name).exists() and any(_LANGUAGE in file.text for file in read_files(name))
    rulebook = load_rules(domain, [name], packaged_names(domain) if whole else ())
    own = {law.name for law in rulebook.laws} & set(without)
    kept = [entry for entry in without if entry not in own]
    if kept:
        rulebook = load_rules(domain, [name], [*(packaged_names(domain) if whole else ()), *kept])
    return rulebook.leaving_out(own)


def comparison(
    parts: Sequence[SearchProgram],
    a: tuple[str, Rulebook],
    b: tuple[str, Rulebook],
    limits: SearchLimits | None = None,
    device: Device | None = None,
    on_progress: OnStage = lambda stage, done, total: None,
) -> Comparison:
    """Search each program with both rule sets, each with its name. Raises LimitError: user laws hit a limit of saturation."""
    limits, device = limits or SearchLimits(), device or default_device()
    rows = []
    for part in parts:
        found, best = [], []
        for name, rulebook in (a, b):
            stage = f"{part.name}: {name}"
            searched = rule_search(part, rulebook, limits, lambda done, total: on_progress(stage, done, total))  # noqa: B023
            found.append(searched)
            best.append(Pricing(part, rulebook, limits, device).best_us([*searched.found.values()]))
        first, second = found
        only = [tuple(map(describe, one.only(other))) for one, other in ((first, second), (second, first))]
        rows.append(ProgramComparison(part.name, first.side, second.side, best[0], best[1], only[0], only[1]))
    return Comparison(a[0], b[0], limits.max_block_ops, device.name, tuple(rows))
