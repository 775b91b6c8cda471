"""Saturate the e-graph of a whole program under the laws of `rules/graph` and `rules/simplify`, within limits.

Shapes and laws alternate until neither adds anything. Then groups of products are complete: their members are found, and
joined. All this repeats until there are no new groups. Laws of whole tensors are rulesets of one law each: limits are looked at
after each ruleset, and an iteration of many laws may take minutes.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from time import perf_counter, thread_time

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.rule_commands import core_of, in_ruleset, ruleset_of
from mirage_eg.egraph.terms import run_once, table_sizes
from mirage_eg.graph_optimizer.group_laws import group_laws
from mirage_eg.graph_optimizer.pooled_convolutions import pooled_rules
from mirage_eg.graph_optimizer.position_means import position_mean_rules
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
    """A saturated e-graph; how often each law matched, the limit that stopped it, if one did, and the seconds it took.

    `rules`: the laws of whole tensors that were asked for.
    """

    egraph: bindings.EGraph
    laws: tuple[tuple[str, int], ...]
    stopped: str | None
    seconds: float
    rules: tuple[str, ...] = ()


def saturate(
    terms: ProgramTerms, limits: SaturationLimits | None = None, with_laws: bool = True, rules: tuple[str, ...] = ()
) -> ProgramSaturation:
    """The e-graph of a program, saturated; without laws it has the program alone, equal terms merged.

    `rules`: further laws, of whole tensors: see `tensor_laws`.
    """
    start = perf_counter()
    egraph = bindings.EGraph()
    language = (it for it in _commands() if with_laws or not isinstance(it, _LAWS))
    egraph.run_program(*language, *(command for pair in _tensor_laws(rules) for command in pair))
    own = "\n".join((*position_mean_rules(terms), *pooled_rules(terms))) if with_laws else ""
    laws = egraph.parse_program(own, "convolutions")
    egraph.run_program(*terms.commands(), *laws)
    matches: Counter[str] = Counter()
    stopped = _Saturation(egraph, rules, matches, limits or SaturationLimits()).run() if with_laws else None
    return ProgramSaturation(egraph, tuple(sorted(matches.items())), stopped, perf_counter() - start, rules)


class _StoppedError(Exception):
    """A limit was reached, which the message names."""


@dataclass(slots=True)
class _Saturation:
    """A saturation that is at work."""

    egraph: bindings.EGraph
    rules: tuple[str, ...]
    matches: Counter[str]
    limits: SaturationLimits
    start: float = field(default_factory=thread_time)  # so that a busy machine gives the same e-graph

    def run(self) -> str | None:
        """Saturate; the limit that was reached, if one was."""
        rulesets = ("shapes", "simplify", "laws", *map(_slice, range(len(_tensor_laws(self.rules)))))
        try:
            for _ in range(self.limits.iterations):
                if sum(map(self._once, rulesets)) == 0 and not self._join_groups():
                    return None
        except _StoppedError as error:
            return str(error)
        return f"stopped after {self.limits.iterations} iterations"

    def _join_groups(self) -> bool:
        """Find the members of groups, then their terms; whether there were new ones."""
        updated = False
        while self._once("members"):
            updated = True
        while self._once("groups"):
            updated = True
        return updated

    def _once(self, ruleset: str) -> bool:
        report = run_once(self.egraph, ruleset)
        if ruleset != "shapes":
            self.matches.update({law: count for law, count in report.num_matches_per_rule.items() if count})
        if report.updated and sum(size for _, size in table_sizes(self.egraph)) > self.limits.nodes:
            raise _StoppedError(f"stopped at {self.limits.nodes:,} nodes")
        if thread_time() - self.start > self.limits.seconds:
            raise _StoppedError(f"stopped after {self.limits.seconds:g} s")
        return report.updated


def _slice(number: int) -> str:
    """The ruleset of a law of whole tensors."""
    return f"tensor_{number}"


@cache
def _tensor_laws(rules: tuple[str, ...]) -> tuple[tuple[bindings._Command, bindings._Command], ...]:
    """The laws of whole tensors as commands, each after that of its ruleset."""
    laws = _parsed(tensor_laws(rules), "rules/graph")
    return tuple(
        (bindings.AddRuleset(core_of(law).span, _slice(number)), in_ruleset(law, _slice(number)))
        for number, law in enumerate(laws)
    )


@cache
def _commands() -> tuple[bindings._Command, ...]:
    """The laws as commands, which any e-graph runs."""
    folder = resources.files("mirage_eg") / "rules"
    files = sorted((folder / "graph").iterdir(), key=lambda file: file.name)
    own = "\n".join(file.read_text(encoding="utf-8") for file in files if file.name.endswith(".egg"))
    shared = (folder / "simplify" / "00_simplify.egg").read_text(encoding="utf-8")
    language = [it for it in _parsed(shared, "rules/simplify") if not isinstance(it, _LAWS)]
    return (*language, *_parsed(own, "rules/graph"), *directed_laws(shared), *_parsed(group_laws(), "rules/graph"))


def directed_laws(text: str) -> tuple[bindings._Command, ...]:
    """The rewrites and rules of the ruleset `simplify`, however their lines are broken."""
    laws = _parsed(text, "rules/simplify")
    return tuple(law for law in laws if isinstance(law, _DIRECTED) and ruleset_of(law) == "simplify")


def _parsed(text: str, path: str) -> list[bindings._Command]:
    return bindings.EGraph().parse_program(text, path)
