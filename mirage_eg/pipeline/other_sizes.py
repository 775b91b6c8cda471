"""Results of a search for the same program at other sizes: the structures serve again, with new tiles and a new verification.

Structures name axes, not extents: those of one size above 1 are those of all. At size 1 a dim has no axis (`ir.axes`). So a
search at size 1 serves no other size, and structures that were found at a larger size serve size 1 as well. Where a kernel of
the best plans has no tiles at a size, the program is partitioned again through all segments that were searched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.cost.roofline_model import launched_kernels, predict_us
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.ir.axes import Axes, infer_axes, resize
from mirage_eg.ir.errors import TiedToSizeError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.compile_stage import fitting
from mirage_eg.pipeline.found import Found, lower
from mirage_eg.pipeline.optimize import tune_known
from mirage_eg.pipeline.program_form import is_alike, outline
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Candidate, Result
from mirage_eg.pipeline.search_stage import is_fused
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.compose import compose
from mirage_eg.search.partition.kernel_plan import KernelPlan, PlanPart
from mirage_eg.search.partition.known_segments import plans_of_known
from mirage_eg.search.partition.plan_graph import PartitionLimits
from mirage_eg.search.partition.segment_search import Task, instantiate_again, library_kernels
from mirage_eg.search.partition.segments import SegmentLimits, segment_program
from mirage_eg.search.structure_search import SearchLimits
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.evidence import combine_evidence
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.verdict import Equality, FloatCheck, Observer, Verdict


def _sizes_between(searched: Graph, program: Graph) -> tuple[Axes, tuple[int, ...]] | None:
    """The axes of `searched`, and their sizes in `program`, if that is the same one at other sizes; both of primitive ops."""
    shapes = {value: kind.shape for value, kind in enumerate(program.types)}
    if len(searched.nodes) != len(program.nodes) or [len(kind.shape) for kind in searched.types] != [
        *map(len, shapes.values())
    ]:
        return None
    if not all(
        is_alike(one, other, shapes[one.operands[0]] if one.operands else ())
        for one, other in zip(searched.nodes, program.nodes, strict=True)
    ):
        return None
    return _sizes_of(searched, shapes)


def _sizes_of(searched: Graph, shapes: Mapping[int, Shape]) -> tuple[Axes, tuple[int, ...]] | None:
    """The axes of `searched`, and their sizes where these values have these shapes; None if no sizes give them."""
    try:
        axes = infer_axes(searched, repeats=True, barriers=True, slices=True)
    except UnsupportedError:
        return None
    sizes = [*axes.sizes]
    pairs = [pair for value, shape in shapes.items() for pair in zip(axes.dims[value], shape, strict=True)]
    for dim, extent in pairs:
        if len(dim) == 1:
            sizes[dim[0]] = extent
    agree = all(prod(sizes[axis] for axis in dim) == extent for dim, extent in pairs)
    return (axes, tuple(sizes)) if agree else None


def result_at(
    result: Result, searched: Graph, program: Graph, options: Options, *, proved: bool = False, loops: bool = False
) -> Result | None:
    """A µGraph of `result`, found by a search for `searched`, with new tiles for `program`, the same at other sizes.

    It compiles and is verified, with `proved` by a proof. Where tiles fit for some kernels of a plan only, library kernels
    compute the rest; with `loops` not where a search would find loops over axes that were too short for them. None if there
    is none, though `result` has a fused one: then `program` needs a search of its own.
    """
    forms = SizedForms(searched)
    primitive = forms.at(program)
    large = None if primitive is None else forms.large(primitive)
    if primitive is None or large is None:
        return None
    maker = _Maker(program, primitive, options)
    library = library_form(program, options)
    best = [it.plan for it in result.candidates if it.fused and it.plan is not None and forms.has(it.plan.parts)]
    plans = [it for plan in best if (it := plan_at(maker.task, plan, primitive, large)) is not None]
    if result.known and not (loops and forms.lacks_loops(primitive)):
        again = plans_of_known(maker.task, primitive, large, result.known, plan_limits(options))
        plans += [plan for plan in again if plan.us < library.predicted_us][:_TRIED]
    good = maker.first_right(plans, proved)
    if good is None and any(entry.fused for entry in result.candidates):
        return None
    return Result((library,) if good is None else (good, library), result.report, searched=searched, known=result.known)


def tuned_at(
    result: Result, searched: Graph, name: str, program: Graph, options: Options, observer: Observer, tuning: Tuning
) -> Result | None:
    """A result for `program` on the GPU here, tuned, with the structures that a search found for `searched`.

    `program` is the same one at other sizes. None if no structure serves it, as at a size of 1 where the search had a larger
    one; then it needs a search of its own.
    """
    forms = SizedForms(searched)
    primitive = forms.at(program)
    if not result.known or primitive is None or forms.lacks_loops(primitive) or primitive != primitive_form(expand(program)):
        return None
    if forms.large(primitive) is not primitive:
        return None
    tuned = tune_known(name, program, options, result.known, tuning, observer)
    if not any(entry.fused for entry in tuned.candidates) and any(entry.fused for entry in result.candidates):
        return None
    return replace(tuned, searched=searched, known=result.known)


_LOST = 2  # ops, which a search may leave to library kernels at other sizes


def why_worse(result: Result, earlier: Result) -> str | None:
    """Why a search at the sizes of `result` would find something faster, if so: `earlier` found its structures at others.

    More ops are left to library kernels (products not counted), or the library form is predicted to be faster.
    """
    best, before = (next((it for it in one.candidates if it.fused), None) for one in (result, earlier))
    if best is None or before is None:
        return None
    lost = _unfused(best.graph) - _unfused(before.graph)
    if lost > _LOST:
        return f"the structures found at other sizes leave {lost} more ops to library kernels"
    library = next((it for it in result.candidates if not it.fused), best)
    return None if best.us <= library.us else "the structures found at other sizes are slower than library kernels"


def _unfused(graph: Graph) -> int:
    """Elementwise ops and sums that are kernels of the library."""
    kinds = (Kind.ELEMENTWISE, Kind.REDUCTION)
    return sum(OPS[item.op].kind in kinds for launch in launched_kernels(graph) for item, _ in launch)


def structures_for(result: Result, searched: Graph, program: Graph, options: Options, *, loops: bool = True) -> Result | None:
    """The structures of `result`, found by a search for `searched`, as a result for `program`, the same at other sizes.

    They get tiles where the sizes of a bucket are known; the one candidate is the library form. None if `program` needs a
    search of its own: with `loops` also where it would find loops over axes that were too short for them.
    """
    forms = SizedForms(searched)
    primitive = forms.at(program)
    plans = tuple(it.plan for it in result.candidates if it.fused and it.plan is not None and forms.has(it.plan.parts))
    if primitive is None or forms.large(primitive) is None or (loops and forms.lacks_loops(primitive)):
        return None
    if not plans and any(entry.fused for entry in result.candidates):  # of a rewritten program
        return None
    return Result((library_form(program, options),), result.report, searched=searched, known=result.known, plans=plans)


_TRIED = 4  # other plans, until one is right


def plan_limits(options: Options) -> PartitionLimits:
    """The limits of plans through known segments."""
    segments = SegmentLimits(max_ops=options.max_block_ops, max_outputs=options.max_outputs)
    return replace(HEURISTICS.partition, segments=segments, max_kernels=options.max_kernels)


class SizedForms:
    """The primitive forms of a program at sizes other than those of `searched`."""

    def __init__(self, searched: Graph) -> None:
        self._expanded = expand(searched)
        self.primitive = primitive_form(self._expanded)
        self._outlines = [outline(item) for item in self.primitive.nodes]

    def at(self, program: Graph) -> Graph | None:
        """The primitive form of `program`, if this is the searched one at other sizes and has the same nodes."""
        expanded = expand(program)
        if _sizes_between(self._expanded, expanded) is None:
            return None
        primitive = primitive_form(expanded)
        if [outline(item) for item in primitive.nodes] == self._outlines:
            return primitive
        return self._resized(expanded)  # at extents of 1 there is more to simplify

    def _resized(self, program: Graph) -> Graph | None:
        """The primitive form with the inputs of `program`."""
        values = dict(zip(self.primitive.input_values, program.inputs, strict=True))
        found = _sizes_of(self.primitive, {value: item["shape"] for value, item in values.items()})
        try:
            resized = None if found is None else resize(self.primitive, *found)
        except TiedToSizeError:
            return None
        if resized is None or resized.output_types != program.output_types:
            return None
        inputs = iter(program.inputs)
        return Graph(tuple(next(inputs) if item.op == "input" else item for item in resized.nodes))

    def has(self, parts: Sequence[PlanPart]) -> bool:
        """Whether a plan of the search is one of this form: graph substitutions give others."""
        return is_plan_of(self.primitive, parts)

    def lacks_loops(self, primitive: Graph) -> bool:
        """Whether an axis that is summed over was too short for loops in the search, and is not at these sizes."""
        found = _sizes_between(self.primitive, primitive)
        return found is not None and any(
            found[0].sizes[axis] < SEARCH.shortest_loop <= found[1][axis] for axis in found[0].reduced
        )

    def large(self, primitive: Graph) -> Graph | None:
        """The primitive form with sizes of at least 2 on all axes of the search, if there is one; at 1 a dim has no axis."""
        found = _sizes_between(self.primitive, primitive)
        if found is None:
            return None
        axes, sizes = found
        if min(sizes, default=2) > 1:
            return primitive
        try:
            return resize(self.primitive, axes, [max(2, size) for size in sizes])
        except TiedToSizeError:
            return None


def primitive_form(expanded: Graph) -> Graph:
    """The form of a program that the search partitions."""
    return drop_shifts(simplify(expanded).after)


_EQUAL_TO_ITSELF = Verdict(Equality.EQUAL, 0, 0, 0, 0, 0.0, "it is the program", 1.0, evidence=())


def library_form(program: Graph, options: Options) -> Candidate:
    """The program itself, as library kernels."""
    made, us = fitting(program, program, options.device_record.target), predict_us(program, options.device_record)
    written = made.source, made.schedule, made.record
    return Candidate(program, us, False, *written, _EQUAL_TO_ITSELF, FloatCheck(True, 0.0, 0.0, None))


class _Maker:
    """Makes candidates for a program from the plans of another search, with its primitive form."""

    def __init__(self, program: Graph, primitive: Graph, options: Options) -> None:
        self.device = options.device_record
        self._program, self._primitive = program, primitive
        self._reference = BlockReference(program, options.trials, options.seed)
        self._rulebook: Rulebook = load_rules(
            "indexed",
            options.rules,
            options.without if options.domain == "indexed" else (),
            options.undefined_in(program),
        )
        self.task = instantiation_task(self._rulebook, options)
        self._prover = Prover(program, self._rulebook)

    def first_right(self, plans: Sequence[KernelPlan], proved: bool) -> Candidate | None:
        """The cheapest µGraph of these plans that is right; one that fuses ops."""
        for plan in sorted(plans, key=lambda plan: plan.us):
            if is_fused(self._primitive, plan):
                graph = compose(self._primitive, plan.parts)
                found = Found(graph, predict_us(graph, self.device), fused=True, plan=plan)
                if (made := self._checked(found, proved)) is not None:
                    return made
        return None

    def _checked(self, found: Found, proved: bool) -> Candidate | None:
        """The candidate; None if it does not compile, is not right, or is not `proved` as wanted."""
        try:
            graph = lower(found, self.device).graph
            made = fitting(self._program, graph, self.device.target)
        except UnsupportedError:
            return None
        verdict = combine_evidence(self._reference.check(graph), "a µGraph at other sizes", self._prover.prove(graph))
        if not made.record.ok or not verdict.equal or (proved and "proved" not in verdict.evidence):
            return None
        [check] = self._reference.float_checks([graph])
        written = made.source, made.schedule, made.record
        return Candidate(graph, found.predicted_us, True, *written, verdict, check, found.plan) if check.ok else None


def instantiation_task(rulebook: Rulebook, options: Options) -> Task:
    """What the choice of tilings at other sizes depends on."""
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    limits = SearchLimits(options.max_block_ops)
    return Task(rulebook, options.device_record, limits, filters, options.seed, ask_compiler=False)


def plan_at(task: Task, plan: KernelPlan, program: Graph, large: Graph) -> KernelPlan | None:
    """A plan with tiles for a program at other sizes, if all its parts have some; `large` has the program at sizes above 1."""
    parts = []
    for part in plan.parts:
        segment = segment_program(program, part.segment)
        if part.kernels.structure is None:
            kernels = library_kernels(task.device, segment)
        else:
            again = instantiate_again(task, part.kernels.structure, segment, segment_program(large, part.segment))
            if again is None:
                return None
            kernels = again
        parts.append(replace(part, kernels=kernels))
    return KernelPlan(tuple(parts))


def is_plan_of(primitive: Graph, parts: Sequence[PlanPart]) -> bool:
    """Whether the segments of a plan are those of this program."""
    return all(
        max(part.segment.nodes) < len(primitive.nodes)
        and [kind.shape for kind in segment_program(primitive, part.segment).input_types]
        == [kind.shape for kind in part.kernels.graph.input_types]
        for part in parts
    )


__all__ = [
    "SizedForms",
    "instantiation_task",
    "is_plan_of",
    "plan_at",
    "plan_limits",
    "primitive_form",
    "result_at",
    "structures_for",
    "tuned_at",
    "why_worse",
]
