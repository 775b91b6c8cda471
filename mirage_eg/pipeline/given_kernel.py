"""One kernel of a given µGraph, or one split-reduction pair, followed through the search.

The stages are those of a run: the kernel is raised to a structure, the structure is in the space (`search/membership.py`), the
oracle has its terms, the search of its split returns it, its small instance passes the field and float checks, its tiles fit
and are enumerated, and its time is compared with that of the first. The answer names the first stage that it does not pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_eg.backends.cost.liveness import is_of_rows
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.targets import why_no_clusters
from mirage_eg.egraph.expression import Split
from mirage_eg.egraph.oracle import oracle_builder
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.deadline import NEVER
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_op
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.renamed_views import Renamed, rename_views
from mirage_eg.ir.weights import prepared_values
from mirage_eg.pipeline.kernel_origins import Origin, Values, choices_of_inputs
from mirage_eg.pipeline.partition_stage import task_of_parts
from mirage_eg.pipeline.search_stage import OneKernelSearch, search_one_kernel, segment_task
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.pipeline.why_answers import AnswerKind, KernelAnswer
from mirage_eg.search.instantiate.instantiate import Instantiation
from mirage_eg.search.instantiate.limits import fits, footprint
from mirage_eg.search.instantiate.raise_block import OutsideError, RaisedKernel, Source, raise_block, regrouped
from mirage_eg.search.membership import Departure, departure
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.search.partition.read_names import read_names
from mirage_eg.search.partition.segment_search import (
    FieldCheck,
    Instantiated,
    first_alike,
    instantiate_each,
    search_worthwhile,
    tile_limits,
)
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.search.prune_reasons import RULES
from mirage_eg.search.structure import AnyStructure, SplitReduction, canonical
from mirage_eg.search.structure_search import merged

SAME = 1 + 1e-9
"""Predicted times within this factor are equal."""

_NO_VALUE = "it computes a value that no op of the program computes, as written or rewritten"
_FAILED = {
    "field check": "its small instance differs on random inputs: a law that it needs is false",
    "overflow": "its small instance is not finite on large or offset inputs, and the program's is",
}
_COPIES = 16  # of inputs with several names: combinations that are tried


@dataclass(slots=True)
class GivenKernel:
    """One kernel, or one split-reduction pair; `primitive` is the program that its µGraph is a plan of."""

    run: Run
    primitive: Graph
    graph: Graph
    values: Values
    origin: Origin
    number: int
    raised: "tuple[list[RaisedKernel], AnyStructure] | None" = None  # the structure of a kernel in the space

    @property
    def blocks(self) -> list[Graph]:
        items = [self.graph.nodes[position] for position in self.origin.nodes]
        return [item["graph"] for item in items if item.op == "block"]

    def left(self) -> KernelAnswer | None:
        """Where it leaves the search space, if it does."""
        segment = self.origin.segment
        if segment is None:
            return self._ended(Departure("boundary", f"{_NO_VALUE}{self._difference()}"))
        if not self.blocks:
            return None
        program = segment_program(self.primitive, segment)
        try:
            named = rename_views(program)
            axes = infer_axes(named.program)
        except UnsupportedError as error:
            return self._ended(Departure("axes", f"{error}; the search covers programs without that"))
        raised = self._raised(segment, named, axes)
        if isinstance(raised, Departure):
            return self._ended(raised)
        kernels, plan = raised
        task = segment_task(self.run)
        with oracle_builder(self.run.rulebook, task.limits.saturation) as build:
            read = read_names(self.primitive, segment)
            names = [read[number] for number in named.inputs]
            ended = departure(plan, named.program, axes, self.run.rulebook.domain, build, task.limits, names)
        if ended is not None:
            check = FieldCheck(named.program, axes, task)
            return replace(self._ended(ended, kernels), equal=_is_equal(check, plan))
        self.raised = raised
        return None

    def followed(self, run: Run) -> KernelAnswer:
        """The answer for a kernel in the space, by the search of its part and the stages after it, within the time of `run`.

        The only kernel is ranked among the structures of all splits, one of several among those of its own split.
        """
        if self.raised is None or self.origin.segment is None:
            return KernelAnswer(self.title, AnswerKind.FOUND, "ranked", self._of_library())
        program, (kernels, plan) = segment_program(self.primitive, self.origin.segment), self.raised
        few = replace(run, options=replace(run.options, top=1))
        one = search_one_kernel(few, program) if self.is_all else _search_part(few, self.origin.segment, program, plan.split)
        return self._followed(one, kernels, plan)

    def _difference(self) -> str:
        """The outputs of the µGraph that differ from the program's, in words."""
        pairs = zip(self.primitive.output_names, self.primitive.outputs, self.graph.outputs, strict=True)
        wrong = [name for name, own, given in pairs if own.operands[0] not in self.values.of_program(given.operands[0])]
        sizes = " at small sizes" if self.values.tiny else ""
        return f"; on random inputs{sizes} the µGraph differs from the program in {', '.join(wrong)}" if wrong else ""

    def _of_library(self) -> str:
        """What a kernel without a block graph is."""
        made = {value for position in self.origin.nodes for value in self.graph.numbered()[position][1]}
        if made <= {*prepared_values(self.graph)}:
            return "it depends on weights alone, and is computed once"
        return f"{self.graph.nodes[self.origin.nodes[0]].op} is an op of the library in every plan"

    @property
    def is_all(self) -> bool:
        """Whether it has block graphs, and computes the whole µGraph: then its structure has a rank."""
        return bool(self.blocks) and sum(is_op(item) for item in self.graph.nodes) == len(self.origin.nodes)

    @property
    def title(self) -> str:
        """Its number, with grid and loop or its op."""
        words = [
            f"grid {'×'.join(map(str, it.grid)) or 1}, loop {it.loop}{f', cluster of {it.cluster}' * (it.cluster > 1)}"
            for it in self.blocks
        ]
        return f"kernel {self.number} ({'; then '.join(words) or self.graph.nodes[self.origin.nodes[0]].op})"

    def _ended(self, left: Departure, kernels: Sequence[RaisedKernel] = ()) -> KernelAnswer:
        answer = {"query": AnswerKind.PRUNED, "unfinished": AnswerKind.UNFINISHED}.get(left.stage, AnswerKind.REJECTED)
        answer = AnswerKind.NOT_ENUMERATED if left.stage in RULES else answer
        place = None
        if left.step is not None and kernels:
            place = self._place(left.kernel, kernels[left.kernel].values[left.step])
        elif left.value is not None:
            place = self._place(left.kernel, left.value)
        return KernelAnswer(self.title, answer, left.stage, left.text, place, left.nearest)

    def _place(self, kernel: int, value: int) -> str:
        item = self.graph.nodes[self.origin.nodes[kernel]]["graph"].node_of[value]
        text = " ".join([item.op, *(f"%{i}" for i in item.operands)])
        return f"%{value} = {text} of block graph {kernel + 1}"

    def _raised(self, segment: Segment, named: Renamed, axes: Axes) -> tuple[list[RaisedKernel], AnyStructure] | Departure:
        """The structure; where inputs have several names, by the first names that give one."""
        first = None
        options = choices_of_inputs(self.graph, self.origin.nodes, self.values, segment, named.inputs, _COPIES)
        for chosen in options:
            result = self._raised_from(segment, named, axes, chosen)
            if not isinstance(result, Departure):
                return result
            first = first or result
        return first or Departure("boundary", "it reads a value that its part of the program does not read")

    def _raised_from(
        self, segment: Segment, named: Renamed, axes: Axes, chosen: dict[int, int]
    ) -> tuple[list[RaisedKernel], AnyStructure] | Departure:
        sources: dict[int, Source] = {}
        for value, number in chosen.items():
            dims = axes.dims[named.program.input_values[number]]
            walked = self.values.walked(value, segment.inputs[named.inputs[number]], dims, axes.sizes)
            if walked is None:
                return Departure("index", f"it reads input {number} of its part with an axis cut in two, or in part")
            sources[value] = Source(number, walked)
        kernels: list[RaisedKernel] = []
        for kernel, position in enumerate(self.origin.nodes):
            item, values = self.graph.numbered()[position]
            try:
                raised = raise_block(item["graph"], [self._source(i, sources, axes) for i in item.operands], axes)
            except OutsideError as error:
                return Departure(error.stage, str(error), kernel, value=error.value)
            kernels.append(raised)
            first = len(named.program.inputs)
            sources |= {value: Source(first + i, raised.stored[i]) for i, value in enumerate(values)}
        if len(kernels) == 1:
            plan: AnyStructure = kernels[0].structure
            if plan.split.grid_axis is not None:
                return Departure("boundary", "it leaves partial results, and no kernel reduces them")
            return kernels, plan
        if kernels[0].structure.split.grid_axis is None:
            return Departure(
                "boundary", "its first kernel stores a value that no op of the program computes, and no partial results"
            )
        return kernels, SplitReduction(kernels[0].structure, kernels[1].structure)

    def _source(self, value: int, sources: dict[int, Source], axes: Axes) -> Source:
        """The tensor that a kernel reads; a view of partial results has their axes in other dims."""
        if value in sources:
            return sources[value]
        item = self.graph.node_of[value]
        behind = self._source(item.operands[0], sources, axes)
        shape = self.graph.types[item.operands[0]].shape
        sizes = dict(enumerate(axes.sizes)) | {len(axes.sizes): prod(shape) // prod(_sizes(behind, axes))}
        if item.op in TRANSPOSES:
            return Source(behind.number, tuple(behind.dims[dim] for dim in item["permutation"]))
        if item.op not in RESHAPES:
            raise OutsideError("op", f"{item.op} between two kernels of a split reduction")
        return Source(behind.number, regrouped(behind.dims, sizes, self.graph.types[value].shape, axes.names))

    def _followed(self, one: OneKernelSearch, kernels: Sequence[RaisedKernel], plan: AnyStructure) -> KernelAnswer:
        """The answer for a structure of the space, by the search and the stages after it."""
        if isinstance(one.axes, str):
            return self._ended(Departure("limits", one.axes))
        pairs = zip(launches_of(self.graph).kernels, predict(self.graph, self.run.device), strict=True)
        us = sum(cost.us for launch, cost in pairs if launch.nodes[0] in self.origin.nodes)
        entry = next((it for it in one.structures if canonical(it.structure) == canonical(plan)), None)
        if entry is None:
            count = f"{counted(one.search.count, 'structure')} found"
            if not one.search.complete:
                text = f"{count}, it is none of them; {'; '.join(one.notes)}: try a longer --budget"
                return self._ended(Departure("unfinished", text))
            return self._ended(Departure("not tried", f"{count}; of structures with equal loads the smallest are kept"))
        if entry.ended is not None:
            return self._ended(Departure(entry.ended, _FAILED[entry.ended]))
        if entry.cut and not entry.kernels and one.named is not None:  # its own tiles are few
            [entry] = instantiate_each((replace(segment_task(self.run), until=NEVER), one.named, one.axes), [entry.structure])
        others = [it for it in one.structures if it.kernels and it.structure != entry.structure]
        ranked = sorted([*others, entry] if entry.kernels else others, key=lambda it: it.kernels[0].us)
        if (left := self._tiling(entry, one, kernels)) is not None:
            return self._ended(left)
        if not entry.kernels:
            return self._ended(Departure("unfinished", "; ".join(one.notes)))
        first = ranked[0].kernels[0].us
        answer = KernelAnswer(self.title, AnswerKind.FOUND, "ranked", "", us=us, first_us=first, structures=len(ranked))
        rank, best = ranked.index(entry) + 1, entry.kernels[0].us
        slower = (
            f"{us:.2f} µs, {us - first:.2f} µs slower than the first" if us - first > 0.005 else f"{us:.2f} µs, as the first"
        )
        if any(it.cut for it in one.structures):
            slower = f"{slower}; {'; '.join(one.notes)}"
        if not self._is_kept(entry, one, us):
            text = f"{slower}; its structure has rank {rank} of {len(ranked)}, and its fastest µGraph takes {best:.2f} µs"
            return replace(answer, answer=AnswerKind.REJECTED, stage="not among top", because=text)
        return replace(answer, rank=rank, because=slower)

    def _is_kept(self, entry: Instantiated, one: OneKernelSearch, us: float) -> bool:
        """Whether a µGraph of this time is among those of its structure that a run keeps."""
        top = self.run.options.top
        if us <= entry.kernels[0].us or isinstance(one.axes, str) or one.named is None:
            return True
        task = replace(segment_task(self.run), each=top, keep=top)
        [own] = instantiate_each((task, one.named, one.axes), [entry.structure])
        return len(own.kernels) < top or us <= own.kernels[-1].us * SAME

    def _tiling(self, entry: Instantiated, one: OneKernelSearch, kernels: Sequence[RaisedKernel]) -> Departure | None:
        """The limit or rule that a grid, a loop or a tile breaks."""
        assert isinstance(one.axes, Axes)
        limits = tile_limits(self.run.device)
        for number, block in enumerate(self.blocks):
            if block.cluster > limits.cluster:
                text = why_no_clusters(self.run.device.target) or f"a cluster has at most {limits.cluster} thread blocks"
                return Departure("tile limits", text, number)
            if not fits(block, limits):
                shared, registers = footprint(block, limits)
                capacity = limits.capacity(is_of_rows(block))
                parts = [("registers", registers, capacity), ("shared memory", shared, limits.shared_memory)]
                over = [
                    f"{need / 1024:.0f} KiB of {what}, and a block has {have / 1024:.0f}"
                    for what, need, have in parts
                    if need > have
                ]
                text = "; ".join(over) or "a right operand of a product that Triton may misread"
                return Departure("tile limits", f"its tiles need {text}", number)
        task = segment_task(self.run)
        space = Instantiation(entry.structure, one.program, one.axes, limits, task.filters)
        tilings = space.tilings()
        tried = [[_tiling_of(it.grid, it.loop) for it in together] for together in tilings]
        given = [(raised.blocks, raised.loop) for raised in kernels]
        if given in tried:
            built = space.build(tilings[tried.index(given)]).blocks  # rows have as many thread blocks as they need
            pairs = zip(self.blocks, built, strict=True)
            odd = next((i for i, (own, other) in enumerate(pairs) if own.cluster != other.cluster), None)
            text = "" if odd is None else f"{_of_cluster(self.blocks[odd].cluster)}; tried is {_of_cluster(built[odd].cluster)}"
            return None if odd is None else Departure("tiling", text, odd)
        for number, (own, loop) in enumerate(given):
            others = [together[number] for together in tried]
            if (own, loop) not in others:
                return Departure("tiling", _closest_tiling(own, loop, others, one.axes), number)
        return Departure("tiling", "both of its tilings are tried, but not together")


def _search_part(run: Run, segment: Segment, program: Graph, split: Split) -> OneKernelSearch:
    """The search of a part of a plan, of one split alone, with a µGraph of each structure."""
    task, named = task_of_parts(run), rename_views(program)
    axes = infer_axes(named.program)
    found = merged([result for result, _ in search_worthwhile(task, named.program, axes, split)])
    if not found.records:
        return OneKernelSearch(segment, program, "loops and splits over short axes are not searched in parts of a plan")
    first = [entry for structures in first_alike(found, task.limits.max_alike) for entry in structures]
    entries = tuple(instantiate_each((task, named, axes), first))
    states = f"the search of its part ended after {found.visited:,} states"
    cut = states if found.visited else "no time was left to search its part"
    return OneKernelSearch(segment, named.program, axes, found, entries, notes=() if found.complete else (cut,), named=named)


def _is_equal(check: FieldCheck, plan: AnyStructure) -> bool | None:
    """Whether a structure computes the program on a small instance, in random fields; None if it has none."""
    try:
        return check.is_equal(plan)
    except (GraphError, UnsupportedError):
        return None


def _sizes(source: Source, axes: Axes) -> list[int]:
    return [axes.sizes[axis] for dim in source.dims for axis in dim if axis < len(axes.sizes)]


Tiled = tuple[tuple[tuple[int, int], ...], int]


def _tiling_of(grid: Sequence[tuple[Sequence[int], int]], loop: int) -> Tiled:
    """The blocks along each axis, and the loop count."""
    return tuple(sorted((axis, count) for group, count in grid for axis in group if count > 1)), loop


def _of_cluster(cluster: int) -> str:
    return f"a cluster of {cluster}" if cluster > 1 else "one thread block"


def _closest_tiling(own: Sequence[tuple[int, int]], loop: int, others: Sequence[Tiled], axes: Axes) -> str:
    """The first number of a tiling that none of the other tilings has, and the numbers that they have there."""
    mine = dict(own)
    for axis in sorted({*mine, *(axis for grid, _ in others for axis, _ in grid)}):
        counts = sorted({dict(grid).get(axis, 1) for grid, _ in others})
        if mine.get(axis, 1) not in counts:
            return (
                f"{counted(mine.get(axis, 1), 'block')} along the axis {axes.names[axis]} of {axes.sizes[axis]}; tried are "
                f"{', '.join(map(str, counts))}"
            )
    loops = sorted({count for grid, count in others if grid == tuple(own)} or {count for _, count in others})
    if loop not in loops:
        return f"a loop of {loop}; tried are {', '.join(map(str, loops)) or 'none'}"
    return "its numbers of blocks are tried, but not together: the grid has three dims, or its tiles exceed the registers"
