"""The impact of a rule file: for each of its laws the matches and the structures found only with it, as verified µGraphs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rule_files import DOMAINS, domain_of, packaged_names, read_files
from mirage_eg.egraph.rulebook import Rulebook, is_added, load_rules
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.workloads import PAPER
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.lab.bench.rule_search import (
    TRIALS,
    Pricing,
    RuleSearch,
    Side,
    default_device,
    describe,
    lines,
    rule_search,
    worker_for,
)
from mirage_eg.lab.bench.search_programs import SearchProgram, search_programs
from mirage_eg.lab.rule_pages import impact_html
from mirage_eg.pipeline.run.stopping import raise_if_stopped
from mirage_eg.search.partition.segment_search import Instantiated
from mirage_eg.search.structure import AnyStructure, canonical
from mirage_eg.search.structure_search import SearchLimits
from mirage_eg.verify.evidence import combine_evidence
from mirage_eg.verify.proof import Proof, Prover
from mirage_eg.verify.reference import Reference

FULL_SIZE = 4  # µGraphs of a program, the cheapest, that are also computed at full size
PROOFS = 8  # likewise, with a proof, in a third of a second each
TOP = 64  # new structures of a program that become µGraphs, where more are found the cheapest

OnStage = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class LawImpact:
    """One law of the file on one program: its matches, and the structures that are lost if it alone is left out."""

    law: str
    place: str
    matches: int
    structures: int


@dataclass(frozen=True, slots=True)
class NewMuGraph:
    """A structure that only the file makes findable, as the cheapest µGraph at the program's size.

    `only_with`: laws of the file without which it is not found, each by itself. `proof`: the laws of a proof, where one
    was found. `verdict`: the result of the verification, or why there is no µGraph.
    """

    structure: str
    steps: tuple[str, ...]
    only_with: tuple[str, ...]
    us: float | None
    verdict: str
    proof: tuple[str, ...]
    graph: Graph | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProgramImpact:
    """A program without and with the file: both searches, the cheapest µGraphs, what is newly found (cheapest first), lost."""

    program: str
    without: Side
    with_: Side
    best_us_without: float | None
    best_us_with: float | None
    laws: tuple[LawImpact, ...]
    found: tuple[NewMuGraph, ...]
    new_structures: int  # `found` has those with the cheapest µGraphs
    lost: tuple[str, ...]
    parted_because: str | None  # where the program is a segment

    def left_out(self, top: int, proofs: int) -> str | None:
        """The new structures that are not priced, or not proved, or not computed at full size; None if there are none."""
        graphs = [new for new in self.found if new.graph is not None]
        unproved = sum(not new.verdict.startswith("proved") for new in graphs)
        small = sum(not new.verdict.endswith("at full size") for new in graphs)
        parts = []
        if rest := self.new_structures - len(graphs):
            parts.append(f"{rest:,} without a µGraph: no tiling fits a block, or {top} others are cheaper (--top)")
        if unproved:
            parts.append(f"{unproved:,} tested and not proved (--proofs {proofs})")
        if small:
            parts.append(f"{small:,} computed on a small instance only: the {FULL_SIZE} cheapest also at full size")
        return f"{self.program}: of {counted(self.new_structures, 'new structure')}: {'; '.join(parts)}" if parts else None


@dataclass(frozen=True, slots=True)
class Impact:
    """The impact of a rule file on programs."""

    file: str
    domain: str
    max_block_ops: int
    device: str
    programs: tuple[ProgramImpact, ...]

    def graphs(self) -> tuple[Graph, ...]:
        """The µGraphs that only the file makes findable, program by program, cheapest first."""
        return tuple(new.graph for row in self.programs for new in row.found if new.graph is not None)

    def never_matched(self) -> tuple[LawImpact, ...]:
        """The laws of the file that matched in no program."""
        first, *others = self.programs
        return tuple(law for i, law in enumerate(first.laws) if not any(row.laws[i].matches for row in (first, *others)))

    def _repr_html_(self) -> str:
        return impact_html(self)


def impact(
    file: str | Path,
    programs: Sequence[str | Path | Graph | KernelGraph] = PAPER,
    *,
    domain: str | None = None,
    limits: SearchLimits | None = None,
    device: Device | None = None,
    top: int = TOP,
    proofs: int = PROOFS,
    on_progress: OnStage = lambda stage, done, total: None,
) -> Impact:
    """Search programs with the packaged laws, with those of a file besides, and without each law of the file in turn.

    At most `top` new structures of a program become µGraphs, those with the cheapest; the cheapest `proofs` of these are proved
    where the laws can. `programs` are workloads, files as `optimize` takes them, or graphs. `domain` is the file's where not
    given.

    Raises:
        RuleError: a mistake in the file, or no law of it matches.
        LimitError: the laws hit a limit of saturation.
    """
    limits = limits or SearchLimits()
    named = [_named(program, position) for position, program in enumerate(programs, 1)]
    parts = [part for name, graph in named for part in search_programs(name, graph, limits.max_block_ops)]
    return part_impacts(file, parts, domain, limits, device or default_device(), on_progress, (top, proofs))


def _named(program: str | Path | Graph | KernelGraph, position: int) -> tuple[str, Graph]:
    match program:
        case Graph():
            return f"program {position}", program
        case KernelGraph():
            return f"program {position}", program.graph()
        case _:
            return load_program(str(program))


def part_impacts(
    file: str | Path,
    parts: Sequence[SearchProgram],
    domain: str | None,
    limits: SearchLimits,
    device: Device,
    on_progress: OnStage,
    most: tuple[int, int] = (TOP, PROOFS),
) -> Impact:
    """`impact` for programs that are prepared for the search; `most` are `top` and `proofs`."""
    chosen = domain or file_domain(file)
    without, with_ = load_rules(chosen), load_rules(chosen, [file])
    own = frozenset(theory.path for theory in with_.theories if is_added(theory))
    laws = [law for theory in with_.theories if theory.path in own for law in theory.laws]
    if not laws:
        raise RuleError(f"{file}: got no law that is not loaded already, wanted a file with laws of your own")
    with worker_for(with_) as worker:
        rows = [_ProgramRun(part, without, with_, laws, limits, device, worker, most, on_progress).row() for part in parts]
    result = Impact(str(file), chosen, limits.max_block_ops, device.name, tuple(rows))
    if len(result.never_matched()) == len(laws):
        names = ", ".join(part.name for part in parts)
        raise RuleError(f"{file}: no law matches in {names}; wanted a program with the ops of a left side; see `rules check`")
    return result


def file_domain(path: str | Path) -> str:
    """The domain that the header of a rule file or of a file of a folder names, else the first one."""
    if str(path) in {name for domain in DOMAINS for name in packaged_names(domain)}:
        return next(domain for domain in DOMAINS if str(path) in packaged_names(domain))
    return next((named for entry in read_files(path) if (named := domain_of(entry))), DOMAINS[0])


@dataclass(frozen=True, slots=True)
class _ProgramRun:
    """The searches and µGraphs of one program."""

    part: SearchProgram
    without: Rulebook
    with_: Rulebook
    laws: Sequence[Law]
    limits: SearchLimits
    device: Device
    worker: Worker | None
    most: tuple[int, int]  # µGraphs, proofs
    on_progress: OnStage

    def row(self) -> ProgramImpact:
        before, after = self._search(self.without, 0), self._search(self.with_, 1)
        matching = [law for law in self.laws if after.matched(law)]
        if len(self.laws) == 1:
            searched = dict.fromkeys((law.name for law in matching), before)
        else:  # a law that does not match changes nothing
            searched = {law.name: self._search(self.with_.leaving_out([law.name]), 2 + i) for i, law in enumerate(matching)}
        lost = {name: {canonical(entry) for entry in after.only(found)} for name, found in searched.items()}
        new = after.only(before)
        pricing = Pricing(self.part, self.with_, self.limits, self.device)
        found = tuple(self._verified(pricing, new, lost))
        kept = [structure for key, structure in after.found.items() if key in before.found]
        best = pricing.best_us([*before.found.values()])
        both = [best if len(kept) == len(before.found) else pricing.best_us(kept), *(entry.us for entry in found)]
        return ProgramImpact(
            self.part.name,
            before.side,
            after.side,
            best,
            min((us for us in both if us is not None), default=None),
            tuple(LawImpact(law.name, law.place, after.matched(law), len(lost.get(law.name, ()))) for law in self.laws),
            found,
            len(new),
            tuple(map(describe, before.only(after))),
            self.part.parted_because,
        )

    def _search(self, rulebook: Rulebook, number: int) -> RuleSearch:
        name = ("without the file", "with the file", "without each law")[min(number, 2)]

        def progress(done: int, total: int) -> None:
            self.on_progress(f"{self.part.name}: {name}", done, total)

        return rule_search(self.part, rulebook, self.limits, progress, self.worker)

    def _verified(self, pricing: Pricing, new: Sequence[AnyStructure], lost: dict[str, set[object]]) -> Iterator[NewMuGraph]:
        """The new structures as µGraphs, cheapest first."""
        stage = f"{self.part.name}: µGraphs"
        entries: list[Instantiated] = []
        for entry in pricing.each(new, self.most[0]):
            entries.append(entry)
            raise_if_stopped()
            self.on_progress(stage, len(entries), 2 * len(new))
        entries.sort(key=lambda entry: entry.kernels[0].us if entry.kernels else float("inf"))
        prover = Prover(self.part.program, self.with_ if self.with_.domain == "indexed" else None)
        leading = [entry.kernels[0].graph for entry in entries[:FULL_SIZE] if entry.kernels]
        verdicts = [verdict for verdict, _ in Reference(self.part.program, TRIALS).check_all(leading)] if leading else []
        for position, entry in enumerate(entries):
            raise_if_stopped()
            self.on_progress(stage, len(new) + position, 2 * len(new))
            key = canonical(entry.structure)
            columns = (
                describe(entry.structure),
                tuple(lines(entry.structure, self.part.inputs)),
                tuple(name for name, keys in lost.items() if key in keys),
            )
            if not entry.kernels:
                reason = "not equal on a small instance" if entry.equal is False else "no tiling fits a block"
                yield NewMuGraph(*columns, None, reason, (), None)
                continue
            if position < self.most[1]:
                proof = prover.prove(entry.kernels[0].graph)
            else:
                proof = Proof(entry.structure.proved and self.with_.packaged)
            tested = "equal on a small instance"
            if position < len(verdicts):
                verdict = combine_evidence(verdicts[position], f"{self.part.name}: new µGraph {position + 1}", proof)
                tested = f"{verdict.verdict} at full size"
            proved = () if not proof.proved else ("proved where defined",) if proof.partial else ("proved",)
            yield NewMuGraph(*columns, entry.kernels[0].us, "; ".join((*proved, tested)), proof.laws, entry.kernels[0].graph)
