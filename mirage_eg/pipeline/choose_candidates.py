"""The choice of candidates: which µGraphs are verified, or tuned, of all that structures and plans give."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from math import inf
from time import perf_counter

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.compile_stage import optimized
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.stage_records import Run

Groups = Sequence[Sequence[Candidate]]


def pool(structures: Groups, plans: Groups) -> Groups:
    """The candidates of structures of the whole program, and of plans; where both give one µGraph, that of the plan."""
    of_plans = {entry.as_found: entry for entries in plans for entry in entries}
    graphs = {entry.graph for entries in structures for entry in entries}
    return [
        *([of_plans.get(entry.graph, entry) for entry in entries] for entries in structures),
        *(entries for entries in plans if entries[0].as_found not in graphs),
    ]


def choose(candidates: Groups, library: Candidate, run: Run, most: int) -> list[Candidate]:
    """The candidates that are verified besides the library form, optimized; `most` of them."""
    others = [[entry for entry in entries if entry.as_found != library.graph] for entries in candidates]
    with run.watch.stage("optimize"):
        chosen = diverse(others, most, run.options.prefer_few_kernels)
        return deduplicated(chosen, most, lambda entry: optimized(entry, run.device))


def deduplicated(candidates: Sequence[Candidate], most: int, optimize: Callable[[Candidate], Candidate]) -> list[Candidate]:
    """The first of the candidates, optimized; several that are one µGraph then count once."""
    unique: dict[Graph, Candidate] = {}
    for candidate in map(optimize, candidates):
        unique.setdefault(candidate.optimized.graph if candidate.optimized else candidate.graph, candidate)
    return [*unique.values()][:most]


def with_library(chosen: Sequence[Candidate], library: Candidate) -> list[Candidate]:
    """The candidates and, if it is not among them, the library form."""
    return [*chosen] if any(entry.as_found == library.graph for entry in chosen) else [*chosen, library]


def within_budget(seconds: float, chosen: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """All candidates; in a finite time first the library form and the best one, then as many as fit at the pace so far."""
    if seconds == inf:
        yield chosen
        return
    waiting = sorted(chosen, key=lambda entry: entry.fused)
    start, done, count = perf_counter(), 0, 1 + sum(not entry.fused for entry in chosen)
    while done < len(waiting) and count > 0:
        yield waiting[done : done + count]
        done += count
        spent = perf_counter() - start
        count = int((seconds - spent) * done / spent)


def diverse(groups: Groups, top: int, few_first: bool) -> list[Candidate]:
    """Different structures first: the best µGraph of each by cost, then the second best of each, and so on.

    The best of each number of kernels comes before all others: a cost model may be wrong about the cost of launches. With
    `few_first` that of the fewest comes first, else the fastest.
    """
    rounds = (sorted(filter(None, entries), key=lambda entry: entry.predicted_us) for entries in zip_longest(*groups))
    ordered = [entry for entries in rounds for entry in entries]
    leaders: dict[int, Candidate] = {}
    for entry in ordered:
        leaders.setdefault(len(entry.graph.blocks), entry)
    return (
        sorted(leaders.values(), key=lambda entry: (few_first * entry.kernels, entry.predicted_us))[:top]
        + [entry for entry in ordered if all(entry is not leader for leader in leaders.values())][: max(0, top - len(leaders))]
    )


def diverse_by_kind(groups: Groups) -> Groups:
    """By predicted time, but the best of each kind of µGraph before the second of any: kinds differ in their summary."""
    seen: Counter[str] = Counter()
    order = []
    for entries in sorted(groups, key=lambda entries: entries[0].predicted_us):
        kind = kernel_summary(entries[0].graph)
        order.append((seen[kind], entries))
        seen[kind] += 1
    return [entries for _, entries in sorted(order, key=lambda pair: pair[0])]
