"""Where candidates died: a sample of them as JSON lines, for research on pruning (`optimize --trace FILE`).

The first line says what the file is and how many candidates ended at each stage; then one line each, in the order of the
stages. A candidate of the search is an op on expressions of the e-graph; later ones are structures, and µGraphs with extents.
Of each stage and split at most `MOST` are written, evenly spread over all in the order of their making; `fraction` says which
part of them the lines of this stage and split are. Segments, of which kernels are made, have searches of their own: each line
of theirs names the `segment`, of each stage and split there are at most `MOST_OF_SEGMENT`. The same run gives the same file.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirage_eg.egraph.expression import op_of
from mirage_eg.ir.ops import OPS

if TYPE_CHECKING:
    from mirage_eg.egraph.oracle import Oracle

FORMAT, VERSION = "mirage_eg trace", 1
MOST, MOST_OF_SEGMENT = 200, 8

STAGES = {
    "query": "no expression equal to the program has it as a part",
    "axes": "no value of the program has its axes together",
    "value twice": "the block holds that value already",
    "leads nowhere": "no output can be made of it",
    "no loop": "belongs to the split that has no loop",
    "loads": "too many inputs loaded whole besides looped, or too many partial results",
    "too many ops": "the block is full",
    "ops left": "more ops to an output than are left",
    "forced ops": "more ops that every way to an output needs than are left",
    "not kept": "as many ways to make that value as are kept had been found",
    "kept": "went on",
    "no kernel": "a segment of the program that no block graph holds",
    "no way": "a segment with kernels that is on none of the ways kept",
    "field check": "a structure whose small instance differs from the program's in random fields",
    "tile limits": "a structure without a µGraph that a block can hold or that passes the filters",
    "not tried": "a structure that loads as several smaller ones do",
    "not among top": "a µGraph that others of the cost model's order stood before",
    "verification": "a µGraph that differs at full size",
    "compile": "a µGraph that the compiler refused",
    "ranked": "a µGraph of the result",
    "timed": "a µGraph of the result, timed on the GPU",
}


@dataclass(slots=True)
class Sample:
    """Every `stride`-th of what comes, at most `most`: the stride doubles whenever there are more."""

    most: int = MOST
    stride: int = 1
    count: int = 0
    kept: list[Any] = field(default_factory=list)

    def add(self, make: Callable[[], Any]) -> None:
        """Count one more; it is made if it is kept."""
        if self.count % self.stride == 0:
            if len(self.kept) == self.most:
                self.kept = self.kept[::2]
                self.stride *= 2
            if self.count % self.stride == 0:
                self.kept.append(make())
        self.count += 1


@dataclass(frozen=True, slots=True)
class Traced:
    """What a sample of one stage came to: how many there were, and lines of some of them."""

    stage: str
    split: str | None
    count: int
    lines: tuple[tuple[tuple[str, Any], ...], ...]  # names and values
    segment: str | None = None


class Tracer:
    """Collects candidates; `of_search` makes what the search of one split tells its candidates to."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._samples: dict[tuple[str, str | None], Sample] = {}
        self._told: list[Traced] = []

    def add(self, stage: str, make: Callable[[], dict[str, Any]], split: str | None = None) -> None:
        """One candidate that ended at a stage."""
        assert stage in STAGES, stage
        self._samples.setdefault((stage, split), Sample(self._most)).add(make)

    def count(self, stage: str, more: int) -> None:
        """Candidates that ended at a stage and are not at hand to be shown."""
        if more:
            self._samples.setdefault((stage, None), Sample(self._most)).count += more

    def extend(self, traced: Iterable[Traced]) -> None:
        """What another tracer has collected."""
        self._told += traced

    def of_search(self, split: str, names: Callable[[], dict[int, str]]) -> Callable[[str, str, tuple[int, ...]], None]:
        """What hears of each candidate of a split: its fate, op, and the classes of its operands."""
        known: dict[int, str] = {}

        def hear(fate: str, op: str, classes: tuple[int, ...]) -> None:
            def make() -> dict[str, Any]:
                if not known:
                    known.update(names())
                return {"op": op, "operands": [known.get(class_, f"class {class_}") for class_ in classes]}

            self.add(fate, make, split)

        return hear

    def result(self) -> tuple[Traced, ...]:
        """All that was collected, frozen."""
        own = (
            Traced(stage, split, sample.count, tuple(tuple(line.items()) for line in sample.kept))
            for (stage, split), sample in self._samples.items()
        )
        return (*self._told, *own)


def trace_text(program: str, traced: Sequence[Traced]) -> str:
    """The file: a header, then the candidates."""
    whole, inside = Counter[str](), Counter[str]()
    for entry in traced:
        (whole if entry.segment is None else inside)[entry.stage] += entry.count
    header = {
        "format": FORMAT,
        "version": VERSION,
        "program": program,
        "ended": {stage: whole[stage] for stage in STAGES if stage in whole},
        "ended_in_segments": {stage: inside[stage] for stage in STAGES if stage in inside},
        "meaning": {stage: meaning for stage, meaning in STAGES.items() if stage in whole or stage in inside},
    }
    order = {stage: place for place, stage in enumerate(STAGES)}
    lines = [header, *_lines(sorted(traced, key=lambda entry: order[entry.stage]))]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _lines(traced: Iterable[Traced]) -> Iterable[dict[str, Any]]:
    for entry in traced:
        names = {"stage": entry.stage, "segment": entry.segment, "split": entry.split}
        where = {name: value for name, value in names.items() if value is not None}
        for line in entry.lines:
            yield where | dict(line) | {"fraction": round(len(entry.lines) / entry.count, 6)}


def class_names(oracle: "Oracle", inputs: Sequence[str]) -> dict[int, str]:
    """For each class of an e-graph the smallest expression of it, as text."""
    best: dict[int, tuple[int, str]] = {}
    changed = True
    while changed:
        changed = False
        for (constructor, *arguments), class_ in oracle.table.items():
            op = op_of(str(constructor))
            children = [] if op is None else [int(child) for child in arguments[len(arguments) - OPS[op].arity[0] :]]
            if not all(child in best for child in children):
                continue
            constants = map(str, arguments[: len(arguments) - len(children)])
            text = f"{constructor}({', '.join([*constants, *(best[child][1] for child in children)])})"
            if class_ in oracle.inputs:
                text = inputs[oracle.inputs.index(class_)]
            entry = (1 + sum(best[child][0] for child in children), text)
            if class_ not in best or entry < best[class_]:
                best[class_] = entry
                changed = True
    return {class_: text for class_, (_, text) in best.items()}


__all__ = ["MOST", "MOST_OF_SEGMENT", "STAGES", "Sample", "Traced", "Tracer", "class_names", "trace_text"]
