"""What tuning tries: schedules of µGraphs, at first and near those that were fast."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

from mirage_eg.backends.triton.emit import Schedule
from mirage_eg.backends.triton.float16_partials import halves_of
from mirage_eg.backends.triton.fused_combine import can_join
from mirage_eg.backends.triton.tiles import flatten, is_skinny
from mirage_eg.backends.triton.warps import written_warps
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import NEW_DIM, Graph, Phase

_THINGS = {"num_warps": "launch", "num_stages": "launch"}  # choices that are tried together
_EXPONENTIALS, _DIVISIONS = ("exp",), ("div",)  # ops of expanded graphs


@dataclass(frozen=True, slots=True)
class Variant:
    """A µGraph with a schedule, as source that compiles, or the reason why it does not."""

    graph: Graph
    structure: int
    schedule: Schedule
    source: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A µGraph of a structure, with a schedule to compile it with."""

    graph: Graph
    structure: int
    schedule: Schedule


def spread(ranked: Sequence[Sequence[Graph]], most: int) -> list[tuple[Graph, int]]:
    """The cheapest of each structure, then one of other extents from each, and so on."""
    samples = [[(graph, number) for graph in sample(graphs, 8)] for number, graphs in enumerate(ranked)]
    rounds = zip_longest(*samples)
    return [entry for entries in rounds for entry in entries if entry is not None][:most]


def sample(graphs: Sequence[Graph], most: int) -> list[Graph]:
    """Half are the cheapest, half are spread over the cheaper half of the rest: the cost model is crude."""
    if len(graphs) <= most:
        return list(graphs)
    cheapest, rest = list(graphs[: (most + 1) // 2]), graphs[(most + 1) // 2 :]
    wanted = most - len(cheapest)
    half = rest[: max(wanted, len(rest) // 2)]
    return cheapest + [half[i * len(half) // wanted] for i in range(wanted)]


def first(graph: Graph, structure: int) -> Iterator[Job]:
    """The schedules with which a µGraph is tried at first."""
    plain = _standard(graph)
    yield Job(graph, structure, plain)
    skinny = tuple(map(_has_skinny, graph.blocks))
    if any(skinny):
        yield Job(graph, structure, replace(plain, swapped=skinny))


def _standard(graph: Graph) -> Schedule:
    """Powers of two and reciprocals from the start: tl.exp and divisions compile to several more instructions an element."""
    inner = graph.blocks
    exponentials, divisions = (tuple(_has(block, ops) for block in inner) for ops in (_EXPONENTIALS, _DIVISIONS))
    return Schedule(
        num_warps=_written(graph),
        num_stages=tuple(map(_stages, inner)),
        exp2=exponentials if any(exponentials) else False,
        reciprocals=divisions if any(divisions) else False,
    )


def _has(block: Graph, ops: Collection[str]) -> bool:
    return any(item.op in ops for item in flatten(expand(block)).nodes)


def _written(graph: Graph) -> tuple[int, ...]:
    return tuple(written_warps(block, "block") for block in graph.blocks)


def _stages(block: Graph) -> int:
    return 4 if block.loop > 1 else 1


def _has_skinny(block: Graph) -> bool:
    flat = flatten(expand(block))
    return any(is_skinny(*(flat.types[i].shape for i in item.operands)) for item in flat.nodes if item.op == "matmul")


def like(schedule: Schedule, graph: Graph) -> Schedule:
    """The schedule for another µGraph of the same structure; one of more or fewer kernels gets its own."""
    standard, swapped, inner = _standard(graph), schedule.swapped, graph.blocks
    if not isinstance(swapped, tuple) or len(swapped) != len(inner):
        return standard
    return replace(standard, swapped=tuple(old and _has_skinny(block) for old, block in zip(swapped, inner, strict=True)))


def schedules(variant: Variant, allowed: Sequence[int] | None) -> Iterator[Job]:
    """Warps and stages, one kernel at a time."""
    for number, block in enumerate(variant.graph.blocks):
        for warps in allowed or ((1, 2, 4, 8) if block.loop == 1 else (2, 4, 8)):
            for stages in (2, 3, 4, 5, 6) if block.loop > 1 else (1,):
                schedule = replace(
                    variant.schedule,
                    num_warps=changed(variant.schedule.num_warps, number, warps),
                    num_stages=changed(variant.schedule.num_stages, number, stages),
                )
                yield Job(variant.graph, variant.structure, schedule)


def _loaded(block: Graph) -> list[Phase]:
    """The phase of each input that is loaded."""
    flat = flatten(expand(block))
    read = {operand for item in flat.nodes for operand in item.operands}
    return [flat.phases[values[0]] for item, values in flat.numbered() if item.op == "input" and values[0] in read]


def details(variant: Variant) -> Iterator[Job]:
    """What rarely matters, on and off, one kernel at a time."""
    inner = variant.graph.blocks
    for number, block in enumerate(inner):
        names = []
        if sum(extent > 1 for extent in block.grid) > 1:
            names.append("last_first")
        if _has(block, _EXPONENTIALS):
            names.append("exp2")
        if _has(block, _DIVISIONS):
            names.append("reciprocals")
        if sum(phase is Phase.PROLOGUE for phase in _loaded(block)) > 1:
            names.append("loads_first")
        if number + 1 < len(inner) and halves_of(block, range(len(block.outputs))):
            names.append("half_partials")
        if _has_skinny(block):
            names.append("swapped")
        for name in names:
            flags = getattr(variant.schedule, name) or (False,) * len(inner)
            change: dict[str, Any] = {name: changed(flags, number, not flags[number])}
            yield Job(variant.graph, variant.structure, replace(variant.schedule, **change))


def joined(variant: Variant, graphs: Sequence[Graph], allowed: Sequence[int] | None) -> Iterator[Job]:
    """A kernel that splits a reduction joined with the next one, whose extents may have to be other ones for that."""
    nodes = [number for number, item in enumerate(variant.graph.nodes) if item.op == "block"]
    for place, number in enumerate(nodes[:-1]):
        block = variant.graph.nodes[number]["graph"]
        if not any(NEW_DIM in item["omap"] for item in block.outputs):
            continue
        alike = [
            graph for graph in graphs if len(graph.blocks) == len(nodes) and graph.nodes[number] == variant.graph.nodes[number]
        ]
        fitting = next((graph for graph in [variant.graph, *alike] if can_join(graph, number)), None)
        if fitting is not None:
            flags = variant.schedule.joined or (False,) * len(nodes)
            for warps in allowed or (2, 4, 8):
                few_or_many = changed(variant.schedule.num_warps, place, warps)
                schedule = replace(variant.schedule, joined=changed(flags, place, True), num_warps=few_or_many)
                yield Job(fitting, variant.structure, schedule)


def merged(variant: Variant, faster: Sequence[Schedule]) -> Iterator[Job]:
    """The variant with what schedules of the same µGraph change in it, the first of them that changes a thing of a kernel.

    Kernels run one after the other, and most choices do not touch each other: what each gains may be had together.
    """
    count = len(variant.graph.blocks)
    base = {
        entry.name: _each(getattr(variant.schedule, entry.name), count) for entry in fields(Schedule) if entry.name != "safe"
    }
    made: dict[str, Any] = dict(base)
    taken: set[tuple[str, int]] = set()
    for schedule in faster:
        for number in range(count):
            values = {name: _each(getattr(schedule, name), count)[number] for name in base}
            apart = [name for name, value in values.items() if value != base[name][number]]
            for thing in {_THINGS.get(name, name) for name in apart} - {thing for thing, place in taken if place == number}:
                taken.add((thing, number))
                for name in apart:
                    if _THINGS.get(name, name) == thing:
                        made[name] = changed(made[name], number, values[name])
    if len(taken) > 1:
        yield Job(variant.graph, variant.structure, replace(variant.schedule, **made))


def _each(value: Any, count: int) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,) * count


def changed(values: Any, number: int, value: int) -> tuple[Any, ...]:
    """The values with another one in this place."""
    return (*values[:number], value, *values[number + 1 :])


__all__ = [
    "Job",
    "Variant",
    "changed",
    "details",
    "first",
    "joined",
    "like",
    "merged",
    "sample",
    "schedules",
    "spread",
]
