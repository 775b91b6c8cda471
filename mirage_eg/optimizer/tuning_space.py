"""The search space of tuning: schedules of µGraphs, the first ones and neighbours of fast ones."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import inf, log2
from typing import Any, TypeVar

from mirage_eg.backends.triton.schedule import Schedule, Schedules, changed
from mirage_eg.backends.triton.stages import usual_stages
from mirage_eg.backends.triton.targets import DEPENDENT_LAUNCHES
from mirage_eg.backends.triton.tiles import flatten, is_skinny
from mirage_eg.backends.triton.warps import written_warps
from mirage_eg.ir.expand import expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Phase
from mirage_eg.ir.op.elementwise import EXPONENTIALS, QUOTIENTS
from mirage_eg.ir.ops import Kind

_Choice = TypeVar("_Choice")


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


def sample(choices: Sequence[_Choice], most: int) -> list[_Choice]:
    """One half are the cheapest, the other is sampled from the cheaper half of the others: the cost model is crude."""
    if len(choices) <= most:
        return list(choices)
    cheapest, rest = list(choices[: (most + 1) // 2]), choices[(most + 1) // 2 :]
    wanted = most - len(cheapest)
    half = rest[: max(wanted, len(rest) // 2)]
    return cheapest + [half[i * len(half) // wanted] for i in range(wanted)]


def distance(one: Graph, other: Graph) -> float:
    """How often grid dims and loops are doubled or halved from one µGraph to another; infinite for other numbers of kernels."""
    if len(one.blocks) != len(other.blocks):
        return inf
    pairs = zip(one.blocks, other.blocks, strict=True)
    extents = [pair for mine, own in pairs for pair in ((mine.loop, own.loop), *zip_longest(mine.grid, own.grid, fillvalue=1))]
    return sum(abs(log2(mine / own)) for mine, own in extents)


def first(graph: Graph, structure: int) -> Iterator[Job]:
    plain = tuple(map(_standard, graph.blocks))
    yield Job(graph, structure, plain)
    swapped = tuple(replace(entry, swapped=_has_skinny(block)) for entry, block in zip(plain, graph.blocks, strict=True))
    if swapped != plain:
        yield Job(graph, structure, swapped)


def _standard(block: Graph) -> Schedule:
    """Powers of two and reciprocals from the start: tl.exp and divisions compile to several more instructions an element."""
    return Schedule(
        num_warps=written_warps(block, "block"),
        num_stages=usual_stages(block, 4) if block.loop > 1 else 1,
        exp2=_has(block, EXPONENTIALS),
        use_reciprocal=_has(block, QUOTIENTS),
    )


def _has(block: Graph, ops: Collection[str]) -> bool:
    return any(item.op in ops for item in flatten(expand_custom(block)).nodes)


def _has_skinny(block: Graph) -> bool:
    flat = flatten(expand_custom(block))
    return any(is_skinny(*(flat.types[i].shape for i in item.operands)) for item in flat.nodes if item.kind is Kind.MATMUL)


def like(schedules: Sequence[Schedule], blocks: Sequence[Graph]) -> Schedules:
    """The schedules for other kernels of the same part of a µGraph; the standard ones if their number differs."""
    standard = tuple(map(_standard, blocks))
    if len(schedules) != len(standard):
        return standard
    return tuple(
        replace(new, swapped=old.swapped and _has_skinny(block))
        for old, new, block in zip(schedules, standard, blocks, strict=True)
    )


def schedules(variant: Variant, allowed: Sequence[int] | None) -> Iterator[Job]:
    """Warps and stages, one kernel at a time."""
    for number, block in enumerate(variant.graph.blocks):
        least = written_warps(block, "block") // 4
        for warps in allowed or ((least, 2 * least, 4 * least, 8 * least) if block.loop == 1 else (2, 4, 8)):
            for stages in _stages(block):
                yield _changed(variant, number, num_warps=warps, num_stages=stages)


def _stages(block: Graph) -> Sequence[int]:
    """Stages of a loop; without products one stage loads into registers, and other blocks hide its latency."""
    if block.loop == 1:
        return (1,)
    return (2, 3, 4, 5, 6) if any(item.kind is Kind.MATMUL for item in block.nodes) else (1, 2, 3, 4)


def _changed(variant: Variant, number: int, **changes: Any) -> Job:
    return Job(variant.graph, variant.structure, changed(variant.schedule, number, **changes))


def _loaded(block: Graph) -> list[Phase]:
    """The phase of each input that is loaded."""
    flat = flatten(expand_custom(block))
    read = {operand for item in flat.nodes for operand in item.operands}
    return [flat.phases[values[0]] for item, values in flat.numbered() if item.op == "input" and values[0] in read]


def launched_dependently(variant: Variant, target: str) -> Iterator[Job]:
    """All kernels started before the one before them ends, where a program has several and the target can."""
    if len(variant.schedule) > 1 and target in DEPENDENT_LAUNCHES:
        yield Job(variant.graph, variant.structure, tuple(replace(it, dependent_launch=True) for it in variant.schedule))


def details(variant: Variant) -> Iterator[Job]:
    """Choices of little effect, on and off, one kernel at a time."""
    inner = variant.graph.blocks
    for number, block in enumerate(inner):
        names = []
        if _has(block, EXPONENTIALS):
            names.append("exp2")
        if _has(block, QUOTIENTS):
            names.append("use_reciprocal")
        if sum(phase is Phase.PROLOGUE for phase in _loaded(block)) > 1:
            names.append("hoist_loads")
        if _has_skinny(block):
            names.append("swapped")
        for name in names:
            yield _changed(variant, number, **{name: not getattr(variant.schedule[number], name)})


def jointly(variant: Variant, jobs: Iterable[Job]) -> Iterator[Job]:
    """The schedules of these jobs, each of which changes one kernel of the variant, with a change of every kernel in each."""
    choices: list[list[Schedule]] = [[] for _ in variant.schedule]
    for job in jobs:
        for tried, old, new in zip(choices, variant.schedule, job.schedule, strict=True):
            if new != old:
                tried.append(new)
    for together in zip_longest(*choices):
        schedule = tuple(old if new is None else new for old, new in zip(variant.schedule, together, strict=True))
        yield Job(variant.graph, variant.structure, schedule)
