"""A µGraph as a standalone Triton program: a kernel for each block graph, PyTorch calls for library kernels, a self-check.

The emitted file imports triton at once and torch when it runs. Nothing here is trusted: emitted programs are checked
against float64.
"""

import keyword
import re
import unicodedata
from collections.abc import Collection, Container, Mapping, Sequence
from types import MappingProxyType

from mirage_eg.backends.launches.aligned_rows import unaligned_products
from mirage_eg.backends.launches.attention import LibraryAttention
from mirage_eg.backends.launches.concatenation import read_by_copies
from mirage_eg.backends.launches.convolution import FusedConvolution
from mirage_eg.backends.launches.launch_graph import Launch, LaunchKind, launches_of
from mirage_eg.backends.launches.merged_views import merged_views
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.triton.arena import Arena
from mirage_eg.backends.triton.attention_call import NAMES as ATTENTION_NAMES
from mirage_eg.backends.triton.attention_call import SOURCE as ATTENTION_SOURCE
from mirage_eg.backends.triton.attention_call import write_attention
from mirage_eg.backends.triton.convolution import write_convolution
from mirage_eg.backends.triton.joint_concat import write_conversions, write_joint_concat, write_laid_out
from mirage_eg.backends.triton.kernel_binaries import FULL
from mirage_eg.backends.triton.kernels import write_kernel
from mirage_eg.backends.triton.op_table import helper_names, helper_source
from mirage_eg.backends.triton.prepared_weights import NAMES, preparation_functions, values_kept, weights_read
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.scan import write_scan
from mirage_eg.backends.triton.schedule import Schedule, Schedules, per_kernel
from mirage_eg.backends.triton.self_check import write_main, write_reference
from mirage_eg.backends.triton.tiles import new_name
from mirage_eg.backends.triton.top_k import write_top_k
from mirage_eg.backends.triton.windows import write_pooling
from mirage_eg.backends.triton.written_calls import (
    ACTIVATED,
    ACTIVATED_SOURCE,
    ALIGNED,
    ALIGNED_SOURCE,
    FUSED,
    FUSED_SOURCE,
    PRODUCT,
    PRODUCT_SOURCE,
    empty,
    write_biased_product,
    write_fused_convolution,
    write_library_call,
)
from mirage_eg.backends.triton.written_tables import written_sized_tables, written_tables
from mirage_eg.ir.biased_product import BiasedProduct
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import JOINS, RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import with_direct_reshapes
from mirage_eg.ir.sizes import SizeArgument
from mirage_eg.ir.written_inputs import with_marks_of, written_inputs

# Names that the emitted file uses.
_TABLES = [
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
    "WRITTEN",
]
_FUNCTIONS = ("run", "launch", "allocate", "reference", "main", "layouts", "check", FUSED, ALIGNED, PRODUCT, ACTIVATED)
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


def memory_of(graph: Graph, *, program: Graph | None = None) -> Arena:
    """The arena of the program that `emit` writes."""
    return _written(graph, program, _DEFAULT, share=True)[0].arena


def _written(
    graph: Graph, program: Graph | None, schedule: Schedule | Schedules, sizes: Collection[str] = (), share: bool = False
) -> tuple[ProgramFile, list[str], list[str], str]:
    """The program file, the names of inputs and outputs, and the text of the returned values."""
    if program is not None and (program.input_types, program.output_types) != (graph.input_types, graph.output_types):
        raise GraphError(
            f"got a program from {_types(program.input_types)} to {_types(program.output_types)} for a µGraph from "
            f"{_types(graph.input_types)} to {_types(graph.output_types)}"
        )
    named = program or graph
    graph = with_marks_of(with_direct_reshapes(graph), named)
    launches, placement = launches_of(graph), placement_of(graph)
    blocks = [number for number, item in enumerate(graph.nodes) if item.op == "block"]
    prepared = frozenset(value for launch in launches.of_kind(LaunchKind.PREPARED) for value in launch.results)
    taken = {*_RESERVED, *_LOCALS, *helper_names(), *sizes, *(f"{name}_ptr" for name in sizes)}
    inputs, outputs = ([new_name(taken, identifier(it)) for it in names] for names in (named.input_names, named.output_names))
    file = ProgramFile(
        graph,
        launches,
        placement,
        schedules=dict(zip(blocks, per_kernel(schedule, len(blocks)), strict=True)),
        prepared=prepared - placement.views.keys() - placement.joined.keys(),
        sizes=tuple(sizes),
        share=share,
        names=dict(zip(graph.input_values, inputs, strict=True)),
        wanted={item.operands[0]: name for item, name in reversed([*zip(graph.outputs, outputs, strict=True)])},
        taken=taken,
        types=list(graph.types),
        strides=list(placement.strides),
    )
    _write_launches(file)
    return file, inputs, outputs, _returned(file)


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
    launches = file.launches
    taken = [f"    {name} = {inputs[size.input]}.shape[{size.dim}]" for name, size in sizes.items()]
    taken += [f"    check(({', '.join(inputs)},), {', '.join(sizes)})"] if sizes else []
    return "\n".join(
        [
            *([ALIGNED_SOURCE] if file.aligns else []),
            *preparation_functions(file),
            *([FUSED_SOURCE] if any(launches.of_kind(LaunchKind.CONVOLUTION)) else []),
            *([PRODUCT_SOURCE] if any(it.is_padded for it in unaligned_products(file.graph).values()) else []),
            *(
                [ACTIVATED_SOURCE]
                if any(isinstance(it.call, BiasedProduct) and it.call.activation for it in launches.kernels)
                else []
            ),
            *([ATTENTION_SOURCE] if any(launches.of_kind(LaunchKind.ATTENTION)) else []),
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
    if not file.placement.gaps.isdisjoint(file.buffers):  # kernels write the gap behind the last row, too
        elements = "max(1, 1, *(extent * stride for extent, stride in zip(shape, strides)))"
        empty = f"torch.empty({elements}, dtype=getattr(torch, dtype), device=device).as_strided(shape, strides)"
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


def _write_launches(file: ProgramFile) -> None:
    """Write the body of `launch`, and what `prepare` computes."""
    graph, launches = file.graph, file.launches
    write_conversions(file)
    for file.step, position in enumerate(launches.order):
        for operand in graph.nodes[position].operands:
            file.use(operand)
        launch = launches.at.get(position)
        if launch is not None and launch.step == file.step:
            for operand in launch.operands:  # also those of its earlier nodes
                file.use(operand)
            _write_launch(file, launch)


def _write_launch(file: ProgramFile, launch: Launch) -> None:
    match launch:
        case Launch(kind=LaunchKind.BLOCK):
            write_kernel(file, launch)
        case Launch(kind=LaunchKind.CONCATENATION):
            write_joint_concat(file, launch)
        case Launch(kind=LaunchKind.POOLING):
            write_pooling(file, launch)
        case Launch(kind=LaunchKind.IMPLICIT_PRODUCT):
            write_convolution(file, launch)
        case Launch(kind=LaunchKind.SCAN):
            write_scan(file, launch)
        case Launch(kind=LaunchKind.TOP_K):
            write_top_k(file, launch)
        case Launch(call=LibraryAttention() as attention):
            write_attention(file, attention, *launch.results)
        case Launch(call=FusedConvolution() as convolution):
            write_fused_convolution(file, convolution, *launch.results)
        case Launch(call=BiasedProduct() as product):
            write_biased_product(file, product)
        case _:
            _write_one_op(file, file.graph.nodes[launch.nodes[0]], *launch.results)


def _write_one_op(file: ProgramFile, item: Node, value: int) -> None:
    """Write the call of an op of the library, unless its value is stored in memory that is written already."""
    views, joined = file.placement.views, file.placement.joined
    if value in read_by_copies(file.graph):
        return
    if value in views:
        file.name_alias(value, views[value].base)
    elif item.op in RESHAPES | JOINS and joined.keys() >= {*item.operands}:
        file.name_alias(value, item.operands[0])
    elif value in (merged := merged_views(file.graph)).laid and value not in merged.unread:
        file.name_result(value)
        write_laid_out(file, value, merged.laid[value])
    else:
        if value not in merged.unread:
            file.name_result(value)
            write_library_call(file, item, value, merged.views.get(value))
        if item.kind is Kind.REARRANGEMENT:  # may be a view
            file.shown[value] = frozenset[int]().union(*(file.shown.get(i, frozenset()) for i in item.operands))


def _returned(file: ProgramFile) -> str:
    """The text of the returned values, which the caller keeps; the copies into inputs are written before it."""
    write_into_inputs(file)
    returned = []
    for item in file.graph.outputs:
        [value] = item.operands
        if (place := item.get("into")) is not None:
            returned.append(file.names[file.graph.input_values[place]])
            continue
        have, want = file.graph.types[value].dtype, item.get("dtype")
        file.escaping |= file.shown.get(value, frozenset())
        text = file.names[value]
        strides = item.get("strides")
        if strides is None and value in file.placement.gaps:
            text = f"{text}.contiguous()"
        elif strides is not None and strides != file.strides[value]:
            text = f"{empty(file, value, strides, text)}.copy_({text})"
        returned.append(text if want in (None, str(have)) else f"{text}.to(torch.{want})")
    file.calls_torch |= any("torch." in text for text in returned)
    return ", ".join(returned)


def write_into_inputs(file: ProgramFile) -> None:
    """Write the copies of results into inputs, after all launches; results that show an old value are copied before."""
    graph = file.graph
    pairs = [(graph.outputs[result].operands[0], graph.input_values[place]) for result, place in written_inputs(graph).items()]
    copied = [(value, given) for value, given in pairs if file.names[value] != file.names[given]]
    file.step = len(graph.nodes)
    for value in dict.fromkeys(item.operands[0] for item in graph.outputs):
        if _shows(graph, value, {given for _, given in copied}):
            old, file.names[value] = file.names[value], file.new_name(f"t{value}")
            file.body.append(f"    {file.names[value]} = {old}.clone()")
    for value, given in copied:
        file.use(value)
        file.body.append(f"    {file.names[given]}.copy_({file.names[value]})")
    file.calls_torch |= bool(copied)


def _shows(graph: Graph, value: int, inputs: Container[int]) -> bool:
    """Whether a value may be in the memory of one of these inputs."""
    item = graph.node_of[value]
    return value in inputs or (item.kind is Kind.REARRANGEMENT and any(_shows(graph, it, inputs) for it in item.operands))
