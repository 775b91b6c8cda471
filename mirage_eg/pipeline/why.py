"""Why a given µGraph is found or not: each of its kernels is raised to a structure, which is followed through the search.

The stages are those of a run: the structure is in the space (`search/membership.py`), the oracle has its terms, the search
returns it, its small instance passes the field and float checks, its tiles fit and are enumerated, and its time is compared
with that of the first µGraph. The answer names the first stage that it does not pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.roofline_model import predict, predict_us
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.egraph.oracle import oracle_builder
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.mirage_json import Unsupported, read_published
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.renamed_views import Renamed, rename_views
from mirage_eg.ir.serialize import from_data, read
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.equal_programs import search_equal_programs
from mirage_eg.pipeline.found import Found, lower
from mirage_eg.pipeline.kernel_origins import Origin, Values, choices_of_inputs, origins
from mirage_eg.pipeline.optimize import request_of
from mirage_eg.pipeline.program_search import search_program
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.pipeline.search_stage import OneKernelSearch, search_one_kernel, segment_task
from mirage_eg.pipeline.stage_records import Run, Watch
from mirage_eg.search.instantiate.instantiate import Instantiation
from mirage_eg.search.instantiate.limits import fits, footprint
from mirage_eg.search.instantiate.raise_block import OutsideError, RaisedKernel, Source, raise_block, regrouped
from mirage_eg.search.membership import Departure, departure
from mirage_eg.search.partition.segment_search import FieldCheck, Instantiated, instantiate_each, tile_limits
from mirage_eg.search.partition.segments import Segment, read_names, segment_program
from mirage_eg.search.prune_reasons import RULES, STAGES
from mirage_eg.search.structure import AnyStructure, SplitReduction, canonical
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.reference import check_types
from mirage_eg.verify.verdict import Observer

SECONDS = 20.0
"""The budget of the searches where none is given."""

_CUT = "the budget was spent before all plans and equal programs were searched: with a longer --budget it may be found"
_NO_VALUE = "it computes a value that no op of the program computes"
_FAILED = {
    "field check": "its small instance differs on random inputs: a law that it needs is false",
    "overflow": "its small instance is not finite on large or offset inputs, and the program's is",
}
_SAME = 1 + 1e-9  # of predicted times
_COPIES = 16  # of inputs with several names: combinations that are tried


class AnswerKind(StrEnum):
    """The kinds of answers."""

    FOUND = "found"
    NOT_ENUMERATED = "not enumerated"
    PRUNED = "pruned"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class KernelAnswer:
    """The answer for one kernel, or for a split-reduction pair.

    `stage`: where it ended, of `prune_reasons.STAGES`; `place`: the op of the given µGraph. `nearest`: of a pruned term, the
    nearest e-class. `rank`: of its structure, among `structures` with a µGraph, by the predicted time of the fastest, `us` is
    the time of the given one and `first_us` that of the first. `equal`: whether it computes its part of the program on a small
    instance; None if it has none.
    """

    kernel: str
    answer: AnswerKind
    stage: str
    because: str
    place: str | None = None
    nearest: str | None = None
    rank: int | None = None
    structures: int = 0
    us: float | None = None
    first_us: float | None = None
    equal: bool | None = None

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.answer}{f' at rank {self.rank} of {self.structures}' if self.rank else ''}"]
        lines.append(f"  {self.stage}: {STAGES[self.stage]}" if self.answer is not AnswerKind.FOUND else f"  {self.because}")
        if self.answer is not AnswerKind.FOUND:
            lines += [f"  at {self.place}" if self.place else "", f"  {self.because}"]
            lines.append(f"  nearest: {self.nearest}" if self.nearest else "")
        if self.equal is not None and self.answer is AnswerKind.PRUNED:
            missing = "a law is missing, or holds in the other direction only" if self.equal else "it is another function"
            lines.append(f"  {'equal' if self.equal else 'not equal'} to its part of the program in random fields: {missing}")
        return "\n".join(filter(None, lines))


@dataclass(frozen=True, slots=True)
class Ranked:
    """The rank of a µGraph among `graphs`, all that a run finds before it verifies some, by predicted time; None if it is not
    among them."""

    rank: int | None
    graphs: int
    first_us: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Why:
    """Why a µGraph of a program is found or not: the answer of the first kernel that is not found, or that of all."""

    program: str
    kernels: tuple[KernelAnswer, ...]
    us: float | None  # predicted
    ranked: Ranked | None = None

    @property
    def decisive(self) -> KernelAnswer:
        """The first kernel that is not found, else the first."""
        return next((it for it in self.kernels if it.answer is not AnswerKind.FOUND), self.kernels[0])

    @property
    def answer(self) -> AnswerKind:
        """Whether the µGraph is found, or how it ended; one whose kernels are found, but in no plan kept, is rejected."""
        lost = self.ranked is not None and self.ranked.rank is None
        return AnswerKind.REJECTED if lost and self.decisive.answer is AnswerKind.FOUND else self.decisive.answer

    @property
    def stage(self) -> str:
        """Where it ended."""
        return self.decisive.stage if self.decisive.answer is self.answer else "on no plan"

    @property
    def rank(self) -> int | None:
        """The rank of a found µGraph: of its structure, if one kernel or one split-reduction pair is the whole."""
        if self.answer is not AnswerKind.FOUND:
            return None
        return self.kernels[0].rank if self.ranked is None else self.ranked.rank

    def __str__(self) -> str:
        at = f" at rank {self.rank} of {self.ranked.graphs} µGraphs" if self.ranked and self.answer is AnswerKind.FOUND else ""
        lines = [f"{self.program}: {self.answer}{at}{'' if self.us is None else f'; {self.us:.2f} µs predicted'}"]
        lines += map(str, self.kernels)
        if self.stage == "on no plan" and self.ranked and self.ranked.first_us and self.us:
            slower = self.us - self.ranked.first_us
            lines.append(
                f"its kernels are found; the µGraph is none of the {self.ranked.graphs} kept: {slower:+.2f} µs to the first"
            )
        return "\n".join((*lines, *(f"note: {note}" for note in (self.ranked.notes if self.ranked else ()))))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def why(
    program: KernelGraph | Graph | str | Path,
    graph: KernelGraph | Graph | str | Path,
    **options: Any,
) -> Why:
    """Why the search finds a µGraph of a program, or at which op, by which rule or check it is lost.

    `program`: a graph, or a workload or file as `mirage-eg optimize` takes it. `graph`: a µGraph from anywhere, or the file of
    one. Options are those of `superoptimize`; without a `budget` the searches have 20 s.

    Raises:
        GraphError: the µGraph has other inputs or outputs than the program, or no kernel; a file that holds no single µGraph.
        ProgramError: no such program.
        OptionError: an option that is not allowed.
    """
    found, wanted = load_program(str(program)) if isinstance(program, str | Path) else ("program", _graph_of(program))
    if isinstance(graph, str | Path):
        graphs = read(graph, read_graphs)
        if len(graphs) != 1 or isinstance(graphs[0], Unsupported):
            raise GraphError(f"{graph}: got {counted(len(graphs), 'µGraph')}, wanted one that can be read; see mirage-eg why")
        graph = graphs[0]
    return explain_why(found, wanted, _graph_of(graph), Options(**{"budget": SECONDS} | options))


def _graph_of(graph: KernelGraph | Graph) -> Graph:
    return graph.graph() if isinstance(graph, KernelGraph) else graph


def read_graphs(data: Any) -> Sequence[Graph | Unsupported]:
    """The µGraphs of a parsed file: one of ours, or a checkpoint of Mirage's."""
    return read_published(data) if isinstance(data, list) else [from_data(data)]


def explain_why(
    name: str, program: Graph, graph: Graph | Unsupported, options: Options, observer: Observer | None = None
) -> Why:
    """`why` of graphs; of a µGraph of Mirage's with an operator that has no meaning here, that operator.

    Raises:
        GraphError: as `why`.
    """
    if isinstance(graph, Unsupported):
        text = f"{graph.op} has no meaning here"
        return Why(name, (KernelAnswer("the µGraph", AnswerKind.NOT_ENUMERATED, "op", text, graph.op),), None)
    check_types(program, graph)
    request = request_of(name, program, replace(options, cache=False))
    options = request.options
    rulebook = load_rules(options.domain, options.rules, options.without, options.undefined_in(program))
    with Workers(options.executor, options.jobs) as workers:
        run = Run(name, request.program, options, rulebook, options.device_record, Work(workers), watch=Watch(observer))
        run = replace(run, until=request.until)
        primitive = drop_shifts(simplify(expand(run.program)).after)
        written = _written(graph)
        values = Values(primitive, written, options.seed)
        kernels = [
            _Kernel(run, primitive, written, values, origin, i)
            for i, origin in enumerate(origins(primitive, written, values), 1)
        ]
        if not kernels:
            raise GraphError("got a µGraph without a kernel, wanted one with an op or a block graph")
        left = [kernel.left() for kernel in kernels]
        is_other = any(it is not None and it.equal is False for it in left)
        us, found = predict_us(graph, run.device), None
        if not is_other and (len(kernels) > 1 or left[0] is not None):
            found = _ranked(run, primitive, graph)
            if found.rank is not None:
                return Why(name, tuple(kernel.found(found) for kernel in kernels), us, found)
        answers = tuple(ended or kernel.followed() for kernel, ended in zip(kernels, left, strict=True))
    return Why(name, answers, us, found)


def _ranked(run: Run, primitive: Graph, graph: Graph) -> Ranked:
    """The rank of a µGraph among all that the search finds: of one kernel, plans of several, and those of equal programs."""
    search, partitioner = search_program(run, primitive)
    equal = search_equal_programs(run, search, partitioner)
    library = Found(run.program, predict_us(run.program, run.device), fused=False)
    found = [library, *(entry for entries in (*search.candidates, *equal.candidates) for entry in entries)]
    found.sort(key=lambda entry: entry.predicted_us)
    wanted = graph if graph == run.program else optimize_mugraph(graph, run.device).graph
    us = [entry.predicted_us for entry in found]
    rank = next((i for i, entry in enumerate(found, 1) if wanted in (lower(entry, run.device).graph, entry.graph)), None)
    return Ranked(
        rank, len(found), us[0] if us else None, (*search.notes, *equal.notes, *([_CUT] if run.until.passed() else []))
    )


def _written(graph: Graph) -> Graph:
    """The µGraph in primitive ops, without thread graphs."""
    graph = expand(graph)
    nodes = (
        replace(item, attributes=tuple((key, flatten(it) if key == "graph" else it) for key, it in item.attributes))
        if item.op == "block"
        else item
        for item in graph.nodes
    )
    return Graph(tuple(nodes))


@dataclass(slots=True)
class _Kernel:
    """One kernel, or one split-reduction pair."""

    run: Run
    primitive: Graph
    graph: Graph
    values: Values
    origin: Origin
    number: int
    raised: "tuple[list[RaisedKernel], AnyStructure] | None" = None  # the structure of a kernel in the space

    @property
    def blocks(self) -> list[Graph]:
        """The block graphs."""
        items = [self.graph.nodes[position] for position in self.origin.nodes]
        return [item["graph"] for item in items if item.op == "block"]

    def found(self, ranked: Ranked) -> KernelAnswer:
        """The answer for a kernel of a µGraph that is found as a whole."""
        return KernelAnswer(self._title(), AnswerKind.FOUND, "ranked", f"a kernel of µGraph {ranked.rank} of {ranked.graphs}")

    def left(self) -> KernelAnswer | None:
        """Where it leaves the search space, if it does."""
        segment = self.origin.segment
        if not self.blocks:
            return self._ended(Departure("boundary", _NO_VALUE)) if segment is None else None
        if segment is None:
            return self._ended(Departure("boundary", _NO_VALUE))
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
            check = FieldCheck(named.program, axes, self.run.options.seed, self.run.options.trials)
            return replace(self._ended(ended, kernels), equal=_is_equal(check, plan))
        self.raised = raised
        return None

    def followed(self) -> KernelAnswer:
        """The answer for a kernel in the space, by the search and the stages after it."""
        if self.raised is None or self.origin.segment is None:
            op = self.graph.nodes[self.origin.nodes[0]].op
            return KernelAnswer(self._title(), AnswerKind.FOUND, "ranked", f"{op} is a kernel of the library in every plan")
        few = replace(self.run, options=replace(self.run.options, top=1))
        return self._followed(search_one_kernel(few, segment_program(self.primitive, self.origin.segment)), *self.raised)

    def _title(self) -> str:
        words = [f"grid {'×'.join(map(str, it.grid)) or 1}, loop {it.loop}" for it in self.blocks]
        return f"kernel {self.number} ({'; then '.join(words) or self.graph.nodes[self.origin.nodes[0]].op})"

    def _ended(self, left: Departure, kernels: Sequence[RaisedKernel] = ()) -> KernelAnswer:
        answer = AnswerKind.PRUNED if left.stage == "query" else AnswerKind.NOT_ENUMERATED if left.stage in RULES else None
        place = None
        if left.step is not None and kernels:
            place = self._place(left.kernel, kernels[left.kernel].values[left.step])
        elif left.value is not None:
            place = self._place(left.kernel, left.value)
        return KernelAnswer(self._title(), answer or AnswerKind.REJECTED, left.stage, left.text, place, left.nearest)

    def _place(self, kernel: int, value: int) -> str:
        block: Graph = self.graph.nodes[self.origin.nodes[kernel]]["graph"]
        item = block.nodes[block.makers[value]]
        return f"%{value} = {' '.join([item.op, *(f'%{i}' for i in item.operands)])} of block graph {kernel + 1}"

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
        numbered = list(self.graph.numbered())
        for kernel, position in enumerate(self.origin.nodes):
            item, values = numbered[position]
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
            return Departure("boundary", "it stores a value that no op of the program computes, and no partial results")
        return kernels, SplitReduction(kernels[0].structure, kernels[1].structure)

    def _source(self, value: int, sources: dict[int, Source], axes: Axes) -> Source:
        """The tensor that a kernel reads; a view of partial results has their axes in other dims."""
        if value in sources:
            return sources[value]
        item = self.graph.nodes[self.graph.makers[value]]
        behind = self._source(item.operands[0], sources, axes)
        shape = self.graph.types[item.operands[0]].shape
        sizes = dict(enumerate(axes.sizes)) | {len(axes.sizes): prod(shape) // prod(_sizes(behind, axes))}
        if item.op == "transpose":
            return Source(behind.number, tuple(behind.dims[dim] for dim in item["permutation"]))
        if item.op != "reshape":
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
            count = f"{one.search.count:,} structures were found, of those that load alike the smallest are kept"
            return self._ended(Departure("not tried", count if one.search.complete else f"{count}; {'; '.join(one.notes)}"))
        if entry.ended is not None:
            return self._ended(Departure(entry.ended, _FAILED[entry.ended]))
        ranked = sorted((it for it in one.structures if it.kernels), key=lambda it: it.kernels[0].us)
        if (left := self._tiling(entry, one, kernels)) is not None:
            return self._ended(left)
        first = ranked[0].kernels[0].us
        answer = KernelAnswer(self._title(), AnswerKind.FOUND, "ranked", "", us=us, first_us=first, structures=len(ranked))
        rank, best = ranked.index(entry) + 1, entry.kernels[0].us
        slower = f"{us:.2f} µs, {us - first:.2f} µs slower than the first" if us > first else f"{us:.2f} µs, as the first"
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
        return len(own.kernels) < top or us <= own.kernels[-1].us * _SAME

    def _tiling(self, entry: Instantiated, one: OneKernelSearch, kernels: Sequence[RaisedKernel]) -> Departure | None:
        """The limit or rule that a grid, a loop or a tile breaks."""
        assert isinstance(one.axes, Axes)
        limits = tile_limits(self.run.device, ask_compiler=False)
        for number, block in enumerate(self.blocks):
            if not fits(block, limits):
                shared, registers = footprint(block, limits)
                parts = [("registers", registers, limits.registers), ("shared memory", shared, limits.shared_memory)]
                over = [
                    f"{need / 1024:.0f} KiB of {what}, and a block has {have / 1024:.0f}"
                    for what, need, have in parts
                    if need > have
                ]
                text = "; ".join(over) or "a right operand of a product that Triton may misread"
                return Departure("tile limits", f"its tiles need {text}", number)
        task = segment_task(self.run)
        space = Instantiation(entry.structure, one.program, one.axes, limits, task.filters)
        tried = [[_tiling_of(it.grid, it.loop) for it in together] for together in space.tilings()]
        given = [(raised.blocks, raised.loop) for raised in kernels]
        if given in tried:
            return None
        for number, (own, loop) in enumerate(given):
            others = [together[number] for together in tried]
            if (own, loop) in others:
                continue
            text = _closest_tiling(own, loop, others, one.axes)
            return Departure("tiling", text, number)
        return Departure("tiling", "both of its tilings are tried, but not together")


def _is_equal(check: FieldCheck, plan: AnyStructure) -> bool | None:
    """Whether a structure computes the program on a small instance, in random fields; None if it has none."""
    try:
        return check.stage_of(plan) != "field check"
    except (GraphError, UnsupportedError):
        return None


def _sizes(source: Source, axes: Axes) -> list[int]:
    return [axes.sizes[axis] for dim in source.dims for axis in dim if axis < len(axes.sizes)]


Tiled = tuple[tuple[tuple[int, int], ...], int]


def _tiling_of(grid: Sequence[tuple[Sequence[int], int]], loop: int) -> Tiled:
    """The blocks along each axis, and the loop count."""
    return tuple(sorted((axis, count) for group, count in grid for axis in group if count > 1)), loop


def _closest_tiling(own: Sequence[tuple[int, int]], loop: int, others: Sequence[Tiled], axes: Axes) -> str:
    """The first number of a tiling that none of the others has, with those that they have."""
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
