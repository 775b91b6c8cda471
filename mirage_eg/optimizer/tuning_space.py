"""The search space of tuning: schedules of µGraphs, the first ones and neighbours of fast ones."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

from mirage_eg.backends.triton.float16_partials import scaled_half_outputs
from mirage_eg.backends.triton.schedule import Schedule, Schedules, changed
from mirage_eg.backends.triton.targets import DEPENDENT_LAUNCHES
from mirage_eg.backends.triton.tiles import flatten, is_skinny
from mirage_eg.backends.triton.warps import written_warps
from mirage_eg.ir.expand import expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase

_COUPLED_FIELDS = {"num_warps": "launch", "num_stages": "launch"}  # fields that change together
_EXPONENTIALS, _DIVISIONS = ("exp",), ("div",)  # ops of expanded graphs


@dataclass(frozen=True, slots=True)
class Variant:
    """A µGraph with a schedule, as source that compiles, or the reason why it does not."""

    graph: Graph
    structure: int
    schedule: Schedules
    source: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A µGraph of a structure, with a schedule to compile it with."""

    graph: Graph
    structure: int
    schedule: Schedules


def diverse(ranked: Sequence[Sequence[Graph]], most: int) -> list[tuple[Graph, int]]:
    """The cheapest µGraph of each structure, then one of another tiling from each, and so on."""
    samples = [[(graph, number) for graph in sample(graphs, 8)] for number, graphs in enumerate(ranked)]
    rounds = zip_longest(*samples)
    return [entry for entries in rounds for entry in entries if entry is not None][:most]


def sample(graphs: Sequence[Graph], most: int) -> list[Graph]:
    """One half are the cheapest, the other is sampled from the cheaper half of the others: the cost model is crude."""
    if len(graphs) <= most:
        return list(graphs)
    cheapest, rest = list(graphs[: (most + 1) // 2]), graphs[(most + 1) // 2 :]
    wanted = most - len(cheapest)
    half = rest[: max(wanted, len(rest) // 2)]
    return cheapest + [half[i * len(half) // wanted] for i in range(wanted)]


def first(graph: Graph, structure: int) -> Iterator[Job]:
    """The first schedules of a µGraph."""
    plain = _standard(graph)
    yield Job(graph, structure, plain)
    swapped = tuple(replace(entry, swapped=_has_skinny(block)) for entry, block in zip(plain, graph.blocks, strict=True))
    if swapped != plain:
        yield Job(graph, structure, swapped)


def _standard(graph: Graph) -> Schedules:
    """Powers of two and reciprocals from the start: tl.exp and divisions compile to several more instructions an element."""
    return tuple(
        Schedule(
            num_warps=written_warps(block, "block"),
            num_stages=4 if block.loop > 1 else 1,
            exp2=_has(block, _EXPONENTIALS),
            use_reciprocal=_has(block, _DIVISIONS),
        )
        for block in graph.blocks
    )


def _has(block: Graph, ops: Collection[str]) -> bool:
    return any(item.op in ops for item in flatten(expand_custom(block)).nodes)


def _has_skinny(block: Graph) -> bool:
    flat = flatten(expand_custom(block))
    return any(is_skinny(*(flat.types[i].shape for i in item.operands)) for item in flat.nodes if item.op == "matmul")


def like(schedule: Schedules, graph: Graph) -> Schedules:
    """The schedule for another µGraph of the same structure; the standard one if the number of kernels differs."""
    standard = _standard(graph)
    if len(schedule) != len(standard):
        return standard
    return tuple(
        replace(new, swapped=old.swapped and _has_skinny(block))
        for old, new, block in zip(schedule, standard, graph.blocks, strict=True)
    )


def schedules(variant: Variant, allowed: Sequence[int] | None) -> Iterator[Job]:
    """Warps and stages, one kernel at a time."""
    for number, block in enumerate(variant.graph.blocks):
        least = written_warps(block, "block") // 4
        for warps in allowed or ((least, 2 * least, 4 * least, 8 * least) if block.loop == 1 else (2, 4, 8)):
            for stages in (2, 3, 4, 5, 6) if block.loop > 1 else (1,):
                yield _changed(variant, number, num_warps=warps, num_stages=stages)


def _changed(variant: Variant, number: int, **changes: Any) -> Job:
    return Job(variant.graph, variant.structure, changed(variant.schedule, number, **changes))


def _loaded(block: Graph) -> list[Phase]:
    """The phase of each input that is loaded."""
    flat = flatten(expand_custom(block))
    read = {operand for item in flat.nodes for operand in item.operands}
    return [flat.phases[values[0]] for item, values in flat.numbered() if item.op == "input" and values[0] in read]


def details(variant: Variant, target: str = "sm_90") -> Iterator[Job]:
    """Choices of little effect, on and off, one kernel at a time; dependent launches of all kernels together."""
    inner = variant.graph.blocks
    if len(inner) > 1 and target in DEPENDENT_LAUNCHES:
        on = not variant.schedule[0].dependent_launch
        yield Job(variant.graph, variant.structure, tuple(replace(it, dependent_launch=on) for it in variant.schedule))
    for number, block in enumerate(inner):
        names = []
        if _has(block, _EXPONENTIALS):
            names.append("exp2")
        if _has(block, _DIVISIONS):
            names.append("use_reciprocal")
        if sum(phase is Phase.PROLOGUE for phase in _loaded(block)) > 1:
            names.append("hoist_loads")
        if number + 1 < len(inner) and scaled_half_outputs(block, range(len(block.outputs))):
            names.append("half_partials")
        if _has_skinny(block):
            names.append("swapped")
        for name in names:
            yield _changed(variant, number, **{name: not getattr(variant.schedule[number], name)})


def merged(variant: Variant, faster: Sequence[Schedules]) -> Iterator[Job]:
    """The variant with the changes of faster schedules of the same µGraph, of each field of a kernel the first change.

    Kernels run sequentially, and most choices are independent: their gains may add up.
    """
    base = list(variant.schedule)
    taken: set[tuple[str, int]] = set()
    for schedule in faster:
        for number, (old, new) in enumerate(zip(variant.schedule, schedule, strict=True)):
            changes: dict[str, dict[str, Any]] = {}
            for entry in fields(Schedule):
                if (value := getattr(new, entry.name)) != getattr(old, entry.name):
                    changes.setdefault(_COUPLED_FIELDS.get(entry.name, entry.name), {})[entry.name] = value
            for group in changes.keys() - {group for group, kernel in taken if kernel == number}:
                taken.add((group, number))
                base[number] = replace(base[number], **changes[group])
    if len(taken) > 1:
        yield Job(variant.graph, variant.structure, tuple(base))


__all__ = [
    "Job",
    "Variant",
    "details",
    "diverse",
    "first",
    "like",
    "merged",
    "sample",
    "schedules",
]
