"""The tables of an emitted program: layouts of inputs and buffers, the arena, sizes, signatures and options of kernels."""

from collections.abc import Mapping, Sequence

from mirage_eg.backends.triton.prepared_weights import preparation_tables
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.ir.sizes import SizeArgument
from mirage_eg.ir.written_inputs import written_inputs


def written_tables(file: ProgramFile, inputs: Sequence[str]) -> str:
    """The tables of a file whose sizes are fixed."""
    lines = ["# name: (shape, element type, strides in elements)", "INPUTS = {"]
    lines += [_layout_line(file, name, value) for name, value in zip(inputs, file.graph.input_values, strict=True)]
    lines += ["}", *_written_table(file), *preparation_tables(file)]
    if file.kernels:
        lines += ["", "# what the kernels write", "BUFFERS = {"]
        lines += [_layout_line(file, file.names[value], value) for value in file.buffers]
        lines.append("}")
    return "\n".join([*lines, *_kernel_tables(file)]) + "\n"


def _written_table(file: ProgramFile) -> list[str]:
    written = dict(written_inputs(file.graph))
    return (
        ["", f"WRITTEN = {written}  # results in the memory of inputs: their places, and those of the inputs"]
        if written
        else []
    )


def written_sized_tables(file: ProgramFile, inputs: Sequence[str], sizes: Mapping[str, SizeArgument]) -> str:
    """The tables of a file whose sizes are chosen when it runs."""
    lines = ["# name: (input, its dim, least, largest, multiple of)", "SIZES = {"]
    for name, (place, dim, values) in sizes.items():
        lines.append(f'    "{name}": ({place}, {dim}, {values.least}, {values.largest}, {values.multiple_of}),')
    lines += ["}", *_written_table(file), *_kernel_tables(file), "", "", f"def layouts({', '.join(sizes)}):"]
    lines += ['    """Inputs, and what the kernels write: name: (shape, element type, strides in elements)."""']
    lines += [
        "    inputs = {",
        *("    " + _layout_line(file, *pair) for pair in zip(inputs, file.graph.input_values, strict=True)),
    ]
    lines += ["    }", "    buffers = {", *("    " + _layout_line(file, file.names[value], value) for value in file.buffers)]
    lines += ["    }", "    return inputs, buffers", "", "", f"def check(arrays, {', '.join(sizes)}):"]
    given = ", ".join(f'"{name}": {name}' for name in sizes)
    return "\n".join([*lines, f"    given = {{{given}}}", _CHECK.format(sizes=", ".join(sizes))])


_CHECK = """    for name, (_, _, least, largest, multiple) in SIZES.items():
        if not least <= given[name] <= largest or given[name] % multiple:
            wanted = f"a multiple of {{multiple}} from {{least}} to {{largest}}"
            raise ValueError(f"size {{name}}: got {{given[name]}}, wanted {{wanted}}")
    for (name, (shape, _, strides)), array in zip(layouts({sizes})[0].items(), arrays):
        if tuple(array.shape) != shape:
            raise ValueError(f"argument {{name}}: got shape {{tuple(array.shape)}}, wanted {{shape}}")
        if any(have != want and extent > 1 for have, want, extent in zip(array.stride(), strides, shape)):
            raise ValueError(f"argument {{name}}: got strides {{array.stride()}}, wanted {{strides}}")
"""


def _kernel_tables(file: ProgramFile) -> list[str]:
    """The lines of the arena, and of the kernels' signatures and options."""
    lines: list[str] = []
    if file.kernels:
        arena = file.arena
        if arena.buffers:
            lines += ["", "# those that no caller sees share one arena: offsets in bytes", "ARENA = {"]
            lines += [f'    "{buffer.name}": {offset},' for buffer, offset in zip(arena.buffers, arena.offsets, strict=True)]
            lines += ["}", f"ARENA_BYTES = {arena.arena_bytes}"]
        lines += ["", "# what the kernels take, and how they are compiled", "SIGNATURES = {"]
        for kernel, signature in zip(file.kernels, file.signatures, strict=True):
            listed = ", ".join(f'"{type_}"' for type_ in signature)
            lines.append(f'    "{kernel.name}": ({listed}{"," if len(signature) == 1 else ""}),')
        lines += ["}", "OPTIONS = {"]
        for kernel, options in zip(file.kernels, file.options, strict=True):
            listed = ", ".join(f'"{name}": {value}' for name, value in options.items())
            lines.append(f'    "{kernel.name}": {{{listed}}},')
        lines.append("}")
    return lines


def _layout_line(file: ProgramFile, name: str, value: int) -> str:
    type_ = file.types[value]
    return f'    "{name}": ({type_.shape}, "{type_.dtype}", {file.strides[value]}),'
