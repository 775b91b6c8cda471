"""The trace of a search: a sample of its candidates by the stage at which each ended (`optimize --trace FILE`, JSON lines).

The header counts the candidates of each stage; then one line for each sampled candidate, in the order of the stages. A
candidate of the search is an op on classes of the e-graph; later candidates are structures, then µGraphs. The file has at most
`MOST` candidates of each stage and split, evenly spaced in their order; `fraction` is their share of all. A line of a search
within a segment names the `segment`; of these there are at most `MOST_OF_SEGMENT`. Equal runs write equal files.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_eg.egraph.expression import Expression, Split, Tree
from mirage_eg.egraph.forms import Forms
from mirage_eg.egraph.oracle import BuildOracle, Oracle
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.search.prune_reasons import STAGES
from mirage_eg.search.split_space import Listener
from mirage_eg.search.structure import AnyStructure, SplitReduction, Structure
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search

FORMAT, VERSION = "mirage_eg trace", 2
MOST, MOST_OF_SEGMENT = 200, 8


@dataclass(slots=True)
class Sample:
    """Every `stride`-th item of a stream, at most `most`: the stride doubles whenever the sample is full."""

    most: int = MOST
    stride: int = 1
    count: int = 0
    items: list[Any] = field(default_factory=list)

    def add(self, make: Callable[[], Any]) -> None:
        """Count one item; `make` is called if the item is sampled."""
        if self.count % self.stride == 0:
            if len(self.items) == self.most:
                self.items = self.items[::2]
                self.stride *= 2
            if self.count % self.stride == 0:
                self.items.append(make())
        self.count += 1


@dataclass(frozen=True, slots=True)
class Traced:
    """The candidates that ended at one stage: their number, and the lines of a sample."""

    stage: str
    split: str | None
    count: int
    lines: tuple[tuple[tuple[str, Any], ...], ...]  # names and values
    segment: str | None = None


class Tracer:
    """Collects candidates by the stage at which they ended."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._samples: dict[tuple[str, str | None], Sample] = {}
        self._others: list[Traced] = []

    def add(self, stage: str, make: Callable[[], dict[str, Any]], split: str | None = None) -> None:
        """Add one candidate that ended at a stage; `make` gives its line."""
        assert stage in STAGES, stage
        self._samples.setdefault((stage, split), Sample(self._most)).add(make)

    def count(self, stage: str, more: int) -> None:
        """Count candidates that ended at a stage, without lines."""
        if more:
            self._samples.setdefault((stage, None), Sample(self._most)).count += more

    def extend(self, traced: Iterable[Traced]) -> None:
        """Add the results of another tracer."""
        self._others += traced

    def listener(self, split: str, names: Callable[[], dict[int, str]]) -> Listener:
        """The listener of the search of one split; `names` gives the text of each class, once the oracle is built."""
        memo: dict[int, str] = {}

        def on_candidate(stage: str, op: str, classes: tuple[int, ...]) -> None:
            def make() -> dict[str, Any]:
                if not memo:
                    memo.update(names())
                return {"op": op, "operands": [memo.get(class_, f"class {class_}") for class_ in classes]}

            self.add(stage, make, split)

        return on_candidate

    def result(self) -> tuple[Traced, ...]:
        """All samples, frozen."""
        own = (
            Traced(stage, split, sample.count, tuple(tuple(line.items()) for line in sample.items))
            for (stage, split), sample in self._samples.items()
        )
        return (*self._others, *own)


def traced_search(
    program: Graph,
    axes: Axes,
    rulebook: Rulebook,
    limits: SearchLimits,
    split: Split,
    build: BuildOracle,
    tracer: Tracer | None,
) -> SearchResult:
    """Search one split; its candidates go to `tracer`."""
    oracles: list[Oracle] = []

    def build_and_keep(target: Expression) -> Oracle:
        oracles[:] = [build(target)]
        return oracles[0]

    def names() -> dict[int, str]:
        return class_names(oracles[0], program.input_names)

    listener = tracer.listener(split.label(axes), names) if tracer else None
    return search(program, axes, rulebook, limits, on_candidate=listener, choices=(split,), build=build_and_keep)


def structure_line(structure: AnyStructure, names: Sequence[str] = ()) -> dict[str, Any]:
    """The line of a structure or of a split-reduction pair; `names` are those of the inputs, which else have numbers."""
    kernels = (structure.first, structure.last) if isinstance(structure, SplitReduction) else (structure,)
    return {"kernels": [_kernel_lines(kernel, names) for kernel in kernels], "proved": structure.proved}


def _kernel_lines(structure: Structure, names: Sequence[str]) -> list[str]:
    """The loads, then the steps, numbered."""
    named = dict(enumerate(names))
    loads = [f"load {named.get(load.input, load.input)}{' looped' if load.looped else ''}" for load in structure.loads]
    steps = [" ".join([step.op, *(f"%{i}" for i in step.operands), *map(str, step.constants)]) for step in structure.steps]
    return [f"%{number} {line}" for number, line in enumerate([*loads, *steps])]


def trace_text(program: str, traced: Sequence[Traced]) -> str:
    """The file: a header, then the candidates."""
    whole, inside = Counter[str](), Counter[str]()
    for entry in traced:
        (whole if entry.segment is None else inside)[entry.stage] += entry.count
    header = {
        "format": FORMAT,
        "version": VERSION,
        "program": program,
        "candidates": {stage: whole[stage] for stage in STAGES if stage in whole},
        "candidates_in_segments": {stage: inside[stage] for stage in STAGES if stage in inside},
        "stages": {stage: text for stage, text in STAGES.items() if stage in whole or stage in inside},
    }
    order = {stage: number for number, stage in enumerate(STAGES)}
    lines = [header, *_lines(sorted(traced, key=lambda entry: order[entry.stage]))]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _lines(traced: Iterable[Traced]) -> Iterable[dict[str, Any]]:
    for entry in traced:
        names = {"stage": entry.stage, "segment": entry.segment, "split": entry.split}
        source = {name: value for name, value in names.items() if value is not None}
        for line in entry.lines:
            yield source | dict(line) | {"fraction": round(len(entry.lines) / entry.count, 6)}


def class_names(oracle: Oracle, inputs: Sequence[str]) -> dict[int, str]:
    """For each class of an e-graph its smallest expression as text."""

    def text(tree: Tree) -> str:
        if tree[0] == "Var":
            return str(tree[1])
        return f"{tree[0]}({', '.join(text(part) if isinstance(part, tuple) else str(part) for part in tree[1:])})"

    return {class_: text(tree) for class_, tree in Forms(oracle, inputs).cheapest().items()}
