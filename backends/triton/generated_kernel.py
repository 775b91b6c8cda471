"""A generated kernel of library ops that reads tensors and writes others, in the file of an emitted program."""

from collections.abc import Callable, Sequence

from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.addressing import LARGEST_OFFSET, highest_offset
from mirage_eg.backends.triton.block_kernel import BlockKernel
from mirage_eg.backends.triton.copied_block import STAGES, WARPS, kernel_source
from mirage_eg.backends.triton.program_file import TRITON_TYPES, ProgramFile


def write_generated_kernel(
    file: ProgramFile,
    launch: Launch,
    programs: int,
    body: Callable[..., Sequence[str]],
    helpers: Sequence[str] = (),
    warps: int = WARPS,
    stages: int = STAGES,
) -> None:
    """Write a kernel of so many programs, and its launch.

    `body` gives the lines of the kernel for the number of a program and the pointers of the operands and of the results.
    """
    tensors = (*launch.operands, *launch.results)
    for value in launch.results:
        file.name_written(value)
        if (buffer := file.write(value)) not in file.buffers:
            file.buffers.append(buffer)
    name = file.new_name(f"{file.names[launch.results[-1]]}_kernel")
    written = (f"y{number or ''}_ptr" for number in range(len(launch.results)))
    arguments = (*(f"x{number}_ptr" for number in range(len(launch.operands))), *written)
    wide = any(highest_offset(file.pointer(it)) > LARGEST_OFFSET for it in tensors)
    offsets = (file.lowered.placement.offsets.get(it, 0) for it in tensors)
    pointers = (f"{pointer} + {offset}" if offset else pointer for pointer, offset in zip(arguments, offsets, strict=True))
    source = kernel_source(name, arguments, body(f"tl.program_id(0){'.to(tl.int64)' if wide else ''}", *pointers))
    kernel = BlockKernel(name, source, arguments, (), frozenset(helpers))
    signature = tuple(f"*{TRITON_TYPES[file.types[it].dtype]}" for it in tensors)
    file.add_kernel(kernel, signature, {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}, of_block=False)
    file.body.append(f'    {name}[({programs}, 1, 1)]({", ".join(map(file.argument, tensors))}, **OPTIONS["{name}"])')
