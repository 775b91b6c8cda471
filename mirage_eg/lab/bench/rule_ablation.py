"""The ablation of laws: each law left out in turn, and what the search of a program then loses and gains."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.lab.bench.rule_search import Pricing, RuleSearch, Side, default_device, describe, rule_search, worker_for
from mirage_eg.lab.bench.search_programs import SearchProgram
from mirage_eg.lab.rule_pages import ablation_html
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.search.structure_search import SearchLimits

OnLaw = Callable[[str, int, int], None]  # program, laws done, of
SHOWN = 3  # descriptions of structures that an entry lists


@dataclass(frozen=True, slots=True)
class LawAblation:
    """One program searched without one law. `lost` and `gained` are numbers of structures, `examples` some that are lost.

    A law that does not match in the baseline is not searched without: nothing would change.
    """

    law: str
    place: str
    matches: int  # in the baseline
    lost: int
    gained: int
    visited: int
    nodes: int
    milliseconds: float  # of saturation
    best_us: float | None
    examples: tuple[str, ...] = ()

    @property
    def changes_structures(self) -> bool:
        """Whether the search finds other structures without the law."""
        return bool(self.lost or self.gained)


@dataclass(frozen=True, slots=True)
class ProgramAblation:
    """One program with all laws, and without each of them."""

    program: str
    baseline: Side
    best_us: float | None
    laws: tuple[LawAblation, ...]


@dataclass(frozen=True, slots=True)
class Ablation:
    """The ablation of the laws of a rulebook on programs."""

    domain: str
    max_block_ops: int
    device: str
    programs: tuple[ProgramAblation, ...]

    def without_change(self) -> tuple[str, ...]:
        """The laws that change the structures of no program."""
        laws = [entry.law for entry in self.programs[0].laws]
        return tuple(law for i, law in enumerate(laws) if not any(row.laws[i].changes_structures for row in self.programs))

    def _repr_html_(self) -> str:
        return ablation_html(self)


def ablation(
    parts: Sequence[SearchProgram],
    rulebook: Rulebook,
    limits: SearchLimits | None = None,
    laws: Sequence[str] | None = None,
    device: Device | None = None,
    jobs: int | None = None,
    on_progress: OnLaw = lambda program, done, total: None,
) -> Ablation:
    """Search each program with all laws and without each of `laws` (`equations` where not given), laws in parallel.

    Raises LimitError: user laws hit a limit of saturation.
    """
    limits, device = limits or SearchLimits(), device or default_device()
    chosen = equations(rulebook) if laws is None else [law for law in rulebook.laws if law.name in laws]
    with Workers(None, jobs) as workers:
        rows = tuple(_program(part, rulebook, limits, chosen, device, workers, on_progress) for part in parts)
    return Ablation(rulebook.domain, limits.max_block_ops, device.name, rows)


def equations(rulebook: Rulebook) -> list[Law]:
    """The laws but those on `axes` and `below` alone, which belong to the declarations of ops."""
    return [law for law in rulebook.laws if not all(_is_bookkeeping(action.arguments[:1]) for action in law.actions)]


def _is_bookkeeping(arguments: Sequence[object]) -> bool:
    return getattr(arguments[0], "name", "") in ("axes", "below") if arguments else False


@dataclass(frozen=True, slots=True)
class _Common:
    """What all searches of one program share."""

    pricing: Pricing
    baseline: RuleSearch
    best: tuple[object, float] | None  # the structure of the cheapest µGraph, and its µs


def _program(
    part: SearchProgram,
    rulebook: Rulebook,
    limits: SearchLimits,
    laws: Sequence[Law],
    device: Device,
    workers: Workers,
    on_progress: OnLaw,
) -> ProgramAblation:
    baseline = rule_search(part, rulebook, limits)
    pricing = Pricing(part, rulebook, limits, device)
    best = pricing.cheapest([*baseline.found.values()])
    matching = [law for law in laws if baseline.matched(law)]
    found: dict[str, LawAblation] = {}
    common = _Common(pricing, baseline, best)
    on_progress(part.name, 0, len(matching))
    for position, entry in workers.run(f"ablate {part.name}", without_each, common, matching):
        found[matching[position].name] = entry
        on_progress(part.name, len(found), len(matching))
    side, us = baseline.side, best and best[1]
    unchanged = (side.visited, side.nodes, side.milliseconds, us)
    entries = (found.get(law.name) or LawAblation(law.name, law.place, 0, 0, 0, *unchanged) for law in laws)
    return ProgramAblation(part.name, side, us, tuple(entries))


def without_each(common: _Common, laws: Sequence[Law]) -> Iterator[LawAblation]:
    """The program searched without each law; in a worker."""
    with worker_for(common.pricing.rulebook) as worker:
        for law in laws:
            yield _without(common, law, worker)


def _without(common: _Common, law: Law, worker: Worker | None) -> LawAblation:
    pricing, baseline = common.pricing, common.baseline
    found = rule_search(pricing.part, pricing.rulebook.leaving_out([law.name]), pricing.limits, worker=worker)
    lost, gained = baseline.only(found), found.only(baseline)
    best_us = common.best and common.best[1]
    if gained or (common.best is not None and common.best[0] not in found.found):
        best_us = pricing.best_us([*found.found.values()])
    side, examples = found.side, tuple(map(describe, lost[:SHOWN]))
    counts = baseline.matched(law), len(lost), len(gained), side.visited, side.nodes, side.milliseconds
    return LawAblation(law.name, law.place, *counts, best_us, examples)
