"""From a µGraph to a standalone Triton program: one kernel a block graph, PyTorch calls for the library kernels, and a self-
check.

The file imports nothing but triton, and torch where it runs. Nothing here is trusted: what is emitted is checked against
float64.
"""

import keyword
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from mirage_eg.backends.arena import Arena, Buffer, plan_arena
from mirage_eg.backends.emit_address import Pointer, launch_grid, row_major
from mirage_eg.backends.emit_block import BlockKernel, emit_block
from mirage_eg.backends.emit_check import write_main, write_reference
from mirage_eg.backends.emit_ops import HELPERS, torch_call
from mirage_eg.backends.emit_partials import Export, Peak, exports_of, with_peaks
from mirage_eg.backends.emit_tiles import names_used
from mirage_eg.backends.emit_writer import Choices
from mirage_eg.backends.views import views_of
from mirage_eg.backends.warps import written_warps
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph, Node, TensorType
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape, text

_TRITON_TYPES = {DType.float16: "fp16", DType.bfloat16: "bf16", DType.float32: "fp32", DType.float64: "fp64"}
_LARGEST_GRID = 2**31 - 1
# What the file itself names or calls.
_TABLES = ("INPUTS", "BUFFERS", "ARENA", "ARENA_BYTES", "SIGNATURES", "OPTIONS", "SCALES", "MAGNITUDES")
_RESERVED = (*_TABLES, "torch", "triton", "tl", "run", "launch", "reference", "main", "X_ptr")
_ALLOCATOR = [
    "    # Tensor descriptors stand in memory that Triton asks for.",
    '    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))',
]
_LOCALS = ("buffers", "arena", "name", "shape", "dtype", "strides", "getattr")  # of `run`


_FLAGS = ("swapped", "exp2", "last_first", "descriptors")  # of Choices


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the kernels are written and compiled: warps a block, stages of the software pipeline, and `Choices` of the text.

    Each field but `safe` may be one value for all kernels or a tuple with one for each block graph. Without `num_warps` each
    block graph's own threads count.
    """

    num_warps: int | tuple[int, ...] | None = None
    num_stages: int | tuple[int, ...] = 3
    safe: bool = True
    swapped: bool | tuple[bool, ...] = False
    exp2: bool | tuple[bool, ...] = False
    last_first: bool | tuple[bool, ...] = False
    programs: int | tuple[int, ...] = 0
    descriptors: bool | tuple[bool, ...] = False

    def choices(self, number: int) -> Choices:
        """How the kernel of the block graph with this number is written."""
        flags = {name: bool(_choice(getattr(self, name), number, name)) for name in _FLAGS}
        return Choices(safe=self.safe, programs=_choice(self.programs, number, "programs"), **flags)


@dataclass(slots=True)
class _Program:
    """The file while it is being written."""

    graph: Graph
    schedule: Schedule
    strides: list[Shape]
    types: list[TensorType]
    peaks: dict[int, list[Peak]] = field(default_factory=dict)  # of values that are shifted by maxima
    names: dict[int, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    kernels: list[BlockKernel] = field(default_factory=list)
    signatures: list[tuple[str, ...]] = field(default_factory=list)
    warps: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)  # values that kernels write
    lives: dict[int, tuple[int, int]] = field(default_factory=dict)  # of these, the first and last node that use it
    shown: dict[int, frozenset[int]] = field(default_factory=dict)  # of every value, the buffers whose memory it may show
    escaping: set[int] = field(default_factory=set)  # buffers that the caller gets
    body: list[str] = field(default_factory=list)
    calls_torch: bool = False

    @property
    def arena(self) -> Arena:
        """Where the buffers that no caller sees lie in their common memory."""
        inner = [value for value in self.buffers if value not in self.escaping]
        sizes = [
            1 + sum((extent - 1) * stride for extent, stride in zip(self.types[value].shape, self.strides[value], strict=True))
            for value in inner
        ]
        return plan_arena(
            [
                Buffer(self.names[value], size * self.types[value].dtype.itemsize, *self.lives[value])
                for value, size in zip(inner, sizes, strict=True)
            ]
        )

    def use(self, value: int, step: int) -> None:
        """Note that a node uses what the value shows."""
        for buffer in self.shown.get(value, ()):
            self.lives[buffer] = self.lives[buffer][0], step

    def new_name(self, wanted: str) -> str:
        name = names_used(self.taken, wanted)
        self.taken.add(name)
        return name


def identifier(name: str) -> str:
    """The name as an ASCII Python identifier: α becomes alpha."""
    spelled = "".join(
        char if char.isascii() else (unicodedata.name(char, "x").split()[-1].lower() if char.isalnum() else "_")
        for char in name
    )
    spelled = re.sub(r"\W", "_", spelled)
    if not spelled or spelled[0].isdigit():
        spelled = f"_{spelled}"
    # Names that the kernels give to indices must stay theirs.
    return (
        f"{spelled}_"
        if keyword.iskeyword(spelled) or re.fullmatch(r"i|step|g[xyz]|r\d+|tl|triton|float|range|tanh", spelled)
        else spelled
    )


def emit(graph: Graph, *, program: Graph | None = None, schedule: Schedule | None = None) -> str:
    """The source of a Triton program with a function `run`, which takes the inputs of `graph` and returns its outputs.

    `run` allocates what the kernels write (BUFFERS) and calls `launch`, which launches them; a launcher of its own may do so
    with memory of its own (`backends.runtime`).

    With `program`, the graph as it was written, the file also has a `reference` in PyTorch and checks and times itself when it
    is run.

    Raises:
        UnsupportedError: a tile that Triton cannot hold, a grid that CUDA cannot launch.
        GraphError: `program` takes or returns something else than `graph`; layouts that contradict each other.
    """
    file, inputs, outputs, returned = _written(graph, program, schedule or Schedule())
    helpers = [HELPERS[name] for name in sorted({helper for kernel in file.kernels for helper in kernel.helpers})]
    kernels = ["import triton\nimport triton.language as tl\n", *helpers, *(kernel.source for kernel in file.kernels)]
    sections = [
        _header(graph, inputs, outputs),
        *(kernels if file.kernels else []),
        _tables(file, inputs),
        _functions(file, inputs, outputs, returned),
    ]
    if program is not None:
        sections += [write_reference(program, inputs), write_main(program, outputs)]
    return "\n\n".join(sections)


def memory_of(graph: Graph, *, program: Graph | None = None, schedule: Schedule | None = None) -> Arena:
    """The arena of the program that `emit` writes."""
    return _written(graph, program, schedule or Schedule())[0].arena


def _written(graph: Graph, program: Graph | None, schedule: Schedule) -> tuple[_Program, list[str], list[str], str]:
    """The kernels and the body of `launch`; names of inputs and outputs, and what is returned."""
    if program is not None and (program.input_types, program.output_types) != (graph.input_types, graph.output_types):
        raise GraphError(
            f"got a program from {_types(program.input_types)} to {_types(program.output_types)} for a µGraph from "
            f"{_types(graph.input_types)} to {_types(graph.output_types)}"
        )
    named = program or graph
    strides, declared = _layouts(graph)
    views = views_of(graph, strides, declared)
    for value, (_, shown) in views.items():
        strides[value] = shown
    file = _Program(graph, schedule, strides, list(graph.types))
    file.taken |= {*_RESERVED, *_LOCALS, *HELPERS}
    inputs = [file.new_name(identifier(name)) for name in named.input_names]
    outputs = [file.new_name(identifier(name)) for name in named.output_names]
    return file, inputs, outputs, _write_run(file, inputs, outputs, views)


def _types(types: Sequence[object]) -> str:
    return ", ".join(map(str, types))


def _functions(file: _Program, inputs: Sequence[str], outputs: Sequence[str], returned: str) -> str:
    """`launch`, which takes the library that it calls, if any, as its last argument; and `run`, which brings what it takes."""
    made = ", ".join(f"{name} {type_}" for name, type_ in zip(outputs, file.graph.output_types, strict=True))
    written = [file.names[value] for value in file.buffers]
    library = ["torch"] if file.calls_torch else []
    kernels = f"Launch the kernels, which write {', '.join(written)}" if written else "Call the library"
    own = f"torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device={inputs[0]}.device)"
    allocated = ["    buffers = [", f"        {own}", "        for shape, dtype, strides in BUFFERS.values()", "    ]"]
    if file.arena.buffers:
        allocated = [
            f"    arena = torch.empty(ARENA_BYTES, dtype=torch.uint8, device={inputs[0]}.device)",
            "    buffers = [",
            "        arena[ARENA[name] :].view(getattr(torch, dtype)).as_strided(shape, strides)",
            "        if name in ARENA",
            f"        else {own}",
            "        for name, (shape, dtype, strides) in BUFFERS.items()",
            "    ]",
        ]
    given = [*inputs, *(["*buffers"] if written else []), *(f"{name}={name}" for name in library)]
    return "\n".join(
        [
            f"def launch({', '.join([*inputs, *written, *library])}):",
            f'    """{kernels}; returns the outputs."""',
            *file.body,
            f"    return {returned}\n\n",
            f"def run({', '.join(inputs)}):",
            f'    """{"Allocate what the kernels write and launch them" if written else "Run"}; returns {made}."""',
            *(["    import torch  # here, so that the kernels can be compiled without it\n"] if written or library else []),
            *(_ALLOCATOR if any(kernel.descriptors for kernel in file.kernels) else []),
            *(allocated if written else []),
            f"    return launch({', '.join(given)})\n",
        ]
    )


def _header(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    listing = "\n".join(f"# {line}".rstrip() for line in str(graph).splitlines())
    return f'"""{", ".join(outputs)} from {", ".join(inputs)}; generated by mirage_eg."""\n\n# The µGraph:\n#\n{listing}\n'


def _tables(file: _Program, inputs: Sequence[str]) -> str:
    lines = ["# name: (shape, element type, strides in elements)", "INPUTS = {"]
    values = [values[0] for item, values in file.graph.numbered() if item.op == "input"]
    lines += [_layout_line(file, name, value) for name, value in zip(inputs, values, strict=True)]
    lines.append("}")
    if file.kernels:
        lines += ["", "# what the kernels write", "BUFFERS = {"]
        lines += [_layout_line(file, file.names[value], value) for value in file.buffers]
        lines.append("}")
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
        for number, kernel in enumerate(file.kernels):
            options = {
                "num_warps": file.warps[number],
                "num_stages": _choice(file.schedule.num_stages, number, "num_stages"),
                "enable_fp_fusion": True,
            }
            lines.append(f'    "{kernel.name}": {_dict_text(options)},')
        lines.append("}")
    return "\n".join(lines) + "\n"


def _layout_line(file: _Program, name: str, value: int) -> str:
    type_ = file.types[value]
    return f'    "{name}": ({type_.shape}, "{type_.dtype}", {file.strides[value]}),'


def _dict_text(options: Mapping[str, int]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in options.items()) + "}"


def _choice(value: int | tuple[int, ...], number: int, what: str) -> int:
    if isinstance(value, int):
        return value
    if number >= len(value):
        raise GraphError(
            f"got {len(value)} values of {what}, wanted one for each block graph, of which this is number {number + 1}"
        )
    return value[number]


def _layouts(graph: Graph) -> tuple[list[Shape], frozenset[int]]:
    """The strides of every value of the kernel graph: as declared, or as the kernel that reads it wants it, or row-major.

    Also the values that have declared ones.
    """
    declared: dict[int, tuple[Shape, str]] = {}

    def declare(value: int, strides: Shape, where: str) -> None:
        before, place = declared.setdefault(value, (strides, where))
        if before != strides:
            raise GraphError(f"{where}: got strides {text(strides)} for %{value}, but {place} has {text(before)}")

    for number, (item, values) in enumerate(graph.numbered()):
        if item.op == "input" and item.get("strides") is not None:
            declare(values[0], item["strides"], f"node {number}: input")
        if item.op == "block":
            for place, (operand, inner) in enumerate(zip(item.operands, item["graph"].inputs, strict=True)):
                if inner.get("strides") is not None:
                    declare(operand, inner["strides"], f"node {number}: block, input {place}")
            for place, (value, inner) in enumerate(zip(values, item["graph"].outputs, strict=True)):
                if inner.get("strides") is not None:
                    declare(value, inner["strides"], f"node {number}: block, output {place}")
    inputs = {values[0] for item, values in graph.numbered() if item.op == "input"}
    for value, (strides, where) in declared.items():
        if value in inputs and any(stride < 0 for stride in strides):
            raise GraphError(f"{where}: got strides {text(strides)}; wanted none below 0")
    layouts = [declared[value][0] if value in declared else row_major(type_.shape) for value, type_ in enumerate(graph.types)]
    return layouts, frozenset(declared)


def _write_run(file: _Program, inputs: Sequence[str], outputs: Sequence[str], views: Mapping[int, tuple[int, Shape]]) -> str:
    """Write the body of `run`; gives the text of what it returns."""
    graph = file.graph
    given, results = iter(inputs), iter(outputs)
    wanted: dict[int, str] = {}
    for item, name in zip(graph.outputs, results, strict=True):
        wanted.setdefault(item.operands[0], name)
    used: set[str] = set()
    returned: list[str] = []
    for number, (item, values) in enumerate(graph.numbered()):
        for operand in item.operands:
            file.use(operand, number)
        match item.op:
            case "input":
                file.names[values[0]] = next(given)
            case _ if values and values[0] in views:
                base, _ = views[values[0]]
                file.names[values[0]] = file.names[base]
                file.shown[values[0]] = file.shown.get(base, frozenset())
            case "output":
                name = file.names[item.operands[0]]
                have, want = graph.types[item.operands[0]].dtype, item.get("dtype")
                file.escaping |= file.shown.get(item.operands[0], frozenset())
                returned.append(name if want in (None, str(have)) else f"{name}.to(torch.{want})")
            case "block":
                for value in values:
                    file.names[value] = wanted.get(value) or file.new_name(f"t{value}")
                _write_launch(file, item, values, number)
            case _:
                [value] = values
                file.names[value] = wanted.get(value) or file.new_name(f"t{value}")
                _write_library_call(file, item, value)
                if OPS[item.op].kind is Kind.REARRANGEMENT:  # may be a view
                    file.shown[value] = frozenset[int]().union(*(file.shown.get(i, frozenset()) for i in item.operands))
        used.update(file.names[value] for value in values)
    file.calls_torch |= any("torch." in name for name in returned)
    return ", ".join(returned)


def _empty(file: _Program, value: int) -> str:
    type_, strides = file.types[value], file.strides[value]
    made = (
        f"torch.empty({type_.shape}" if strides == row_major(type_.shape) else f"torch.empty_strided({type_.shape}, {strides}"
    )
    first = file.names[0]
    return f"{made}, dtype=torch.{type_.dtype}, device={first}.device)"


def _write_launch(file: _Program, item: Node, values: Sequence[int], number: int) -> None:
    inner: Graph = item["graph"]
    if prod(inner.grid) > _LARGEST_GRID:
        raise UnsupportedError(
            f"node {number}: block: got a grid of {prod(inner.grid)} blocks; CUDA launches at most {_LARGEST_GRID}"
        )
    types = file.types
    operands = item.operands
    place = len(file.kernels)
    choices = file.schedule.choices(place)
    asked = file.schedule.num_warps
    file.warps.append(written_warps(inner, f"node {number}: block") if asked is None else _choice(asked, place, "num_warps"))
    peaks: list[int] = []
    exports: list[Export] = []
    if choices.safe:
        inner, operands = with_peaks(inner, operands, file.peaks)
        exports = exports_of(inner, _read_by_blocks(file.graph, values))
        peaks = [_new_peaks(file, export, values) for export in exports]

    def pointer(value: int) -> Pointer:
        name = file.names[value]
        return Pointer(f"{name}_ptr", name, types[value].shape, types[value].dtype, file.strides[value])

    reads, writes = [pointer(value) for value in operands], [pointer(value) for value in values]
    name = file.new_name(f"{'_'.join(file.names[value] for value in values)}_kernel")
    kernel = emit_block(inner, name, reads, writes, choices, list(zip(exports, map(pointer, peaks), strict=True)))
    every = [*(operands[place] for place in kernel.used), *values, *peaks]
    arguments = list({file.names[value]: value for value in every}.values())  # views share names
    for value in operands:
        file.use(value, number)
    for value in (*values, *peaks):
        file.lives[value] = number, number
        file.shown[value] = frozenset({value})
    file.kernels.append(kernel)
    file.signatures.append(tuple(f"*{_TRITON_TYPES[types[value].dtype]}" for value in arguments))
    file.buffers += [*values, *peaks]
    listed = ", ".join(file.names[value] for value in arguments)
    file.body.append(f'    {name}[{launch_grid(inner.grid, choices)}]({listed}, **OPTIONS["{name}"])')


def _read_by_blocks(graph: Graph, values: Sequence[int]) -> frozenset[int]:
    """The positions among `values` of those that generated kernels read, and nothing else."""
    readers = {value: [item for item in graph.nodes if value in item.operands] for value in values}
    return frozenset(
        place for place, value in enumerate(values) if readers[value] and all(item.op == "block" for item in readers[value])
    )


def _new_peaks(file: _Program, export: Export, values: Sequence[int]) -> int:
    """A tensor of maxima, as one more value behind those of the graph."""
    made = len(file.types)
    file.types.append(TensorType(export.shape, export.dtype))
    file.strides.append(row_major(export.shape))
    file.names[made] = file.new_name("_".join([*(file.names[values[place]] for place in export.degrees), "peak"]))
    for place, degree in export.degrees.items():
        file.peaks.setdefault(values[place], []).append(Peak(made, export.shape, export.dtype, degree))
    return made


def _write_library_call(file: _Program, item: Node, value: int) -> None:
    types = file.graph.types
    call = _torch_text(item, [file.names[i] for i in item.operands], file.graph, value)
    if file.strides[value] != row_major(types[value].shape):
        call = f"{_empty(file, value)}.copy_({call})"
    elif any(consumer.op == "block" and value in consumer.operands for consumer in file.graph.nodes):
        call = f"({call}).contiguous()"  # a kernel reads it by fixed strides
    file.body.append(f"    {file.names[value]} = {call}")
    file.calls_torch = True


def _torch_text(item: Node, names: Sequence[str], graph: Graph, value: int) -> str:
    types = graph.types
    operands = [
        name if types[i].dtype is types[value].dtype else f"{name}.to(torch.{types[value].dtype})"
        for name, i in zip(names, item.operands, strict=True)
    ]
    return torch_call(item.op, operands, item.mapping, [types[i].shape for i in item.operands])


__all__ = ["Schedule", "emit", "identifier", "memory_of"]
