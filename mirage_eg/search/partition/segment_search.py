"""The best µGraphs of segments: library kernels where they are single ops, and what the structure search finds.

Segments that are equal as programs are searched once. Each structure that counts has been checked in random fields on a small
instance; those of the indexed domain are also proved by their root class.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, prod
from time import time

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.egraph.expression import Split
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, Node, is_kernel, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.instantiate.instantiate import Choice, Instantiation, small_instance
from mirage_eg.search.instantiate.limits import Filters, TileLimits
from mirage_eg.search.partition.segments import Segment, segment_program
from mirage_eg.search.partition.shortest_path import Kernels, Piece
from mirage_eg.search.search import SearchLimits, search, split_choices
from mirage_eg.search.structure import Load, SplitReduction, Structure
from mirage_eg.search.trace import MOST_OF_SEGMENT, Traced, Tracer, structure_line, traced_search_of_splits
from mirage_eg.transforms.renamed_views import rename_views
from mirage_eg.verify.reference import Reference


@dataclass(frozen=True, slots=True)
class Found:
    """What the search of one segment brought: µGraphs, the cheapest first, and how much was looked at."""

    kernels: tuple[Kernels, ...]
    visited: int
    structures: int
    pruned: tuple[tuple[str, int], ...] = ()
    cut: bool = False  # by the clock
    traced: tuple[Traced, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """What the search of a segment depends on besides its program; it travels to the workers."""

    rulebook: Rulebook
    device: Device
    limits: SearchLimits
    filters: Filters
    seed: int
    plans: int = 4  # structures that get extents, smallest first, of those that split alike and load alike
    each: int = 1  # µGraphs of each structure
    keep: int = 1  # µGraphs of one kernel, and of two
    traced: bool = False
    ask_compiler: bool = True  # the compiler, whether what is kept fits
    avoided: frozenset[Graph] = frozenset()  # block graphs that do not compile
    until: float = inf  # seconds since 1970; what is found until then is kept


def find_kernels(task: Task, programs: Sequence[Graph]) -> Iterator[Found]:
    """The best µGraphs of each program."""
    for program in programs:
        yield _find(task, program)


def _find(task: Task, program: Graph) -> Found:
    device = task.device
    kernels: list[Kernels] = []
    if len(program.kernels) <= 1:
        kernels.append(_kernels(program, device, proved=True, fused=False))
    try:
        views = rename_views(program)
    except UnsupportedError:
        return Found(tuple(kernels), 0, 0)
    named, axes = views.program, infer_axes(views.program)
    choices = _worthwhile(named, axes, task.limits)
    states = max(FEWEST_STATES, task.limits.max_states // len(choices))
    most = task.limits.max_block_ops + uncounted_ops(named)
    limits = replace(task.limits, max_block_ops=most, max_states=states, max_alike=task.plans, seconds=task.until - time())
    tracer = Tracer(MOST_OF_SEGMENT) if task.traced else None
    if tracer is None:
        found = search(named, axes, task.rulebook, limits, SATURATION, choices=choices)
    else:
        found = traced_search_of_splits(named, axes, task.rulebook, limits, SATURATION, choices, tracer)
    for plans in (found.structures, found.split_reductions):
        kernels += [
            _kernels(views.joined(entry.graph), device, entry.proved, entry.fused)
            for entry in _instances(plans, named, axes, task, device, tracer)
        ]
    kernels.sort(key=_order)
    visited = sum(record.visited for record in found.records)
    pruned = sum((Counter(record.pruned) for record in found.records), Counter[str]())
    structures = sum(record.structures for record in found.records)
    leading = {entry.kernels: entry for entry in reversed(kernels)}.values()  # the best of each number of kernels
    kept = dict.fromkeys([*sorted(leading, key=_order), *kernels[: task.keep]])
    if tracer is not None:
        tracer.count("not tried", structures - len(found.structures) - len(found.split_reductions))
    traced = () if tracer is None else tracer.result()
    late = time() >= task.until
    return Found(tuple(sorted(kept, key=_order)), visited, structures, tuple(sorted(pruned.items())), late, traced)


LONG, LOOPED, SPREAD = 512, 128, 256  # elements
FEWEST_STATES = 500  # of each split
SATURATION = Limits(nodes=10_000)  # of each split of a segment: products of sums grow ten times larger, for seconds each


def _worthwhile(program: Graph, axes: Axes, limits: SearchLimits) -> tuple[Split, ...]:
    """The splits that make sense at the sizes at hand: no loop over a short axis, no long one that a matmul contracts whole."""
    contracted = {
        axis
        for item in program.nodes
        if item.op == "matmul"
        for axis in axes.dims[item.operands[0]][-1]
        if prod(axes.sizes[other] for other in axes.dims[item.operands[0]][-1]) > LONG
    }
    longest = {axis for axis in contracted if axes.sizes[axis] == max(axes.sizes[other] for other in contracted)}
    return tuple(
        split
        for split in split_choices(axes, limits)
        if (split.looped is None or axes.sizes[split.looped] >= LOOPED or split.looped in longest)
        and (split.spread is None or axes.sizes[split.spread] >= SPREAD or split.spread in longest)
        and (not longest or not longest.isdisjoint((split.looped, split.spread)))
    )


def _order(kernels: Kernels) -> tuple[float, int]:
    return kernels.us, kernels.kernels


def _kernels(graph: Graph, device: Device, proved: bool, fused: bool) -> Kernels:
    costs = predict(graph, device)
    return Kernels(graph, sum(cost.us for cost in costs), len(costs), proved, fused)


def _instances(
    plans: Sequence[Structure | SplitReduction],
    program: Graph,
    axes: Axes,
    task: Task,
    device: Device,
    tracer: Tracer | None = None,
) -> list[Kernels]:
    """The best µGraphs of the first plans of each split and way to load, the cheapest first.

    What promises most is built first. When nothing left promises as much as what is there, the rest need not be built.
    """
    tiles = TileLimits(
        shared_memory=device.shared_memory,
        multiprocessors=device.multiprocessors,
        target=device.target,
        ask_compiler=task.ask_compiler,
    )
    tried: Counter[tuple[Split, frozenset[Load]]] = Counter()
    tries: set[int] = set()  # plans that get extents
    open_: list[tuple[Choice, int, Instantiation]] = []
    for place, plan in enumerate(plans):
        kind = plan.split, frozenset((plan if isinstance(plan, Structure) else plan.first).loads)
        tried[kind] += 1
        if tried[kind] > task.plans:
            if tracer is not None:
                tracer.add("not tried", partial(structure_line, plan))
        else:
            tries.add(place)
            instantiation = Instantiation(plan, program, axes, tiles, task.filters)
            open_ += ((choice, place, instantiation) for choice in instantiation.choices(device))
    open_.sort(key=lambda entry: (entry[0].us, entry[1]))
    equal: dict[int, bool] = {}  # of the plans looked at, whether they are
    found: dict[int, list[Kernels]] = {}  # of each plan
    fitting: set[int] = set()
    best: list[Kernels] = []
    looked_at = len(open_)
    for number, (choice, place, instantiation) in enumerate(open_):
        if (len(best) == task.keep and choice.us >= best[-1].us) or time() >= task.until:
            looked_at = number
            break
        own = found.setdefault(place, [])
        if not equal.get(place, True) or (len(own) == task.each and choice.us >= own[-1].us):
            continue
        if (graph := instantiation.take(choice)) is None:
            continue
        if not task.avoided.isdisjoint(blocks := graph.blocks):
            if len(blocks) == 1:
                instantiation.refuse(choice)
            continue
        kernels = _kernels(graph, device, plans[place].proved, fused=True)
        wanted = len(best) < task.keep or _order(kernels) < _order(best[-1])
        if wanted and not instantiation.fits_compiler(graph):
            instantiation.refuse(choice)
            continue
        fitting.add(place)
        if not wanted:
            continue
        if place not in equal:
            equal[place] = _equal_when_small(plans[place], program, axes, task.seed)
        if equal[place]:
            own[:] = sorted([*own, kernels], key=_order)[: task.each]
            best = sorted((entry for entries in found.values() for entry in entries), key=_order)[: task.keep]
    if tracer is not None:
        chosen = {place for place, entries in found.items() if any(entry in best for entry in entries)}
        for place in sorted(tries - chosen):
            fits = place in fitting or place in {place for _, place, _ in open_[looked_at:]}
            ended = "field check" if not equal.get(place, True) else "not among top" if fits else "tile limits"
            tracer.add(ended, partial(structure_line, plans[place]))
    return best


def _equal_when_small(plan: Structure | SplitReduction, program: Graph, axes: Axes, seed: int) -> bool:
    small, candidate = small_instance(plan, program, axes)
    return Reference(small, seed=seed).check(candidate).worth_full_size(plan.proved)


@dataclass(slots=True)
class KernelFinder:
    """Finds the kernels of the segments of one program; `run` searches programs, here or on workers."""

    program: Graph
    device: Device
    run: Callable[[Sequence[Graph]], Sequence[Found]]
    found: dict[Graph, Found] = field(default_factory=dict)

    def floor(self, segment: Segment) -> float:
        """The least that kernels of the segment can take, if it has any: a launch, each input read and each output written."""
        if not any(is_kernel(item) for position, item in enumerate(self.program.nodes) if position in segment.nodes):
            return 0.0
        types = [self.program.types[value] for value in (*segment.inputs, *segment.outputs)]
        return self.device.launch_us + 1e6 * sum(kind.nbytes for kind in types) / self.device.memory_bandwidth

    def traced(self) -> Iterator[Traced]:
        """Where candidates ended, segment by segment in the order in which they were searched."""
        for number, (program, found) in enumerate(self.found.items()):
            ops = " ".join(item.op for item in program.nodes if OPS[item.op].kind is not Kind.BOUNDARY)
            yield from (replace(entry, segment=f"{number}: {ops}") for entry in found.traced)

    def others(self, piece: Piece) -> list[Piece]:
        """The µGraphs that were found for the segment of a piece besides its own."""
        found = self.found[segment_program(self.program, piece.segment)].kernels
        return [Piece(piece.segment, piece.inputs, kernels) for kernels in found if kernels != piece.made]

    def forget(self, blocks: frozenset[Graph], again: bool) -> None:
        """Leave out what has these block graphs; `again`: search its segments again when they are asked for."""
        for program, found in [*self.found.items()]:
            left = tuple(kernels for kernels in found.kernels if blocks.isdisjoint(kernels.graph.blocks))
            if left != found.kernels:
                if again:
                    del self.found[program]
                else:
                    self.found[program] = replace(found, kernels=left)

    def find(self, segments: Sequence[Segment]) -> list[tuple[Piece, ...]]:
        """The cheapest µGraph of each number of kernels, for each segment; none where no block graph holds it."""
        programs = [segment_program(self.program, segment) for segment in segments]
        new = [program for program in dict.fromkeys(programs) if program not in self.found]
        self.found.update(zip(new, self.run(new), strict=True))
        return [self._pieces(segment, program) for segment, program in zip(segments, programs, strict=True)]

    def _pieces(self, segment: Segment, program: Graph) -> tuple[Piece, ...]:
        best: dict[int, Kernels] = {}
        for kernels in self.found[program].kernels:
            best.setdefault(kernels.kernels, kernels)
        return tuple(Piece(segment, segment.inputs, kernels) for kernels in best.values())


def compose(program: Graph, pieces: Sequence[Piece]) -> Graph:
    """One kernel graph of all pieces, in the order in which they run; what reshapes show of their results is seen through."""
    return _Composer(program).compose(pieces)


class _Composer:
    """Appends the nodes of pieces to one graph."""

    def __init__(self, program: Graph) -> None:
        self.program = program
        self.makers = [item for item, values in program.numbered() for _ in values]
        self.nodes: list[Node] = []
        self.count = 0
        self.place: dict[int, int] = {}  # of the program's values that are there

    def append(self, item: Node, made: int = 1) -> range:
        self.nodes.append(item)
        self.count += made
        return range(self.count - made, self.count)

    def read(self, value: int) -> int:
        if value not in self.place:
            item = self.makers[value]
            assert item.op == "reshape", "pieces run in order"
            self.place[value] = self.append(Node(item.op, (self.read(item.operands[0]),), item.attributes))[0]
        return self.place[value]

    def compose(self, pieces: Sequence[Piece]) -> Graph:
        for item, values in self.program.numbered():
            if item.op == "input":
                self.place[values[0]] = self.append(item)[0]
        for piece in pieces:
            inputs, outputs = iter(piece.inputs), iter(piece.segment.outputs)
            inside: dict[int, int] = {}
            for item, values in piece.made.graph.numbered():
                match item.op:
                    case "input":
                        inside[values[0]] = self.read(next(inputs))
                    case "output":
                        self.place[next(outputs)] = inside[item.operands[0]]
                    case _:
                        moved = Node(item.op, tuple(inside[i] for i in item.operands), item.attributes)
                        inside.update(zip(values, self.append(moved, len(values)), strict=True))
        for item in self.program.outputs:
            self.nodes.append(node("output", self.read(item.operands[0]), name=item.get("name")))
        return Graph(tuple(self.nodes))
