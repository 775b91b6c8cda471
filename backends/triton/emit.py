"""A µGraph as a standalone Triton program: a kernel for each block graph, PyTorch calls for library kernels, a self-check.

The emitted file imports triton at once and torch when it runs. Nothing here is trusted: emitted programs are checked
against float64.
"""

import keyword
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mirage_eg.backends.triton.addressing import row_major
from mirage_eg.backends.triton.arena import Arena
from mirage_eg.backends.triton.attention_call import NAMES as ATTENTION_NAMES
from mirage_eg.backends.triton.attention_call import SOURCE as ATTENTION_SOURCE
from mirage_eg.backends.triton.attention_call import write_attention
from mirage_eg.backends.triton.full_tiles import FULL
from mirage_eg.backends.triton.fused_convolutions import FusedConvolution, fused_convolutions
from mirage_eg.backends.triton.image_layouts import image_layouts, is_channels_last_convolution, pools_row_major
from mirage_eg.backends.triton.joint_concat import JointConcat, joint_concats, launch_order, write_joint_concat
from mirage_eg.backends.triton.kernels import write_kernel
from mirage_eg.backends.triton.library_attention import library_attentions
from mirage_eg.backends.triton.op_table import helper_names, helper_source, torch_attributes, torch_call
from mirage_eg.backends.triton.patch import (
    channels_last,
    patch_kernels,
    patched_layouts,
    read_by_patches,
    values_within_patches,
)
from mirage_eg.backends.triton.patch_kernel import write_patch
from mirage_eg.backends.triton.prepared_weights import (
    NAMES,
    preparation_functions,
    preparation_tables,
    values_kept,
    weights_read,
)
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.schedule import Schedule, Schedules, per_kernel
from mirage_eg.backends.triton.self_check import write_main, write_reference
from mirage_eg.backends.triton.views import joined_values, views_of
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.passes import with_direct_reshapes
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import SizeArgument
from mirage_eg.ir.weights import marked_weights, prepared_values

# Names that the emitted file uses.
_TABLES = (
    "INPUTS",
    "BUFFERS",
    "ARENA",
    "ARENA_BYTES",
    "SIGNATURES",
    "OPTIONS",
    "SCALES",
    "MAGNITUDES",
    "WHOLE",
    "CAUSAL",
    "SIZES",
)
_FUNCTIONS = ("run", "launch", "allocate", "reference", "main", "layouts", "check", "convolution_relu")
_RESERVED = (*_TABLES, *_FUNCTIONS, *NAMES, *ATTENTION_NAMES, "torch", "triton", "tl", "X_ptr", FULL)
_LOCALS = ("buffers", "arena", "name", "shape", "dtype", "strides", "device", "buffer", "getattr", "zip")  # of its functions


_DEFAULT = Schedule()
_NO_SIZES: Mapping[str, SizeArgument] = MappingProxyType({})


def identifier(name: str) -> str:
    """The name as an ASCII Python identifier: alpha for α."""
    spelled = "".join(
        char if char.isascii() else (unicodedata.name(char, "x").split()[-1].lower() if char.isalnum() else "_")
        for char in name
    )
    spelled = re.sub(r"\W", "_", spelled)
    if not spelled or spelled[0].isdigit():
        spelled = f"_{spelled}"
    # Kernels use these names for indices.
    return (
        f"{spelled}_"
        if keyword.iskeyword(spelled) or re.fullmatch(r"i|step|g[xyz]|r\d+|tl|triton|float|range|tanh|__debug__", spelled)
        else spelled
    )


def size_name(name: str) -> str:
    """The name of a size in emitted files."""
    spelled = identifier(name)
    return (
        f"{spelled}_size"
        if spelled in (*_RESERVED, *_LOCALS, *helper_names(), "arrays") or spelled.endswith("_ptr")
        else spelled
    )


def emit(
    graph: Graph,
    *,
    program: Graph | None = None,
    schedule: Schedule | Schedules = _DEFAULT,
    sizes: Mapping[str, SizeArgument] = _NO_SIZES,
    example: Graph | None = None,
    share: bool = False,
) -> str:
    """The source of a Triton program with a function `run`, which takes the inputs of `graph` and returns its outputs.

    `run` calls `launch`, which launches the kernels, with buffers for their outputs (BUFFERS): those of the caller, or new ones
    of `allocate`. Another launcher may pass its own memory (`backends.runtime.running_program`).

    What depends on inputs that are weights alone is computed by a function `prepare`, and `run` keeps it (`prepared_weights`).

    `schedule` is one for all kernels, or one for each. With `program`, the original program, the file also has a `reference` in
    PyTorch; run as a script, it checks and times itself. `sizes` are chosen when the program runs: they are arguments of
    `launch` and of the kernels, and `layouts` gives the tables for them; `example` is the program at numbers
    (`all_sizes.emit_for_sizes`). With `share`, equal block graphs are one kernel, which is launched several times.

    Raises:
        UnsupportedError: a tile that Triton cannot hold, a grid that CUDA cannot launch.
        GraphError: `program` has other inputs or outputs than `graph`; layouts contradict each other.
    """
    file, inputs, outputs, returned = _written(graph, program, schedule, sizes, share)
    helpers = [helper_source(name) for name in sorted({helper for kernel in file.kernels for helper in kernel.helpers})]
    kernels = ["import triton\nimport triton.language as tl\n", *helpers, *(kernel.source for kernel in file.kernels)]
    sections = [
        _header(graph, inputs, outputs),
        *(kernels if file.kernels else []),
        _sized_tables(file, inputs, sizes) if sizes else _tables(file, inputs),
        _functions(file, inputs, outputs, returned, sizes),
    ]
    if program is not None:
        sections += [
            write_reference(program, inputs, sizes),
            write_main(example or program, outputs, bool(file.buffers), tuple(sizes)),
        ]
    return "\n\n".join(sections)


def memory_of(graph: Graph, *, program: Graph | None = None, schedule: Schedule | Schedules = _DEFAULT) -> Arena:
    """The arena of the program that `emit` writes."""
    return _written(graph, program, schedule, share=True)[0].arena


def _written(
    graph: Graph, program: Graph | None, schedule: Schedule | Schedules, sizes: Iterable[str] = (), share: bool = False
) -> tuple[ProgramFile, list[str], list[str], str]:
    """The program file, the names of inputs and outputs, and the text of the returned values."""
    if program is not None and (program.input_types, program.output_types) != (graph.input_types, graph.output_types):
        raise GraphError(
            f"got a program from {_types(program.input_types)} to {_types(program.output_types)} for a µGraph from "
            f"{_types(graph.input_types)} to {_types(graph.output_types)}"
        )
    named, graph = program or graph, with_direct_reshapes(graph)
    strides, declared = _layouts(graph)
    images = _image_layouts(graph, declared, sizes)
    for value, its in images.items():
        strides[value] = its
    joined = joined_values(graph, strides, declared)
    joint = joint_concats(graph)
    copied = frozenset(value for it in joint for value in it.values)
    views = views_of(graph, strides, declared, copied, frozenset(images))
    for value, view in (views | joined).items():
        strides[value] = view.strides
    blocks = [number for number, item in enumerate(graph.nodes) if item.op == "block"]
    schedules = dict(zip(blocks, per_kernel(schedule, len(blocks)), strict=True))
    file = ProgramFile(graph, schedules, strides, list(graph.types), dict(enumerate(graph.numbered())))
    file.offsets = {value: view.offset for value, view in (views | joined).items()}
    file.joined = {value: view.base for value, view in joined.items()}
    file.copied, file.images = copied, frozenset(images)
    file.sizes, file.share = tuple(sizes), share
    if not file.sizes:
        file.prepared = prepared_values(graph) - views.keys() - joined.keys() - values_within_patches(graph)
    file.taken |= {*_RESERVED, *_LOCALS, *helper_names(), *file.sizes, *(f"{name}_ptr" for name in file.sizes)}
    inputs = [file.new_name(identifier(name)) for name in named.input_names]
    outputs = [file.new_name(identifier(name)) for name in named.output_names]
    bases = {value: view.base for value, view in views.items()}
    return file, inputs, outputs, _write_run(file, inputs, outputs, bases, joint)


def _types(types: Sequence[object]) -> str:
    return ", ".join(map(str, types))


def _functions(
    file: ProgramFile, inputs: Sequence[str], outputs: Sequence[str], returned: str, sizes: Mapping[str, SizeArgument]
) -> str:
    """The text of `launch` (its last argument is torch, if it calls torch), of `allocate`, and of `run`, which calls both."""
    listing = ", ".join(f"{name} {type_}" for name, type_ in zip(outputs, file.graph.output_types, strict=True))
    written = [file.names[value] for value in file.buffers]
    kept = [file.names[value] for value in values_kept(file)]
    library = ["torch"] if file.calls_torch else []
    kernels = f"Launch the kernels, which write {', '.join(written)}" if written else "Call the library"
    buffers = [f"*(buffers or allocate({', '.join([f'{inputs[0]}.device', *sizes])}))"] if written else []
    computed = [f"*prepared({', '.join(file.names[value] for value in weights_read(file))})"] if file.prepares else []
    arguments = [*inputs, *computed, *buffers, *sizes, *(f"{name}={name}" for name in library)]
    taken = [f"    {name} = {inputs[size.input]}.shape[{size.dim}]" for name, size in sizes.items()]
    taken += [f"    check(({', '.join(inputs)},), {', '.join(sizes)})"] if sizes else []
    return "\n".join(
        [
            *preparation_functions(file),
            *([_FUSED_SOURCE] if file.fuses_convolutions else []),
            *([ATTENTION_SOURCE] if file.calls_attention else []),
            f"def launch({', '.join([*inputs, *kept, *written, *sizes, *library])}):",
            f'    """{kernels}; returns the outputs."""',
            *file.body,
            f"    return {returned}\n\n",
            *(_allocation(file) if written else []),
            f"def run({', '.join([*inputs, *(['buffers=None'] if written else [])])}):",
            f'    """Run on `buffers` of `allocate`, or on new ones; returns {listing}."""'
            if written
            else f'    """Returns {listing}."""',
            *([_IMPORT] if library else []),
            *taken,
            f"    return launch({', '.join(arguments)})\n",
        ]
    )


_IMPORT = "    import torch  # here, so that the kernels can be compiled without it\n"


def _allocation(file: ProgramFile) -> list[str]:
    """The lines of `allocate`."""
    empty = "torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)"
    table = f"layouts({', '.join(file.sizes)})[1]" if file.sizes else "BUFFERS"
    buffers = ["    buffers = [", f"        {empty}", f"        for shape, dtype, strides in {table}.values()", "    ]"]
    if file.arena.buffers:
        buffers = [
            "    arena = torch.empty(ARENA_BYTES, dtype=torch.uint8, device=device)",
            "    buffers = [",
            "        arena[ARENA[name] :].view(getattr(torch, dtype)).as_strided(shape, strides)",
            "        if name in ARENA",
            f"        else {empty}",
            f"        for name, (shape, dtype, strides) in {table}.items()",
            "    ]",
        ]
    docstring = '    """What the kernels write, on a device; one run at a time may use it."""'
    return [f"def allocate({', '.join(['device', *file.sizes])}):", docstring, _IMPORT, *buffers, "    return buffers\n\n"]


def _header(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    listing = "\n".join(f"# {line}".rstrip() for line in str(graph).splitlines())
    return f'"""{", ".join(outputs)} from {", ".join(inputs)}; generated by mirage_eg."""\n\n# The µGraph:\n#\n{listing}\n'


def _tables(file: ProgramFile, inputs: Sequence[str]) -> str:
    lines = ["# name: (shape, element type, strides in elements)", "INPUTS = {"]
    lines += [_layout_line(file, name, value) for name, value in zip(inputs, file.graph.input_values, strict=True)]
    lines += ["}", *preparation_tables(file)]
    if file.kernels:
        lines += ["", "# what the kernels write", "BUFFERS = {"]
        lines += [_layout_line(file, file.names[value], value) for value in file.buffers]
        lines.append("}")
    return "\n".join([*lines, *_kernel_tables(file)]) + "\n"


def _sized_tables(file: ProgramFile, inputs: Sequence[str], sizes: Mapping[str, SizeArgument]) -> str:
    """The tables of a file whose sizes are chosen when it runs."""
    lines = ["# name: (input, its dim, least, largest, multiple of)", "SIZES = {"]
    for name, (place, dim, values) in sizes.items():
        lines.append(f'    "{name}": ({place}, {dim}, {values.least}, {values.largest}, {values.multiple_of}),')
    lines += ["}", *_kernel_tables(file), "", "", f"def layouts({', '.join(sizes)}):"]
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
            lines.append(f'    "{kernel.name}": {_dict_text(options)},')
        lines.append("}")
    return lines


def _layout_line(file: ProgramFile, name: str, value: int) -> str:
    type_ = file.types[value]
    return f'    "{name}": ({type_.shape}, "{type_.dtype}", {file.strides[value]}),'


def _dict_text(options: Mapping[str, int]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in options.items()) + "}"


def _layouts(graph: Graph) -> tuple[list[Shape], frozenset[int]]:
    """The strides of every value of the kernel graph, declared or row-major; and the values with declared strides."""
    declared: dict[int, tuple[Shape, str]] = {}

    def declare(value: int, strides: Shape, where: str) -> None:
        first, place = declared.setdefault(value, (strides, where))
        if first != strides:
            raise GraphError(f"{where}: got strides {text(strides)} for %{value}, but {place} has {text(first)}")

    for number, (item, values) in enumerate(graph.numbered()):
        if item.op == "input" and item.get("strides") is not None:
            declare(values[0], item["strides"], f"node {number}: input")
        if item.op == "block":
            for position, (operand, inner) in enumerate(zip(item.operands, item["graph"].inputs, strict=True)):
                if inner.get("strides") is not None:
                    declare(operand, inner["strides"], f"node {number}: block, input {position}")
            for position, (value, inner) in enumerate(zip(values, item["graph"].outputs, strict=True)):
                if inner.get("strides") is not None:
                    declare(value, inner["strides"], f"node {number}: block, output {position}")
    for value, (strides, where) in declared.items():
        if value in graph.input_values and any(stride < 0 for stride in strides):
            raise GraphError(f"{where}: got strides {text(strides)}; wanted none below 0")
    layouts = [declared[value][0] if value in declared else row_major(type_.shape) for value, type_ in enumerate(graph.types)]
    for value, strides in patched_layouts(graph, layouts, frozenset(declared)).items():
        layouts[value] = strides
    return layouts, frozenset(declared)


def _image_layouts(graph: Graph, declared: frozenset[int], sizes: Iterable[str]) -> dict[int, Shape]:
    """The values that are channels last; none where a size is chosen later, or where a patch decides about layouts."""
    return {} if tuple(sizes) or patch_kernels(graph) else image_layouts(graph, declared)


def _write_run(
    file: ProgramFile,
    inputs: Sequence[str],
    outputs: Sequence[str],
    views: Mapping[int, int],
    joint: Sequence[JointConcat],
) -> str:
    """Write the body of `launch`; returns the text of the returned values. `views` has the base of each view."""
    graph = file.graph
    input_names, patches, fused = iter(inputs), patch_kernels(graph), {} if file.sizes else fused_convolutions(graph)
    attentions = library_attentions(graph)
    within = values_within_patches(graph).union(*(it.values[:-1] for it in fused.values()))
    within |= {value for it in attentions.values() for value in it.values[:-1]}
    for item, name in zip(graph.outputs, outputs, strict=True):
        file.wanted.setdefault(item.operands[0], name)
    returned: list[str] = []
    joint_at = {it.members[0]: it for it in joint}
    for file.step, number in enumerate(launch_order(graph, joint)):
        item, values = file.nodes[number]
        for operand in item.operands:
            file.use(operand)
        match item.op:
            case "input":
                file.names[values[0]] = next(input_names)
            case _ if values and values[0] in within:
                continue  # the kernel of a patch, of a fused convolution or of an attention computes it
            case _ if values and values[0] in fused:
                _write_fused_convolution(file, fused[values[0]], values[0])
            case _ if values and values[0] in attentions:
                write_attention(file, attentions[values[0]], values[0])
            case _ if values and values[0] in patches:
                write_patch(file, patches[values[0]])
            case _ if values and values[0] in views:
                file.names[values[0]] = file.names[views[values[0]]]
                file.shown[values[0]] = file.shown.get(views[values[0]], frozenset())
            case "concat" | "reshape" if file.joined.keys() >= {*item.operands}:  # its memory is written already
                file.names[values[0]] = file.names[item.operands[0]]
                file.shown[values[0]] = file.shown[item.operands[0]]
            case "output":
                name = file.names[item.operands[0]]
                have, want = graph.types[item.operands[0]].dtype, item.get("dtype")
                file.escaping |= file.shown.get(item.operands[0], frozenset())
                returned.append(name if want in (None, str(have)) else f"{name}.to(torch.{want})")
            case "block":
                write_kernel(file, number)
            case "concat" if values[0] in file.copied:
                if number in joint_at:
                    write_joint_concat(file, joint_at[number])
            case _:
                [value] = values
                file.names[value] = file.wanted.get(value) or file.new_name(f"t{value}")
                _write_library_call(file, item, {value, *(view for view, base in views.items() if base == value)}, value)
                if OPS[item.op].kind is Kind.REARRANGEMENT:  # may be a view
                    file.shown[value] = frozenset[int]().union(*(file.shown.get(i, frozenset()) for i in item.operands))
    file.calls_torch |= any("torch." in name for name in returned)
    return ", ".join(returned)


def _empty(file: ProgramFile, value: int, first: str) -> str:
    """A call that allocates a value on the device of the value `first`."""
    type_, strides = file.types[value], file.strides[value]
    call = (
        f"torch.empty({type_.shape}" if strides == row_major(type_.shape) else f"torch.empty_strided({type_.shape}, {strides}"
    )
    return f"{call}, dtype=torch.{type_.dtype}, device={first}.device)"


def _write_library_call(file: ProgramFile, item: Node, family: set[int], value: int) -> None:
    """Write the call that makes a value; `family` has the value and its views."""
    types, is_prepared = file.graph.types, value in file.prepared
    first = file.names[file.first_weight if is_prepared else next(iter(file.graph.input_values), 0)]
    operands = [file.names[i] for i in item.operands] or [first]
    if item.op == "conv2d" and is_channels_last_convolution(file.graph, item):
        operands[1] = _filter_channels_last(file, item.operands[1])
    if item.operands and item.operands[0] in file.images and pools_row_major(file.graph, item):
        operands[0] = f"{operands[0]}.contiguous()"
    call = _torch_text(item, operands, file.graph, value)
    read_by_patch = family & read_by_patches(file.graph)
    readers = (file.nodes[reader] for member in family for reader in file.graph.readers[member])
    read_by_kernel = any(reader.op == "block" or not file.copied.isdisjoint(made) for reader, made in readers)
    is_image = value in file.images and len(types[value].shape) == 4
    if is_image and not (is_prepared or read_by_kernel):
        pass  # only the library reads it
    elif (
        len(types[value].shape) == 4
        and file.strides[value] == channels_last(types[value].shape)
        and (is_image or read_by_patch)
    ):
        call = f"({call}).contiguous(memory_format=torch.channels_last)"  # as the library gives it
    elif file.strides[value] != row_major(types[value].shape):
        call = f"{_empty(file, value, first)}.copy_({call})"
    elif (
        is_prepared
        or read_by_kernel
        or read_by_patch
        or (file.images and any(value in it.operands for it in file.graph.outputs))
    ):
        call = f"({call}).contiguous()"  # a kernel or the caller reads it by fixed strides
    (file.preparation if is_prepared else file.body).append(f"    {file.names[value]} = {call}")
    file.calls_torch |= not is_prepared


def _write_fused_convolution(file: ProgramFile, fused: FusedConvolution, value: int) -> None:
    """Write the call of a convolution with what is added to it and the relu."""
    for operand in fused.read:
        file.use(operand)
    item = fused.convolution
    image, weight = file.names[item.operands[0]], _filter_channels_last(file, item.operands[1])
    bias = "None" if fused.bias is None else f"{file.names[fused.bias]}.reshape(-1)"
    added = "None" if fused.added is None else file.names[fused.added]
    windows = f"{tuple(item['strides'])}, {tuple(item['pads'][:2])}, {tuple(item['dilations'])}"
    name = file.names[value] = file.wanted.get(value) or file.new_name(f"t{value}")
    is_output = any(value in it.operands for it in file.graph.outputs)
    order = "()" if is_output else "(memory_format=torch.channels_last)"
    file.body.append(f"    {name} = {_FUSED}({image}, {weight}, {bias}, {added}, {windows}).contiguous{order}")
    file.fuses_convolutions = file.calls_torch = True


_FUSED = "convolution_relu"
_FUSED_SOURCE = f'''def {_FUSED}(x, weight, bias, added, stride, padding, dilation):
    """relu(convolution + bias + added): one kernel of cuDNN on its GPUs, if it has one for these sizes."""
    import torch

    if x.is_cuda and torch.version.hip is None and torch.backends.cudnn.is_available():
        try:
            if added is None:
                return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
            return torch.cudnn_convolution_add_relu(x, weight, added, 1.0, bias, stride, padding, dilation, 1)
        except RuntimeError:  # no engine
            pass
    total = torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation)
    return torch.relu(total if added is None else total + added)

'''


def _filter_channels_last(file: ProgramFile, value: int) -> str:
    """The name of a filter channels last: of a weight, what `prepare` makes of it; any other one is converted by torch."""
    kind = file.types[value]
    if file.sizes or value not in marked_weights(file.graph) | file.prepared or kind.shape[2:] == (1, 1):
        return file.names[value]
    if value not in file.filters:
        laid = file.filters[value] = file.add_value(kind, f"{file.names[value]}_channels_last")
        file.strides[laid] = channels_last(kind.shape)
        call = f"{file.names[value]}.contiguous(memory_format=torch.channels_last)"
        file.preparation.append(f"    {file.names[laid]} = {call}")
    return file.names[file.filters[value]]


def _torch_text(item: Node, names: Sequence[str], graph: Graph, value: int) -> str:
    types, row = graph.types, OPS[item.op]
    operands = [
        name
        if types[i].dtype is types[value].dtype or place < row.conditions or item.op == "cast" or row.kind is Kind.LIBRARY
        else f"{name}.to(torch.{types[value].dtype})"
        for place, (name, i) in enumerate(zip(names, item.operands, strict=False))
    ] or names
    attributes = torch_attributes(item, types[value].dtype)
    return torch_call(item.op, operands, attributes, [types[i].shape for i in item.operands])


__all__ = ["emit", "identifier", "memory_of"]
