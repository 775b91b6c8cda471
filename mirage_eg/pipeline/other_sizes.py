"""Results of a search for the same program at other sizes: the structures serve again, with new tiles and a new verification.

Structures name axes, not extents: those of one size above 1 are those of all. At size 1 a dim has no axis (`ir.axes`). So a
search at size 1 serves no other size, and structures that were found at a larger size serve size 1 as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.array_module import array_module
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.ir.axes import Axes, infer_axes, resize
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.compile_stage import fitting
from mirage_eg.pipeline.program_form import outline
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import NOT_WRITTEN, Candidate, Result
from mirage_eg.search.instantiate.limits import Filters
from mirage_eg.search.partition.compose import compose
from mirage_eg.search.partition.segment_search import Task, instantiate_again
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.search.partition.shortest_path import KernelPlan, PlanPart
from mirage_eg.search.structure_search import SearchLimits
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from mirage_eg.verify.evidence import combine_evidence
from mirage_eg.verify.float_check import float_checks
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import Reference


def _sizes_between(searched: Graph, program: Graph) -> tuple[Axes, tuple[int, ...]] | None:
    """The axes of `searched`, and their sizes in `program`, if that is the same one at other sizes; both of primitive ops."""
    same = len(searched.nodes) == len(program.nodes) and all(
        outline(one) == outline(other) for one, other in zip(searched.nodes, program.nodes, strict=True)
    )
    if not same or len(searched.types) != len(program.types):
        return None
    try:
        axes = infer_axes(searched, repeats=True, barriers=True, slices=True)
    except UnsupportedError:
        return None
    shapes = [kind.shape for kind in program.types]
    sizes: dict[int, int] = {}
    if [len(shape) for shape in shapes] != [len(dims) for dims in axes.dims]:
        return None
    for dims, shape in zip(axes.dims, shapes, strict=True):
        sizes.update((dim[0], extent) for dim, extent in zip(dims, shape, strict=True) if len(dim) == 1)
    if len(sizes) < len(axes.sizes):
        return None
    agree = all(
        prod(sizes[axis] for axis in dim) == extent
        for dims, shape in zip(axes.dims, shapes, strict=True)
        for dim, extent in zip(dims, shape, strict=True)
    )
    return (axes, tuple(sizes[axis] for axis in range(len(axes.sizes)))) if agree else None


def result_at(result: Result, searched: Graph, program: Graph, options: Options, *, proved: bool = False) -> Result | None:
    """The µGraphs of `result`, found by a search for `searched`, with new tiles for `program`, the same at other sizes.

    The first one compiles and is verified, with `proved` by a proof; the others are for buckets of sizes. None if there is none
    such, though `result` has a fused one: then `program` needs a search of its own.
    """
    forms = SizedForms(searched)
    primitive = forms.at(program)
    large = None if primitive is None else forms.large(primitive)
    if primitive is None or large is None:
        return None
    maker = _Maker(program, primitive, large, options)
    plans = [entry for entry in result.candidates if entry.fused and forms.has_plan_of(entry)]
    fused = sorted(maker.candidates(plans), key=lambda entry: entry.predicted_us)
    good = next((made for entry in fused if (made := maker.finished(entry, proved)) is not None), None)
    if good is None and any(entry.fused for entry in result.candidates):
        return None
    library = Candidate(program, predict_us(program, maker.device), fused=False, proved_by_search=True)
    others = [entry for entry in fused if good is None or entry.plan != good.plan]
    others = [replace(entry, source=f"{NOT_WRITTEN}: at other sizes\n") for entry in others]
    return Result((*([] if good is None else [good]), *others, maker.compiled(library)), result.report, searched=searched)


class SizedForms:
    """The primitive forms of a program at sizes other than those of `searched`."""

    def __init__(self, searched: Graph) -> None:
        self._expanded = expand(searched)
        self._primitive = _primitive(self._expanded)
        self._outlines = [outline(item) for item in self._primitive.nodes]

    def at(self, program: Graph) -> Graph | None:
        """The primitive form of `program`, if this is the searched one at other sizes and has the same nodes."""
        expanded = expand(program)
        if _sizes_between(self._expanded, expanded) is None:
            return None
        primitive = _primitive(expanded)
        return primitive if [outline(item) for item in primitive.nodes] == self._outlines else None

    def has_plan_of(self, candidate: Candidate) -> bool:
        """Whether a candidate of the search has a plan, and one of this form: graph substitutions give others."""
        return candidate.plan is not None and is_plan_of(self._primitive, candidate.plan.parts)

    def large(self, primitive: Graph) -> Graph | None:
        """The primitive form with sizes of at least 2 on all axes that the search had; at 1 a dim has no axis."""
        found = _sizes_between(self._primitive, primitive)
        if found is None:
            return None
        axes, sizes = found
        return primitive if min(sizes, default=2) > 1 else resize(self._primitive, axes, [max(2, size) for size in sizes])


def _primitive(expanded: Graph) -> Graph:
    return drop_shifts(simplify(expanded).after)


class _Maker:
    """Makes candidates for a program from the plans of another search, with its primitive form, given and `large`."""

    def __init__(self, program: Graph, primitive: Graph, large: Graph, options: Options) -> None:
        self.device = options.device_record
        self._program, self._primitive, self._large = program, primitive, large
        self._reference = Reference(program, options.trials, options.seed, array_module(program))
        self._rulebook: Rulebook = load_rules("indexed", options.rules, options.without if options.domain == "indexed" else ())
        self._task = instantiation_task(self._rulebook, options)
        self._prover = Prover(program, self._rulebook)

    def candidates(self, found: Sequence[Candidate]) -> Iterator[Candidate]:
        """The µGraphs of these plans with tiles that fit; their plans are those of this program."""
        for entry in found:
            assert entry.plan is not None
            try:
                parts = [part_at(self._task, part, self._primitive, self._large) for part in entry.plan.parts]
                plan = KernelPlan(tuple(part for part in parts if part is not None))
                graph = compose(self._primitive, plan.parts) if len(plan.parts) == len(parts) else None
            except UnsupportedError:  # no tiling fits
                continue
            if graph is not None:
                yield Candidate(graph, predict_us(graph, self.device), True, entry.proved_by_search, plan=plan)

    def finished(self, entry: Candidate, proved: bool) -> Candidate | None:
        """The candidate with source and verdict; None if it does not compile, is not right, or is not `proved` as wanted."""
        try:
            lowered = replace(entry, graph=optimize_mugraph(entry.graph, self.device).graph)
            written = self.compiled(lowered)
        except UnsupportedError:
            return None
        verdict = self._reference.check(written.graph)
        verdict = combine_evidence(verdict, "a µGraph at other sizes", self._prover.prove(written.graph))
        made = replace(written, verdict=verdict)
        if not made.compile.ok or not verdict.equal or (proved and not made.proved):
            return None
        [check] = float_checks(self._reference, [made.graph])
        return replace(made, float_check=check) if check.ok else None

    def compiled(self, entry: Candidate) -> Candidate:
        """The candidate with its source and the compiler's record."""
        made = fitting(self._program, entry.graph, self.device.target)
        return replace(entry, source=made.source, schedule=made.schedule, compile=made.record)


def instantiation_task(rulebook: Rulebook, options: Options) -> Task:
    """What the choice of tilings at other sizes depends on."""
    filters = Filters(options.griddims, options.imaps, options.omaps, options.fmaps, options.franges)
    limits = SearchLimits(options.max_block_ops)
    return Task(rulebook, options.device_record, limits, filters, options.seed, ask_compiler=False)


def part_at(task: Task, part: PlanPart, program: Graph, large: Graph) -> PlanPart | None:
    """A part of a plan with tiles for a program at other sizes; `large` has the program at sizes above 1."""
    segment = segment_program(program, part.segment)
    if part.kernels.structure is None:
        return replace(part, kernels=replace(part.kernels, graph=segment))
    kernels = instantiate_again(task, part.kernels.structure, segment, segment_program(large, part.segment))
    return None if kernels is None else replace(part, kernels=kernels)


def is_plan_of(primitive: Graph, parts: Sequence[PlanPart]) -> bool:
    """Whether the segments of a plan are those of this program."""
    return all(
        max(part.segment.nodes) < len(primitive.nodes)
        and [kind.shape for kind in segment_program(primitive, part.segment).input_types]
        == [kind.shape for kind in part.kernels.graph.input_types]
        for part in parts
    )


__all__ = ["SizedForms", "instantiation_task", "is_plan_of", "part_at", "result_at"]
