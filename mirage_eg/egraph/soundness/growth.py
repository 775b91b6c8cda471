"""The cost of laws: the e-graphs of programs under every split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mirage_eg.egraph.expression import Expression, express, splits
from mirage_eg.egraph.oracle import BuildOracle, Oracle
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Size:
    """The largest e-graph of a workload's splits: e-nodes, classes, milliseconds of saturation."""

    workload: str
    nodes: int
    classes: int
    milliseconds: float


@cache
def targets(program: Graph, domain: str) -> tuple[tuple[str, Expression], ...]:
    """A program's expressions with the names of their splits."""
    program = expand(program)
    axes = infer_axes(program)
    return tuple((split.label(axes), express(program, axes, split, domain)) for split in splits(axes))


def oracles(
    build: BuildOracle, domain: str, programs: Mapping[str, Graph], on_progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[str, str, Oracle]]:
    """The oracle for each program and split."""
    jobs = [(name, *target) for name, program in programs.items() for target in targets(program, domain)]
    for done, (name, split, target) in enumerate(jobs, 1):
        yield name, split, build(target)
        if on_progress is not None:
            on_progress(done, len(jobs))


def sizes(measured: Sequence[tuple[str, str, Oracle]]) -> tuple[Size, ...]:
    """The largest e-graph of each workload."""
    grouped: dict[str, list[Oracle]] = {}
    for workload, _, oracle in measured:
        grouped.setdefault(workload, []).append(oracle)
    return tuple(
        Size(
            workload,
            max(oracle.saturation.nodes for oracle in group),
            max(oracle.saturation.classes for oracle in group),
            1000 * max(oracle.saturation.seconds for oracle in group),
        )
        for workload, group in grouped.items()
    )
