"""The choice of candidates: which µGraphs are verified, or tuned, of all that structures and plans give."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from math import inf

from mirage_eg.backends.evaluator.cpu_threads import ending
from mirage_eg.ir.deadline import Deadline
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.found import Found, Lowered, lower
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.stage_records import Run

Groups = Sequence[Sequence[Found]]


def pool(structures: Groups, plans: Groups) -> Groups:
    """The µGraphs of structures of the whole program, and of plans; where both give one µGraph, that of the plan."""
    of_plans = {entry.graph: entry for entries in plans for entry in entries}
    graphs = {entry.graph for entries in structures for entry in entries}
    return [
        *([of_plans.get(entry.graph, entry) for entry in entries] for entries in structures),
        *(entries for entries in plans if entries[0].graph not in graphs),
    ]


def choose(mugraphs: Groups, library: Found, run: Run, most: int) -> list[Lowered]:
    """The µGraphs that are verified besides the library form, optimized; `most` of them."""
    others = [[entry for entry in entries if entry.graph != library.graph] for entries in with_hope(mugraphs)]
    with run.watch.stage("optimize"):
        chosen = diverse(others, most, run.options.prefer_few_kernels)
        return deduplicated([lower(entry, run.device) for entry in chosen], most)


def with_hope(groups: Groups) -> Groups:
    """Without µGraphs that take many times as long as the best one by prediction: their evaluation takes long, too."""
    most_us = HEURISTICS.hopeless * min((entry.predicted_us for entries in groups for entry in entries), default=inf)
    return [[entry for entry in entries if entry.predicted_us <= most_us] for entries in groups]


def deduplicated(mugraphs: Sequence[Lowered], most: int) -> list[Lowered]:
    """The first of the µGraphs; several that are one when optimized count once."""
    unique: dict[Graph, Lowered] = {}
    for entry in mugraphs:
        unique.setdefault(entry.optimized.graph if entry.optimized else entry.graph, entry)
    return [*unique.values()][:most]


def with_library(chosen: Sequence[Lowered], library: Found) -> list[Lowered]:
    """The µGraphs and, if it is not among them, the library form, which stays as it is."""
    is_there = any(entry.found.graph == library.graph for entry in chosen)
    return [*chosen] if is_there else [*chosen, Lowered(library, library.graph)]


def within_budget(until: Deadline, chosen: Sequence[Lowered]) -> Iterator[Sequence[Lowered]]:
    """All of them; in a finite time first the library form and the best one, then as many as fit at the pace so far."""
    seconds = until.left()
    if seconds == inf:
        yield chosen
        return
    waiting = sorted(chosen, key=lambda entry: entry.fused)
    done, count = 0, 1 + sum(not entry.fused for entry in chosen)
    while done < len(waiting) and count > 0 and not until.passed():
        yield waiting[done : done + count]
        done += count
        left = until.left()
        count = int(left * done / max(seconds - left, 1e-9))


def one_by_one(
    until: Deadline, chosen: Sequence[Lowered], program: Graph, size_of_check: Callable[[Graph], int]
) -> Iterator[Sequence[Lowered]]:
    """Each fused µGraph alone, until the time is over.

    The `program` needs no check where its kernels are ours. Those whose check may take half of the time that is left come last.

    Raises OverdueError: the time is over while the size of a check is found.
    """
    late: list[Lowered] = []
    for entry in (it for it in chosen if it.fused):
        with ending(until):  # sizes of checks are found by evaluating parts
            is_late = entry.graph != program and size_of_check(entry.graph) > until.left() / 2 * HEURISTICS.checked_elements
        if is_late:
            late.append(entry)
        else:
            yield [entry]
    for entry in late:
        if not until.passed():
            yield [entry]


def large_checks_last(until: Deadline, chosen: Sequence[Lowered], size_of_check: Callable[[Graph], int]) -> list[Lowered]:
    """In a finite time candidates whose check may take half of what is left come after the others; in none, as given.

    `size_of_check`: the elements that a check evaluates.
    """
    if until.left() == inf or until.passed():
        return [*chosen]
    most = until.left() / 2 * HEURISTICS.checked_elements
    return sorted(chosen, key=lambda entry: size_of_check(entry.graph) > most)


def diverse(groups: Groups, top: int, few_first: bool) -> list[Found]:
    """Different structures first: the best µGraph of each by cost, then the second best of each, and so on.

    The best of each number of kernels comes before all others: a cost model may be wrong about the cost of launches. With
    `few_first` that of the fewest comes first, else the fastest.
    """
    rounds = (sorted(filter(None, entries), key=lambda entry: entry.predicted_us) for entries in zip_longest(*groups))
    ordered = [entry for entries in rounds for entry in entries]
    leaders: dict[int, Found] = {}
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
