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
from mirage_eg.backends.triton.fused_convolutions import fused_convolutions
from mirage_eg.backends.triton.image_layouts import image_layouts
from mirage_eg.backends.triton.joint_concat import JointConcat, joint_concats, launch_order, write_joint_concat
from mirage_eg.backends.triton.kernel_binaries import FULL
from mirage_eg.backends.triton.kernels import write_kernel
from mirage_eg.backends.triton.library_attention import library_attentions
from mirage_eg.backends.triton.op_table import helper_names, helper_source
from mirage_eg.backends.triton.prepared_weights import (
    NAMES,
    preparation_functions,
    values_kept,
    weights_read,
)
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.schedule import Schedule, Schedules, per_kernel
from mirage_eg.backends.triton.self_check import write_main, write_reference
from mirage_eg.backends.triton.views import joined_values, views_of
from mirage_eg.backends.triton.written_calls import FUSED, FUSED_SOURCE, write_fused_convolution, write_library_call
from mirage_eg.backends.triton.written_tables import written_sized_tables, written_tables
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.passes import with_direct_reshapes
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import SizeArgument
from mirage_eg.ir.weights import prepared_values

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
_FUNCTIONS = ("run", "launch", "allocate", "reference", "main", "layouts", "check", FUSED)
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
        written_sized_tables(file, inputs, sizes) if sizes else written_tables(file, inputs),
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
        file.prepared = prepared_values(graph) - views.keys() - joined.keys()
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
            *([FUSED_SOURCE] if file.fuses_convolutions else []),
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
    return layouts, frozenset(declared)


def _image_layouts(graph: Graph, declared: frozenset[int], sizes: Iterable[str]) -> dict[int, Shape]:
    """The values that are channels last; none where a size is chosen later."""
    return {} if tuple(sizes) else image_layouts(graph, declared)


def _write_run(
    file: ProgramFile,
    inputs: Sequence[str],
    outputs: Sequence[str],
    views: Mapping[int, int],
    joint: Sequence[JointConcat],
) -> str:
    """Write the body of `launch`; returns the text of the returned values. `views` has the base of each view."""
    graph = file.graph
    input_names, fused = iter(inputs), {} if file.sizes else fused_convolutions(graph)
    attentions = library_attentions(graph)
    within = {value for it in fused.values() for value in it.values[:-1]}
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
                continue  # the kernel of a fused convolution or of an attention computes it
            case _ if values and values[0] in fused:
                write_fused_convolution(file, fused[values[0]], values[0])
            case _ if values and values[0] in attentions:
                write_attention(file, attentions[values[0]], values[0])
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
                write_library_call(file, item, {value, *(view for view, base in views.items() if base == value)}, value)
                if OPS[item.op].kind is Kind.REARRANGEMENT:  # may be a view
                    file.shown[value] = frozenset[int]().union(*(file.shown.get(i, frozenset()) for i in item.operands))
    file.calls_torch |= any("torch." in name for name in returned)
    return ", ".join(returned)


__all__ = ["emit", "identifier", "memory_of"]
