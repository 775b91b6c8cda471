"""What tuning tries: schedules of µGraphs, at first and near those that were fast."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mirage_eg.backends.emit import Schedule
from mirage_eg.backends.emit_combined import can_join
from mirage_eg.backends.emit_descriptors import HAS_TMA
from mirage_eg.backends.emit_halves import halves_of
from mirage_eg.backends.emit_tiles import flatten, is_skinny
from mirage_eg.backends.warps import written_warps
from mirage_eg.devices import device_for
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import NEW_DIM, Graph, Phase

_MANY = (16, 32)  # warps
_EXPONENTIALS, _DIVISIONS = ("exp",), ("div",)  # ops of expanded graphs


@dataclass(frozen=True, slots=True)
class Variant:
    """A µGraph with a schedule, as source that compiles, or the reason why it does not.

    `by_model`: it was not even compiled, for the model of shared memory is sure that it does not fit.
    """

    graph: Graph
    structure: int
    schedule: Schedule
    source: str
    problem: str | None
    by_model: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A µGraph of a structure, with a schedule to compile it with."""

    graph: Graph
    structure: int
    schedule: Schedule


def blocks(graph: Graph) -> list[Graph]:
    """The block graphs of a kernel graph, in order."""
    return [item["graph"] for item in graph.nodes if item.op == "block"]


def first(graph: Graph, structure: int) -> Iterator[Job]:
    """The schedules with which a µGraph is tried at first."""
    plain = _standard(graph)
    yield Job(graph, structure, plain)
    skinny = tuple(map(_has_skinny, blocks(graph)))
    if any(skinny):
        yield Job(graph, structure, replace(plain, swapped=skinny))


def _standard(graph: Graph) -> Schedule:
    """Powers of two and reciprocals from the start: tl.exp and divisions compile to several more instructions an element."""
    inner = blocks(graph)
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
    return tuple(written_warps(block, "block") for block in blocks(graph))


def _stages(block: Graph) -> int:
    return 4 if block.loop > 1 else 1


def _has_skinny(block: Graph) -> bool:
    flat = flatten(expand(block))
    return any(is_skinny(*(flat.types[i].shape for i in item.operands)) for item in flat.nodes if item.op == "matmul")


def like(schedule: Schedule, graph: Graph) -> Schedule:
    """The schedule for another µGraph of the same structure: as many kernels, perhaps without a loop."""
    swapped = schedule.swapped if isinstance(schedule.swapped, tuple) else ()
    return replace(
        _standard(graph),
        swapped=tuple(old and _has_skinny(block) for old, block in zip(swapped, blocks(graph), strict=True))
        if swapped
        else False,
    )


def schedules(variant: Variant, allowed: Sequence[int] | None) -> Iterator[Job]:
    """Warps and stages, one kernel at a time."""
    for number, block in enumerate(blocks(variant.graph)):
        for warps in allowed or (_warps(block) if block.loop == 1 else (2, 4, 8)):
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


def _warps(block: Graph) -> tuple[int, ...]:
    """Without a loop: also many, as long as each thread has the eight elements of a wide load of some tile."""
    largest = max(prod(type_.shape) for type_ in flatten(expand(block)).types)
    return (1, 2, 4, 8, *(warps for warps in _MANY if largest >= warps * 32 * 8))


def details(variant: Variant, target: str) -> Iterator[Job]:
    """What rarely matters, on and off, one kernel at a time."""
    inner, multiprocessors = blocks(variant.graph), device_for(target).multiprocessors
    for number, block in enumerate(inner):
        names = []
        if block.loop > 1 and target in HAS_TMA:
            names.append("descriptors")
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
        for programs in (multiprocessors, 2 * multiprocessors, 4 * multiprocessors):
            if programs < prod(block.grid):
                given = variant.schedule.programs or (0,) * len(inner)
                schedule = replace(variant.schedule, programs=changed(given, number, programs))
                yield Job(variant.graph, variant.structure, schedule)


def joined(variant: Variant, graphs: Sequence[Graph], allowed: Sequence[int] | None) -> Iterator[Job]:
    """A kernel that splits a reduction joined with the next one, whose extents may have to be other ones for that."""
    nodes = [number for number, item in enumerate(variant.graph.nodes) if item.op == "block"]
    for place, number in enumerate(nodes[:-1]):
        block = variant.graph.nodes[number]["graph"]
        if not any(NEW_DIM in item["omap"] for item in block.outputs):
            continue
        alike = [graph for graph in graphs if len(graph.nodes) > number and graph.nodes[number] == variant.graph.nodes[number]]
        fitting = next((graph for graph in [variant.graph, *alike] if can_join(graph, number)), None)
        if fitting is not None:
            flags = variant.schedule.joined or (False,) * len(nodes)
            for warps in allowed or (2, 4, 8):
                few_or_many = changed(variant.schedule.num_warps, place, warps)
                schedule = replace(variant.schedule, joined=changed(flags, place, True), num_warps=few_or_many)
                yield Job(fitting, variant.structure, schedule)


def changed(values: Any, number: int, value: int) -> tuple[Any, ...]:
    """The values with another one in this place."""
    return (*values[:number], value, *values[number + 1 :])


__all__ = ["Job", "Variant", "blocks", "changed", "details", "first", "joined", "like", "schedules"]
