"""A generated kernel of library ops that reads tensors and writes others, in the file of an emitted program."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.addressing import LARGEST_OFFSET, highest_offset
from mirage_eg.backends.triton.block_kernel import BlockKernel
from mirage_eg.backends.triton.copied_block import STAGES, WARPS, kernel_source
from mirage_eg.backends.triton.program_file import TRITON_TYPES, ProgramFile
from mirage_eg.backends.triton.schedule import WAITING


def write_generated_kernel(
    file: ProgramFile,
    launch: Launch,
    programs: int,
    body: Callable[..., Iterable[str]],
    helpers: Sequence[str] = (),
    warps: int = WARPS,
    stages: int = STAGES,
) -> None:
    """Write a kernel of so many programs, and its launch.

    `body` gives the lines of the kernel for the pointers of the operands and of the results.
    """
    tensors = (*launch.operands, *launch.results)
    for value in launch.results:
        file.name_written(value)
        if (buffer := file.write(value)) not in file.buffers:
            file.buffers.append(buffer)
    written = (f"y{number or ''}_ptr" for number in range(len(launch.results)))
    arguments = (*(f"x{number}_ptr" for number in range(len(launch.operands))), *written)
    offsets = (file.placement.offsets.get(it, 0) for it in tensors)
    pointers = (f"{pointer} + {offset}" if offset else pointer for pointer, offset in zip(arguments, offsets, strict=True))
    given = dict(zip(arguments, tensors, strict=True))
    write_lines(file, programs, body(*pointers), given, file.names[launch.results[-1]], helpers, warps, stages)


def write_lines(
    file: ProgramFile,
    programs: int,
    body: Iterable[str],
    arguments: Mapping[str, int],
    name: str,
    helpers: Sequence[str] = (),
    warps: int = WARPS,
    stages: int = STAGES,
) -> None:
    """Write a kernel of these lines, unless an equal one is written, and its launch; `arguments` has values by their names.

    The lines read the number of a program as `program`.
    """
    wide = any(highest_offset(file.pointer(value)) > LARGEST_OFFSET for value in arguments.values())
    waits = file.launches_dependently
    lines = [*(WAITING if waits else ()), f"program = tl.program_id(0){'.to(tl.int64)' if wide else ''}", *body]
    sizes = tuple(size for size in file.sizes if any(re.search(rf"\b{size}\b", line) for line in lines))
    types = (f"*{TRITON_TYPES[file.types[value].dtype]}" for value in arguments.values())
    signature, taken = (*types, *("i32" for _ in sizes)), (*arguments, *sizes)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True} | ({"launch_pdl": True} if waits else {})
    for kernel, *form in zip(file.kernels, file.signatures, file.options, strict=True):
        if form == [signature, options] and kernel.source == kernel_source(kernel.name, taken, lines):
            break
    else:
        named = file.new_name(f"{name}_kernel")
        kernel = BlockKernel(named, kernel_source(named, taken, lines), tuple(arguments), sizes, frozenset(helpers))
        file.add_kernel(kernel, signature, options, of_block=False)
    given = ", ".join([*map(file.argument, arguments.values()), *sizes])
    file.body.append(f'    {kernel.name}[({programs}, 1, 1)]({given}, **OPTIONS["{kernel.name}"])')
