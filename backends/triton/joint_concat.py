"""Concatenations in one launch: those whose operands are ready before any of the results is read, such as two growing caches.

A concatenation alone is a call of torch. Several are one generated kernel, with a branch for each operand, which it copies to
its place in the result.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mirage_eg.backends.triton.addressing import LARGEST_OFFSET, highest_offset, row_major
from mirage_eg.backends.triton.block_kernel import BlockKernel
from mirage_eg.backends.triton.copied_block import STAGES, WARPS, StridedMemory, copied_block, kernel_source
from mirage_eg.backends.triton.program_file import TRITON_TYPES, ProgramFile
from mirage_eg.backends.triton.views import joined_values
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import VIEWS_IN_ORDER
from mirage_eg.ir.weights import prepared_values


@dataclass(frozen=True, slots=True)
class JointConcat:
    """Concatenations that are launched together before the node at `place`: the positions of their nodes, and their values."""

    place: int
    members: tuple[int, ...]
    values: tuple[int, ...]


def joint_concats(graph: Graph) -> tuple[JointConcat, ...]:
    """The fewest launches of concatenations that keep all other kernels in their order, as far as they are of several.

    Each can be launched anywhere between the last maker of its operands and its first reader; the launches are points that
    stab these intervals (greedily by their ends, which gives the fewest).
    """
    left = copying_concats(graph)
    numbered = [*graph.numbered()]
    due = {place: _first_reader(graph, numbered, value, left) for place, value in left.items()}
    ready = {place: max(_maker(graph, operand) for operand in graph.nodes[place].operands) for place in left}
    found = []
    while left:
        first = min(due[place] for place in left)
        members = tuple(place for place in left if ready[place] < first)
        found.append(JointConcat(first, members, tuple(left[place] for place in members)))
        left = {place: value for place, value in left.items() if place not in members}
    return tuple(joint for joint in found if len(joint.members) > 1)


def copying_concats(graph: Graph) -> dict[int, int]:
    """The values of concatenations that are launched, by the positions of their nodes.

    One whose operands kernels write at their places is not, nor is one of weights alone.
    """
    apart = prepared_values(graph)
    concats = {
        place: values[0]
        for place, (item, values) in enumerate(graph.numbered())
        if item.op == "concat" and values[0] not in apart
    }
    if not concats:
        return {}
    joined = joined_values(graph, [row_major(kind.shape) for kind in graph.types], frozenset()).keys()
    return {place: value for place, value in concats.items() if not joined >= {*graph.nodes[place].operands}}


def _maker(graph: Graph, value: int) -> int:
    """The position of the node that makes a value or what it is a view of; -1 for an input."""
    place = graph.makers[value]
    item = graph.nodes[place]
    if item.op in VIEWS_IN_ORDER:
        return _maker(graph, item.operands[0])
    return -1 if item.op == "input" else place


def _first_reader(graph: Graph, numbered: Sequence[tuple[Node, range]], value: int, concats: Collection[int]) -> int:
    """The position of the first node that reads a value or a view of it; that of its maker if another concatenation does."""
    places = [len(graph.nodes)]
    for reader in graph.readers[value]:
        item, values = numbered[reader]
        if item.op in VIEWS_IN_ORDER:
            places.append(_first_reader(graph, numbered, values[0], concats))
        elif reader in concats:
            places.append(_maker(graph, value))
        elif item.op != "output":
            places.append(reader)
    return min(places)


def launch_order(graph: Graph, joint: Sequence[JointConcat]) -> list[int]:
    """The positions of the nodes in the order in which they are launched: members of a joint launch follow each other.

    Views follow what they show, inputs are first and outputs last. All others keep their order.
    """
    if not joint:
        return [*range(len(graph.nodes))]
    times = {place: (it.place, 0) for it in joint for place in it.members}  # the members, views of them, the node at the place
    for place, item in enumerate(graph.nodes):
        if item.op in ("input", "output"):
            times[place] = (-1 if item.op == "input" else len(graph.nodes), 2)
        elif item.op in VIEWS_IN_ORDER:
            at, rank = times[graph.makers[item.operands[0]]]
            times[place] = (at, max(rank, 1))
        else:
            times.setdefault(place, (place, 2))
    return sorted(times, key=lambda place: (times[place], place))


def write_joint_concat(file: ProgramFile, joint: JointConcat) -> None:
    """Write the kernel of these concatenations, unless an equal one is written, and its launch."""
    results = joint.values
    sources = list(dict.fromkeys(operand for place in joint.members for operand in file.nodes[place][0].operands))
    for value in results:
        file.name_written(value)
        file.write(value)
    file.buffers += [value for value in results if value not in file.buffers]
    pointers = {value: f"y{number}_ptr" for number, value in enumerate(results)}
    memories = list(dict.fromkeys(file.names[value] for value in sources))
    pointers |= {value: f"x{memories.index(file.names[value])}_ptr" for value in sources}
    wide = any(highest_offset(file.pointer(value)) > LARGEST_OFFSET for value in (*results, *sources))
    programs, body = _body(file, joint, pointers, wide)
    value_of = {name: value for value, name in pointers.items()}
    arguments = tuple(dict.fromkeys(pointers.values()))
    sizes = tuple(size for size in file.sizes if any(re.search(rf"\b{size}\b", line) for line in body))
    types = tuple(f"*{TRITON_TYPES[file.types[value_of[name]].dtype]}" for name in arguments)
    name = _kernel(file, f"{'_'.join(file.names[value] for value in results)}_kernel", (arguments, sizes), types, body)
    given = ", ".join([*(file.names[value_of[argument]] for argument in arguments), *sizes])
    file.body.append(f'    {name}[({programs}, 1, 1)]({given}, **OPTIONS["{name}"])')


def _kernel(
    file: ProgramFile, wanted: str, taken: tuple[tuple[str, ...], tuple[str, ...]], types: Sequence[str], body: Sequence[str]
) -> str:
    """The name of a kernel with this body, which is written if there is none."""
    signature = (*types, *("i32" for _ in taken[1]))
    for kernel, its_types in zip(file.kernels, file.signatures, strict=True):
        if its_types == signature and kernel.source == kernel_source(kernel.name, (*taken[0], *taken[1]), body):
            return kernel.name
    name = file.new_name(wanted)
    kernel = BlockKernel(name, kernel_source(name, (*taken[0], *taken[1]), body), *taken, frozenset())
    file.add_kernel(kernel, signature, {"num_warps": WARPS, "num_stages": STAGES, "enable_fp_fusion": True}, of_block=False)
    return name


def _body(file: ProgramFile, joint: JointConcat, pointers: dict[int, str], wide: bool) -> tuple[int, list[str]]:
    """The number of programs, and the lines of the kernel: a branch for each operand."""
    lines = [f"program = tl.program_id(0){'.to(tl.int64)' if wide else ''}"]
    first = 0
    for place in joint.members:
        item, [result] = file.nodes[place]
        strides, start = file.strides[result], 0
        for operand in item.operands:
            shape = file.types[operand].shape
            source = StridedMemory(pointers[operand], file.strides[operand], file.offsets.get(operand, 0))
            target = StridedMemory(pointers[result], strides, start)
            programs, own = copied_block(shape, source, target, f"(program - {first})")
            lines += [f"{'el' if first else ''}if program < {first + programs}:", *(f"    {line}" for line in own)]
            first += programs
            start += shape[item["dim"]] * strides[item["dim"]]
    return first, lines


__all__ = ["JointConcat", "copying_concats", "joint_concats", "launch_order", "write_joint_concat"]
