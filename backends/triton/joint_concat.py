"""The launch of several concatenations: one generated kernel with a branch for each operand, which it copies to its place in
the result."""

import re
from collections.abc import Sequence

from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.addressing import LARGEST_OFFSET, highest_offset
from mirage_eg.backends.triton.block_kernel import BlockKernel
from mirage_eg.backends.triton.copied_block import STAGES, WARPS, StridedMemory, copied_block, kernel_source
from mirage_eg.backends.triton.program_file import TRITON_TYPES, ProgramFile


def write_joint_concat(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of these concatenations, unless an equal one is written, and its launch."""
    results, sources = launch.results, launch.operands
    for value in results:
        file.name_written(value)
        file.write(value)
    file.buffers += [value for value in results if value not in file.buffers]
    pointers = {value: f"y{number}_ptr" for number, value in enumerate(results)}
    memories = list(dict.fromkeys(file.names[value] for value in sources))
    pointers |= {value: f"x{memories.index(file.names[value])}_ptr" for value in sources}
    wide = any(highest_offset(file.pointer(value)) > LARGEST_OFFSET for value in (*results, *sources))
    programs, body = _body(file, launch, pointers, wide)
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


def _body(file: ProgramFile, launch: Launch, pointers: dict[int, str], wide: bool) -> tuple[int, list[str]]:
    """The number of programs, and the lines of the kernel: a branch for each operand."""
    lines = [f"program = tl.program_id(0){'.to(tl.int64)' if wide else ''}"]
    first = 0
    offsets = file.lowered.placement.offsets
    for position, result in zip(launch.nodes, launch.results, strict=True):
        item, strides, start = file.graph.nodes[position], file.strides[result], 0
        for operand in item.operands:
            shape = file.types[operand].shape
            source = StridedMemory(pointers[operand], file.strides[operand], offsets.get(operand, 0))
            target = StridedMemory(pointers[result], strides, start)
            programs, own = copied_block(shape, source, target, f"(program - {first})")
            lines += [f"{'el' if first else ''}if program < {first + programs}:", *(f"    {line}" for line in own)]
            first += programs
            start += shape[item["dim"]] * strides[item["dim"]]
    return first, lines


__all__ = ["write_joint_concat"]
