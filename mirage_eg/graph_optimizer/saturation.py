"""Saturate the e-graph of a whole program under the laws of `rules/graph` and `rules/simplify`, within limits.

Shapes and laws alternate until neither adds anything. Then groups of products are complete: their members are found, and
joined. All this repeats until there are no new groups.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from time import perf_counter, thread_time

from egglog import bindings

from mirage_eg.egraph.rule_commands import ruleset_of
from mirage_eg.egraph.terms import run_once, table_sizes
from mirage_eg.graph_optimizer.group_laws import group_laws
from mirage_eg.graph_optimizer.program_terms import ProgramTerms
from mirage_eg.graph_optimizer.tensor_laws import tensor_laws

_DIRECTED = (bindings.RewriteCommand, bindings.RuleCommand)  # a birewrite would make two programs of every elementwise chain
_LAWS = (*_DIRECTED, bindings.BiRewriteCommand)


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """When saturation stops; seconds are of the processor."""

    iterations: int = 60
    nodes: int = 100_000
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ProgramSaturation:
    """A saturated e-graph; how often each law matched, the limit that stopped it, if one did, and the seconds it took."""

    egraph: bindings.EGraph
    laws: tuple[tuple[str, int], ...]
    stopped: str | None
    seconds: float


def saturate(
    terms: ProgramTerms, limits: SaturationLimits | None = None, with_laws: bool = True, rules: tuple[str, ...] = ()
) -> ProgramSaturation:
    """The e-graph of a program, saturated; without laws it has the program alone, equal terms merged.

    `rules`: further laws, of whole tensors: see `tensor_laws`.
    """
    start = perf_counter()
    egraph = bindings.EGraph()
    egraph.run_program(*_commands(rules))
    egraph.run_program(*terms.commands())
    matches: Counter[str] = Counter()
    stopped = _run(egraph, matches, limits or SaturationLimits()) if with_laws else None
    return ProgramSaturation(egraph, tuple(sorted(matches.items())), stopped, perf_counter() - start)


def extended(found: ProgramSaturation, terms: ProgramTerms, rules: Iterable[str]) -> ProgramSaturation:
    """The e-graph saturated again with more laws; `terms` know the ops that these name."""
    start = perf_counter()
    text = "\n".join(rules)
    found.egraph.run_program(*terms.ops.permutations(), *found.egraph.parse_program(text, "mutants"))
    matches = Counter(dict(found.laws))
    stopped = _run(found.egraph, matches, SaturationLimits())
    seconds = found.seconds + perf_counter() - start
    return ProgramSaturation(found.egraph, tuple(sorted(matches.items())), stopped or found.stopped, seconds)


def _run(egraph: bindings.EGraph, matches: Counter[str], limits: SaturationLimits) -> str | None:
    start = thread_time()  # so that a busy machine gives the same e-graph
    for _ in range(limits.iterations):
        updated = sum(_once(egraph, ruleset, matches) for ruleset in ("shapes", "simplify", "laws"))
        if updated == 0 and not _join_groups(egraph, matches):
            return None
        if sum(size for _, size in table_sizes(egraph)) > limits.nodes:
            return f"stopped at {limits.nodes:,} nodes"
        if thread_time() - start > limits.seconds:
            return f"stopped after {limits.seconds:g} s"
    return f"stopped after {limits.iterations} iterations"


def _join_groups(egraph: bindings.EGraph, matches: Counter[str]) -> bool:
    """Find the members of groups, then their terms; whether there were new ones."""
    updated = False
    while _once(egraph, "members", matches):
        updated = True
    while _once(egraph, "groups", matches):
        updated = True
    return updated


def _once(egraph: bindings.EGraph, ruleset: str, matches: Counter[str]) -> bool:
    report = run_once(egraph, ruleset)
    if ruleset != "shapes":
        matches.update({law: count for law, count in report.num_matches_per_rule.items() if count})
    return report.updated


@cache
def _commands(extra: tuple[str, ...]) -> tuple[bindings._Command, ...]:
    """The laws as commands, which any e-graph runs."""
    folder = resources.files("mirage_eg") / "rules"
    files = sorted((folder / "graph").iterdir(), key=lambda file: file.name)
    own = "\n".join(file.read_text(encoding="utf-8") for file in files if file.name.endswith(".egg"))
    shared = (folder / "simplify" / "00_simplify.egg").read_text(encoding="utf-8")
    language = [it for it in _parsed(shared, "rules/simplify") if not isinstance(it, _LAWS)]
    derived = "\n".join([group_laws(), tensor_laws(extra)])
    return (*language, *_parsed(own, "rules/graph"), *directed_laws(shared), *_parsed(derived, "rules/graph"))


def directed_laws(text: str) -> tuple[bindings._Command, ...]:
    """The rewrites and rules of the ruleset `simplify`, however their lines are broken."""
    laws = _parsed(text, "rules/simplify")
    return tuple(law for law in laws if isinstance(law, _DIRECTED) and ruleset_of(law) == "simplify")


def _parsed(text: str, path: str) -> list[bindings._Command]:
    return bindings.EGraph().parse_program(text, path)


__all__ = ["ProgramSaturation", "SaturationLimits", "directed_laws", "extended", "saturate"]
