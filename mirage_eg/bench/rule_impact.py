"""The impact of a rule file: e-graphs, visited states and structures of each workload, with the file and without."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_eg.bench.search_programs import SearchProgram
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.search.structure import SplitReduction, Structure
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search


@dataclass(frozen=True, slots=True)
class Side:
    """One search: e-nodes and saturation are sums over the splits."""

    nodes: int
    milliseconds: float
    visited: int
    structures: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Impact:
    """A workload without and with the file; `found` and `lost` are the structures of only one of the two searches."""

    workload: str
    without: Side
    with_: Side
    found: tuple[str, ...]
    lost: tuple[str, ...]


def impact(
    without: Rulebook,
    with_: Rulebook,
    programs: Sequence[SearchProgram],
    limits: SearchLimits,
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Impact, ...]:
    """Search each program with both rulebooks.

    Raises:
        RuleError: the laws hit a limit of saturation.
    """
    impacts = []
    for part in programs:
        before, after = (
            search(
                part.named.program,
                part.axes,
                rulebook,
                limits,
                on_progress=lambda done, total, _: on_progress(part.name, done, total),  # noqa: B023
            )
            for rulebook in (without, with_)
        )
        old, new = _keys(before), _keys(after)
        found, lost = [new[key] for key in new if key not in old], [old[key] for key in old if key not in new]
        impacts.append(Impact(part.name, _side(before), _side(after), tuple(found), tuple(lost)))
    return tuple(impacts)


def _side(result: SearchResult) -> Side:
    saturations = [record.saturation for record in result.records]
    return Side(
        sum(saturation.nodes for saturation in saturations),
        1000 * sum(saturation.seconds for saturation in saturations),
        sum(record.visited for record in result.records),
        len(result.structures) + len(result.split_reductions),
        all(record.complete for record in result.records),
    )


def _keys(result: SearchResult) -> dict[object, str]:
    """Descriptions of the structures by their canonical form."""
    structures: list[Structure | SplitReduction] = [*result.structures, *result.split_reductions]
    return {_key(item): _describe(item) for item in structures}


def _key(item: Structure | SplitReduction) -> object:
    return (_key(item.first), _key(item.last)) if isinstance(item, SplitReduction) else canonical(item)


def canonical(structure: Structure) -> object:
    """The structure without the order of its steps."""
    values: list[object] = [(load.input, load.looped) for load in structure.loads]
    for step in structure.steps:
        operands = [values[i] for i in step.operands]
        if step.op in _SYMMETRIC:
            operands.sort(key=repr)
        values.append((step.op, tuple(operands), step.constants, tuple(sorted(step.reduced))))
    return (structure.split, frozenset(values), tuple(values[i] for i in structure.outputs))


_SYMMETRIC = ("add", "mul", "matmul")  # a structure names the contracted axes of a matmul


def _describe(item: Structure | SplitReduction) -> str:
    if isinstance(item, SplitReduction):
        return f"{_describe(item.first)}; then {_describe(item.last)}"
    loop = "no loop" if item.split.looped is None else "looped"
    return f"{len(item.steps)} ops, {loop}: {', '.join(step.op for step in item.steps)}"
