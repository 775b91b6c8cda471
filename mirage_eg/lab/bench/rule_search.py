"""One search of a program by the laws of a rulebook, and the comparison of two searches by their structures."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from mirage_eg.backends.cost.devices import DEFAULT_TARGET, Device, device_for
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.oracle import oracle_builder, spellings
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.plurals import counted
from mirage_eg.lab.bench.search_programs import SearchProgram
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.segment_search import FieldCheck, Instantiated, Task, instantiate, instantiate_each
from mirage_eg.search.structure import AnyStructure, SplitReduction, canonical
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.search.trace import structure_line

TRIALS = 2
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Side:
    """One search: e-nodes and milliseconds of saturation are sums over the splits, `seconds` are of the whole search."""

    nodes: int
    milliseconds: float
    visited: int
    structures: int
    complete: bool
    cut: tuple[str, ...]  # the limits that stopped saturation
    seconds: float


@dataclass(frozen=True, slots=True)
class RuleSearch:
    """A search: its figures, the matches of each law, and its structures by their canonical form."""

    side: Side
    matches: Mapping[str, int]
    found: Mapping[object, AnyStructure]

    def matched(self, law: Law) -> int:
        """How often a law matched, in both directions."""
        return sum(self.matches.get(name, 0) for name in spellings(law.name))

    def only(self, other: "RuleSearch") -> tuple[AnyStructure, ...]:
        """The structures that the other search lacks, smallest first."""
        return tuple(structure for key, structure in self.found.items() if key not in other.found)


def worker_for(rulebook: Rulebook) -> AbstractContextManager[Worker | None]:
    """One process for all searches by a user's laws; none for packaged laws."""
    return nullcontext() if rulebook.packaged else Worker()


def rule_search(
    part: SearchProgram,
    rulebook: Rulebook,
    limits: SearchLimits,
    on_progress: OnProgress = lambda done, total: None,
    worker: Worker | None = None,
) -> RuleSearch:
    """Search a program under every split; `worker` as `worker_for` gives it, else a new one.

    Raises LimitError: user laws hit a limit of saturation, and `limits.saturation` does not allow it.
    """
    with oracle_builder(rulebook, limits.saturation, worker) as build:
        result = search(
            part.named.program,
            part.axes,
            rulebook,
            limits,
            on_progress=lambda done, total, found: on_progress(done, total),
            build=build,
        )
    matches: Counter[str] = Counter()
    for record in result.records:
        matches.update(dict(record.saturation.matches))
    side = Side(
        sum(record.saturation.nodes for record in result.records),
        1000 * sum(record.saturation.seconds for record in result.records),
        result.visited,
        len(result.all),
        result.complete,
        tuple(dict.fromkeys(record.saturation.stopped for record in result.records if record.saturation.stopped)),
        result.seconds,
    )
    return RuleSearch(side, matches, {canonical(structure): structure for structure in result.all})


def describe(structure: AnyStructure) -> str:
    """A structure in one line: number of ops, loop, ops."""
    if isinstance(structure, SplitReduction):
        return f"{describe(structure.first)}; then {describe(structure.last)}"
    loop = "no loop" if structure.split.looped is None else "looped"
    return f"{counted(len(structure.steps), 'op')}, {loop}: {', '.join(step.op for step in structure.steps)}"


def lines(structure: AnyStructure, names: Sequence[str]) -> list[str]:
    """A structure line by line, for JSON, with the names of its inputs."""
    kernels: list[list[str]] = structure_line(structure, names)["kernels"]
    return [line for kernel in kernels for line in kernel]


@dataclass(frozen=True, slots=True)
class Pricing:
    """The µGraphs of structures of one program on a device, by branch and bound over the cost model."""

    part: SearchProgram
    rulebook: Rulebook
    limits: SearchLimits
    device: Device

    def _task(self) -> Task:
        return Task(self.rulebook, self.device, self.limits, Filters(), seed=0, trials=TRIALS)

    def best_us(self, structures: Sequence[AnyStructure]) -> float | None:
        """The predicted µs of the cheapest µGraph of all structures; None if there is none."""
        cheapest = self.cheapest(structures)
        return None if cheapest is None else cheapest[1]

    def cheapest(self, structures: Sequence[AnyStructure]) -> tuple[object, float] | None:
        """The canonical form of the structure with the cheapest µGraph, and its predicted µs."""
        named, axes = self.part.named, self.part.axes
        check = FieldCheck(named.program, axes, self._task())
        entries = [entry for entry in instantiate(self._task(), named, axes, structures, check) if entry.kernels]
        return (canonical(entries[0].structure), entries[0].kernels[0].us) if entries else None

    def each(self, structures: Sequence[AnyStructure], top: int) -> Iterator[Instantiated]:
        """The cheapest µGraph of every structure, with the field check on a small instance; of more than `top` structures
        those with the `top` cheapest µGraphs."""
        named, axes = self.part.named, self.part.axes
        if len(structures) <= top:
            yield from instantiate_each((self._task(), named, axes), structures)
            return
        check = FieldCheck(named.program, axes, self._task())
        task = replace(self._task(), keep=top)
        yield from (entry for entry in instantiate(task, named, axes, structures, check) if entry.kernels)


def default_device() -> Device:
    """The device that µs are predicted for where none is named."""
    return device_for(DEFAULT_TARGET)
