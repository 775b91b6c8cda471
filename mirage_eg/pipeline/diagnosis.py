"""Diagnosis of a search without a fused kernel: prune reasons, the closest candidate, and the change that it needs.

It runs only after such a search, so that no search stores its failures. It finds the closest candidate by another search, under
other limits or for parts of the program. Its limits are states, not time: the same run has the same diagnosis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.liveness import is_of_rows
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, nodes_between
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.renamed_views import rename_views
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.report_sections import Diagnosis
from mirage_eg.pipeline.search_stage import filters_of
from mirage_eg.search.instantiate.instantiate import instances, small_instance
from mirage_eg.search.instantiate.limits import Filters, TileLimits, footprint
from mirage_eg.search.partition.plan_records import SegmentLimits
from mirage_eg.search.partition.segment_search import Instantiated, longest_held
from mirage_eg.search.partition.segments import Segmenter, op_count
from mirage_eg.search.structure import AnyStructure
from mirage_eg.search.structure_search import SearchLimits, SearchResult, search
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality, Verdict


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The results of the stages of a run without a fused result."""

    primitive: Graph  # with names for its axes, where it was searched as a whole
    axes: Axes | str  # or why it was not
    search: SearchResult
    structures: Sequence[Instantiated]  # with the field check
    rejected: Sequence[Verdict]  # at full size
    compile_errors: Sequence[str]  # of fused candidates
    until: Deadline = NEVER  # searches of the diagnosis end then


def diagnose(found: FailedRun, rulebook: Rulebook, options: Options, device: Device) -> Diagnosis:
    """The explanation of a run without a fused result, in JSON's types.

    `ended` counts pruned candidates by reason, `stage` is the stage of the last one. The closest candidate and the change
    that it needs are sentences.
    """
    ended = found.search.pruned
    for stage in ("field check", "overflow"):
        ended[stage] = sum(entry.ended == stage for entry in found.structures)
    ended["tile limits"] = sum(not entry.built for entry in found.structures)
    stage, miss, change = _closest(found, rulebook, options, device)
    counts = {reason: count for reason, count in sorted(ended.items(), key=lambda item: -item[1]) if count}
    return Diagnosis(found.search.visited, counts, stage, miss, change)


def _closest(found: FailedRun, rulebook: Rulebook, options: Options, device: Device) -> tuple[str, str, str]:
    if isinstance(found.axes, str):
        try:
            named = rename_views(found.primitive).program
        except UnsupportedError:
            part = _largest_part(found, rulebook, options)
            return "axes", part, f"{found.axes}; the search covers programs without that"
        if (outputs := len(found.primitive.outputs)) > options.max_outputs:
            return "limits", _largest_part(found, rulebook, options), f"--max-outputs {outputs}"
        segments = SegmentLimits(max_ops=HEURISTICS.diagnosis_block_ops, longest_held=longest_held(device))
        if (reason := Segmenter(named, segments).why_not_one()) is not None:
            part = _largest_part(found, rulebook, options)
            return "limits", part, f"more kernels (--max-kernels): {reason}"
        return "limits", *_closest_of_search(replace(found, primitive=named), infer_axes(named), rulebook, options)
    if not found.search.all:
        return "search", *_closest_of_search(found, found.axes, rulebook, options)
    if all(entry.ended == "overflow" for entry in found.structures):
        plan = min(found.search.all, key=lambda plan: plan.ops)
        miss = f"a structure of {plan.ops} block ops is equal to the program, and overflows in floats where it does not"
        return "overflow", miss, "smaller numbers, or a program that subtracts the largest before its exponentials"
    if all(entry.equal is False for entry in found.structures):
        return "field check", *_closest_of_check(found, found.axes, options)
    if not any(entry.kernels for entry in found.structures):
        return "tile limits", *_closest_of_limits(found, found.axes, options, device)
    if found.compile_errors:
        return "compile", f"a verified µGraph does not compile: {found.compile_errors[0]}", "smaller tiles, or another --target"
    if not found.rejected:
        return "verification", "a µGraph that was not verified: the budget was spent", "a larger --budget"
    first = found.rejected[0]
    if first.verdict is Equality.UNDECIDED and first.unproved_because is not None:
        change = "a law that passes mirage-eg rules check, or one that the field knows too"
        return "verification", f"a µGraph that is undecided at full size: {first.unproved_because}", change
    return (
        "verification",
        f"a µGraph that is right on a small instance differs at full size: {first.difference}",
        "this is a mistake in mirage_eg or in a law: mirage-eg rules check tests the laws",
    )


def _closest_of_search(found: FailedRun, axes: Axes, rulebook: Rulebook, options: Options) -> tuple[str, str]:
    stopped = [record for record in found.search.records if not record.complete]
    for most in range(options.max_block_ops + 4, HEURISTICS.diagnosis_block_ops + 1, 4):
        larger = search(found.primitive, axes, rulebook, _limits(options, most, found.until))
        if larger.structures or larger.split_reductions:
            plans: list[AnyStructure] = [*larger.structures[:1], *larger.split_reductions[:1]]
            needed = min(plan.ops for plan in plans)
            return (
                f"a structure of {needed} block ops, {needed - options.max_block_ops} more than --max-block-ops allows",
                f"--max-block-ops {needed}",
            )
    part = _largest_part(found, rulebook, options)
    if stopped:
        return part, f"{counted(len(stopped), 'split')} not searched to the end: a longer --budget, or fewer --max-block-ops"
    return part, "a law that lets the rest be computed with it in one block, or a cut into more kernels there"


def _closest_of_check(found: FailedRun, axes: Axes, options: Options) -> tuple[str, str]:
    plan = min(found.search.all, key=lambda plan: plan.ops)
    verdict = verify(*small_instance(plan, found.primitive, axes), trials=options.trials, seed=options.seed)
    if options.domain == "abstract":
        change = "--domain indexed: the abstract domain forgets which index is which"
    else:
        change = "a loaded law is not true of numbers: mirage-eg rules check tests them"
    return f"a structure of {plan.ops} block ops is {verdict.verdict}: {verdict.difference}", change


def _closest_of_limits(found: FailedRun, axes: Axes, options: Options, device: Device) -> tuple[str, str]:
    limits = TileLimits(shared_memory=device.shared_memory, multiprocessors=device.multiprocessors, target=device.target)
    filters = filters_of(options)
    if filters != Filters():
        for name in ("griddims", "imaps", "omaps", "fmaps", "franges"):
            freed = replace(filters, **{name: None})
            if freed != filters and (graph := next(_graphs(found, axes, limits, freed), None)) is not None:
                return f"{_extents(graph)} passes all filters but {name}", f"{name} that admit it"
        if (graph := next(_graphs(found, axes, limits, Filters()), None)) is not None:
            return f"{_extents(graph)} fits a block, and passes no filter but one at a time", "fewer filters"
    for scale in HEURISTICS.diagnosis_scales:
        wider = replace(limits, shared_memory=scale * limits.shared_memory, registers=scale * limits.registers)
        overflows = [
            (max(shared / limits.shared_memory, registers / capacity), shared, registers, capacity, number, graph)
            for number, graph in enumerate(_graphs(found, axes, wider, filters))
            for shared, registers in [_largest_footprint(graph, limits)]
            for capacity in [limits.capacity(all(map(is_of_rows, graph.blocks)))]
        ]
        if overflows:
            ratio, shared, registers, capacity, _, graph = min(overflows, key=lambda entry: (entry[0], entry[4]))
            what, need, have = (
                ("shared memory", shared, limits.shared_memory)
                if shared / limits.shared_memory == ratio
                else ("registers", registers, capacity)
            )
            held = f"{ratio:.1f} times the {have / 1024:.0f} KiB of a block"
            return (
                f"{_extents(graph)} needs {need / 1024:.0f} KiB of {what}, {held}",
                "shorter axes that no loop and no grid cuts, or a law that lets one of them be cut",
            )
    return (
        f"every µGraph of {counted(len(found.structures), 'structure')} needs more than {scale} times what a block holds",
        "a law that lets the whole axes of a tile be cut by a loop or the grid",
    )


def _graphs(found: FailedRun, axes: Axes, limits: TileLimits, filters: Filters) -> Iterator[Graph]:
    most = 1 + HEURISTICS.diagnosis_graphs // len(found.structures)
    for entry in found.structures:
        yield from islice(instances(entry.structure, found.primitive, axes, limits, filters), most)


def _largest_footprint(graph: Graph, limits: TileLimits) -> tuple[int, int]:
    needs = [footprint(block, limits) for block in graph.blocks]
    return max(shared for shared, _ in needs), max(registers for _, registers in needs)


def _extents(graph: Graph) -> str:
    blocks = [f"grid {'×'.join(map(str, block.grid)) or 1}, loop {block.loop}" for block in graph.blocks]
    return f"a µGraph of {counted(len(blocks), 'kernel')} ({'; '.join(blocks)})"


def _largest_part(found: FailedRun, rulebook: Rulebook, options: Options) -> str:
    """The longest part that fits fused kernels: all that a value is computed of, or all that is computed of a value."""
    program, limits = found.primitive, _limits(options, options.max_block_ops, found.until)
    total = op_count(program)
    written = takewhile(lambda _: not found.until.passed(), _parts(program))
    parts = sorted(((op_count(part), text, part) for text, part in written), key=lambda entry: (-entry[0], entry[1]))
    parts = [entry for entry in parts if 1 < entry[0] < total][: HEURISTICS.diagnosis_parts]
    for ops, text, part in parts:
        if _fuses(part, rulebook, limits, options.device_record):
            return f"{ops} of the {total} ops fit one kernel, or two with partial results between them: {text}"
    return f"none of the {len(parts)} largest parts of the program's {total} ops fits a kernel"


def _fuses(part: Graph, rulebook: Rulebook, limits: SearchLimits, device: Device) -> bool:
    try:
        named = rename_views(part).program
    except UnsupportedError:
        return False
    segments = SegmentLimits(max_ops=limits.max_block_ops, longest_held=longest_held(device))
    if Segmenter(named, segments).why_not_one() is not None:
        return False
    found = search(named, infer_axes(named), rulebook, limits)
    return bool(found.structures or found.split_reductions)


def _limits(options: Options, most: int, until: Deadline) -> SearchLimits:
    states, kernels = HEURISTICS.diagnosis_states, options.kernels_of_search
    return SearchLimits(most, states, seconds=until.left(), max_kernels=kernels, max_outputs=options.max_outputs)


def _parts(program: Graph) -> Iterator[tuple[str, Graph]]:
    """For the result of each op: the program that computes only it, and the program after it, if there is one."""
    for item, values in program.numbered():
        if item.kind is not Kind.BOUNDARY:
            for value in values:
                yield f"all that %{value} ({item.op}) is computed of", needed_subprogram(program, value)
                yield f"all after %{value} ({item.op})", needed_subprogram(program, None, value)


def needed_subprogram(program: Graph, output: int | None, given: int | None = None) -> Graph:
    """The nodes that an output needs, or all outputs, where the value `given` is an input."""
    ends = [output] if output is not None else [item.operands[0] for item in program.outputs]
    copy = GraphCopy(program)
    if given is not None:
        copy.read(given)
    for item, values in nodes_between(program, copy.position, ends):
        copy.copy(item, values)
    for end in ends:
        copy.write(end)
    return copy.graph()
