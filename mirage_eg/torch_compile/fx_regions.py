"""Which nodes of an FX graph form one segment of the backend: the regions of the imported programs.

A region ends at an articulation value (`search.partition.regions`), such as the residual stream, so that equal layers give
equal programs. Small functions of arguments that several regions read, such as the angles of rotary embeddings, are a region of
their own, before the others. A view is computed in the region that reads it, by more than one region if it is a view of an
argument. A view that only others read stays with torch, so that it shares memory with its source; so do views of which others
read the source or another view.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

from mirage_eg.frontend.fx_partition import Analysis, Place, analyse, escaping, segments, users_of, writes_argument
from mirage_eg.frontend.fx_translate import Translation
from mirage_eg.frontend.fx_values import LITERALS, Fx, has_fixed_sizes, is_view, nbytes_of, shares_memory
from mirage_eg.frontend.imported import AddedInput, CausalMask, Constant
from mirage_eg.frontend.symbolic_sizes import is_row_major
from mirage_eg.frontend.torch_export import known_values, segment_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.node import Node
from mirage_eg.ir.written_inputs import with_written_inputs
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.search.partition.regions import regions
from mirage_eg.torch_compile.image_strides import are_images_last, strides_of, with_strides
from mirage_eg.torch_compile.narrow_attentions import with_narrow_attentions
from mirage_eg.torch_compile.row_gaps import with_row_gaps


@dataclass(frozen=True, slots=True)
class FxRegion:
    """The nodes of one segment in the order of the graph, and its program with positions as names.

    `inputs` are nodes of the graph, or inputs that the import adds. Other nodes read `outputs`, which kernels write, and
    `views`, which torch computes from an output or an argument. `writes` are the nodes that copy outputs into arguments, as the
    program is marked.
    """

    nodes: tuple[Fx, ...]
    inputs: tuple[Fx | AddedInput, ...]
    outputs: tuple[Fx, ...]
    views: tuple[Fx, ...]
    program: Graph
    ops: int
    writes: tuple[Fx, ...] = ()


@dataclass(frozen=True, slots=True)
class FxRegions:
    """The regions of a graph, the analysis of its nodes, and whether Inductor would have its images channels last."""

    module: Any
    regions: tuple[FxRegion, ...]
    found: Analysis
    images_last: bool


def fx_regions(
    module: Any,
    parameters: Sequence[str],
    excluded: Callable[[Fx], str | None],
    constant_weights: bool = False,
    in_place: bool = True,
) -> FxRegions:
    """The regions of a functional graph of ATen ops; `parameters` are the names of placeholders that are weights or buffers.

    Constant masks that import adds are weights of the regions' programs; with `constant_weights` all constants and these
    parameters are, but for those that the graph writes. With `in_place` results may be written into arguments.

    Raises ProgramError: a node changes an operand in place.
    """
    import torch

    roles = dict.fromkeys(parameters, Place.PARAMETER)
    state: dict[str, Any] = {}
    for each in module.graph.nodes:
        if each.op == "get_attr":
            literal = str(each.target).startswith(LITERALS) and isinstance(value := getattr(module, each.target), torch.Tensor)
            roles[each.name] = Place.CONSTANT if literal else Place.PARAMETER
            if literal:
                state[each.name] = value
    known = known_values(module.graph, roles, state)
    found = analyse(module.graph, roles, known, excluded)
    made = []
    for group in segments(module.graph, found):
        try:
            made += [_region(*part, found, known, constant_weights) for part in _parts(group, found, known)]
        except UnsupportedError as error:  # it reads a value whose extent is a product of sizes
            found.place.update(dict.fromkeys(group, Place.OUTSIDE))
            found.reason.update(dict.fromkeys(group, str(error)))
    made = _laid_out(made, found)
    own = tuple(_writing(made, found) if in_place else made)
    return FxRegions(module, own, found, are_images_last(module))


def _laid_out(regions: Sequence[FxRegion], found: Analysis) -> list[FxRegion]:
    """The regions with the strides of the images that they read and write, and of the results of large products."""
    readers = {each: [*users_of(each, found)] for region in regions for each in region.outputs}
    inside = {each for region in regions for each in region.nodes}
    programs = with_strides([(it.inputs, it.outputs, it.program) for it in regions], readers, inside)
    pairs = zip(regions, programs, strict=True)
    return [replace(it, program=with_row_gaps(program, it.outputs, readers, inside)) for it, program in pairs]


def _writing(regions: Sequence[FxRegion], found: Analysis) -> Iterator[FxRegion]:
    """The regions with the results that they write into an argument: nothing else reads the value that it has before."""
    times = Counter(each for region in regions for each in region.nodes)
    for region in regions:
        own = {each for each in region.nodes if times[each] == 1} - {*region.views}
        into: dict[int, int] = {}
        writes = []
        for place, (each, kind) in enumerate(zip(region.outputs, region.program.output_types, strict=True)):
            copy = _only_copy(each, found)
            if copy is None or copy.args[0] not in region.inputs or not _is_read_by(own, copy, found):
                continue
            if region.program.input_types[given := region.inputs.index(copy.args[0])] == kind:
                into[place], found.place[copy] = given, Place.SEGMENT
                writes.append(copy)
        yield replace(region, program=with_written_inputs(region.program, into), writes=tuple(writes))


def _only_copy(each: Fx, found: Analysis) -> Fx | None:
    """The node that copies a value into an argument; None if there are several, or if the graph returns the value."""
    users = [*users_of(each, found)]
    copies = [user for user in users if writes_argument(user)]
    is_result = any(user.op == "output" for user in users) or any(copy.users for copy in copies)
    return copies[0] if len(copies) == 1 and not is_result else None


def _is_read_by(nodes: Container[Fx], copy: Fx, found: Analysis) -> bool:
    """Whether these nodes alone read an argument before it is written."""
    [argument, _] = copy.args
    equal = (user for user in argument.users if user is not copy and user not in nodes)
    return is_row_major(argument.meta["val"]) and all(found.same.get(user, argument) is not argument for user in equal)


_FIRST = -1  # the number of the region of small functions of arguments
_SMALL = 1 << 20  # bytes

Part = tuple[list[Fx], list[Fx], list[Fx]]  # nodes, outputs and views of a region


def _region(
    part: Sequence[Fx],
    outputs: Sequence[Fx],
    views: Sequence[Fx],
    found: Analysis,
    known: Callable[[Fx], Any],
    constant_weights: bool,
) -> FxRegion:
    segment, lifted = segment_of(part, outputs, found, known)
    by_name = {each.name: each for one in part for each in found.operands(one)}
    inputs = tuple(lifted[name] if name in lifted else by_name[name] for name in segment.program.input_names)
    ops = sum(name not in segment.views for name in segment.nodes)
    device = outputs[0].meta["val"].device
    pairs = enumerate(zip(inputs, segment.program.inputs, strict=True))
    of_inputs = [
        {"name": f"x{place}", "weight": _is_weight(given, item, constant_weights, device) or None}
        for place, (given, item) in pairs
    ]
    of_outputs = [{"name": f"out{place}"} for place in range(len(segment.program.outputs))]
    program = with_attributes(segment.program, of_inputs, of_outputs)  # named by place: equal segments are equal graphs
    if any(map(_is_of_attention, part)):
        program = with_narrow_attentions(program)
    return FxRegion(tuple(part), inputs, tuple(outputs), tuple(views), program, ops)


def _is_of_attention(node: Fx) -> bool:
    """Whether torch wrote out its attention with this node."""
    from torch.nn.functional import scaled_dot_product_attention

    return (node.meta.get("source_fn_stack") or [("", None)])[-1][1] is scaled_dot_product_attention


def _is_weight(given: Fx | AddedInput, item: Node, constant_weights: bool, device: Any) -> bool:
    """Whether an input of a program is marked as a weight: a constant mask always, others where weights are constant."""
    if isinstance(given, CausalMask):
        return False
    if isinstance(given, Constant):
        return constant_weights or item["dtype"] == str(DType.bool)
    return constant_weights and bool(item.get("weight")) and _stays(given, device)


def _stays(given: Fx, device: Any) -> bool:
    """Whether an argument is passed as it is and never written: a copy of it would have a new address in each call."""
    as_it_is = is_row_major(given.meta["val"]) or strides_of(given) is not None
    return as_it_is and not is_host_number(given.meta["val"], device) and not any(map(writes_argument, given.users))


def is_host_number(value: Any, device: Any) -> bool:
    """Whether a value is a tensor of one number on the CPU, which torch's ops take with tensors of another device."""
    return not value.dim() and value.device.type == "cpu" != device.type


def _parts(group: Sequence[Fx], found: Analysis, known: Callable[[Fx], Any]) -> list[Part]:
    """The nodes of the regions of one imported segment."""
    it = Translation(found.same, known)
    made: dict[int, Fx] = {}  # the FX node of each node of the program
    for each in group:
        before = len(it.graph.nodes)
        it.append(each)
        made.update((place, each) for place in range(before, len(it.graph.nodes)) if it.graph.nodes[place].op != "input")
    for each in escaping(group, found):
        it.graph.mark_output(it.values[each])
    number: dict[Fx, int] = {}
    times: Counter[int] = Counter()
    for position, segment in enumerate(regions(it.graph.graph(), HEURISTICS.region_ops)):
        for place in segment.nodes - times.keys():
            if place in made:
                number[made[place]] = position  # the first region of its last op: views of a result are in later ones, too
        times.update(segment.nodes)
    results = [each for each in group if each.target is getitem]
    for each in results:  # a node and its results are in one region
        number[each.args[0]] = max(number.get(each, 0), number.get(each.args[0], 0))
    number.update((each, number[each.args[0]]) for each in results)
    repeated = {made[place] for place, count in times.items() if count > 1 and place in made}
    return _by_region(group, found, number, repeated)


def _without_last_views(part: Sequence[Fx], found: Analysis) -> list[Fx]:
    """The nodes without views that none of the others reads."""
    kept = set(part)
    for each in reversed(part):
        results = [user for user in each.users if user.target is getitem]  # of a split: all of them stay, or none
        readers = [reader for it in (each, *results) for reader in users_of(it, found) if reader not in results]
        if each.target is not getitem and is_view(each) and not any(reader in kept for reader in readers):
            kept -= {each, *results}
    return [each for each in part if each in kept]


def _by_region(group: Sequence[Fx], found: Analysis, number: Mapping[Fx, int], repeated: Container[Fx]) -> list[Part]:
    """The nodes of each region; views go where they are read, functions of arguments alone to each region that reads them.

    But those that are small, and are not only moved, are computed once.
    """
    inside = set(group)
    readers: dict[Fx, list[Fx]] = {each: [] for each in group}
    region: dict[Fx, int] = {}
    free: set[Fx] = set()  # functions of arguments alone
    for each in group:
        operands = [it for it in found.operands(each) if it in inside]
        for operand in operands:
            readers[operand].append(each)
        again = each in found.views or each in repeated or each not in number  # not one: a field of a word, read where it is
        if each.target is not getitem and again and all(it in free for it in operands):
            free.add(each)
        region[each] = 0 if each in free else max([number.get(each, 0), *(region[it] for it in operands)])
    outputs = set(escaping(group, found))
    placed: dict[Fx, set[int]] = {}
    for each in reversed(group):
        wanted = {place for reader in readers[each] for place in placed[reader]}
        if each in free and len(wanted) > 1 and each not in found.moves and _is_small(each):
            placed[each] = {_FIRST}
        elif each in free:
            placed[each] = {min(wanted, default=0)} if each in outputs else wanted
        else:
            moves = each in found.views and each not in outputs and each.target is not getitem
            placed[each] = {min(wanted)} if moves and wanted else {region[each]}
    several = {each for each in group if len(placed[each]) > 1}
    parts = []
    for place in sorted({place for places in placed.values() for place in places}):
        part = _without_last_views([each for each in group if place in placed[each]], found)
        parts.append((part, *_in_memory(part, [each for each in escaping(part, found) if each not in several], found)))
    return [(part, results, views) for part, results, views in parts if results]


def _is_small(each: Fx) -> bool:
    """Whether a value, with its operands, is read in less time than a kernel's launch takes."""
    return has_fixed_sizes(each) and nbytes_of(each) <= _SMALL


def _in_memory(part: Sequence[Fx], results: Sequence[Fx], found: Analysis) -> tuple[list[Fx], list[Fx]]:
    """The results that a kernel writes, and the views of them, or of arguments, that torch computes.

    Of several results in the memory of one value of the region this value is written.
    """
    inside = {*part}
    chains = {each: _chain(each, inside | found.same.keys()) for each in results}
    shared = Counter(chain[-1] for chain in chains.values())
    written = set[Fx]()
    views = {each.args[0] for each in found.same if each.target is getitem}  # splits into one part, which equals their operand
    for each, (*chain, source) in chains.items():
        argument = found.same.get(source, source) not in inside  # a copy that the program leaves out is none
        with_torch = argument or (source in inside and shared[source] > 1)
        written.add(source if with_torch else each)
        views.update(chain if with_torch else ())
    return [each for each in part if each in written], [each for each in part if each in views]


def _chain(each: Fx, inside: Container[Fx]) -> list[Fx]:
    """A node, and if it is a view the nodes inside that it is a view of, up to one that is no view, or is outside."""
    chain = [each]
    while chain[-1] in inside and shares_memory(chain[-1].args[0] if chain[-1].target is getitem else chain[-1]):
        chain.append(chain[-1].args[0])
    return chain
