"""A patch in an emitted program: one kernel for all its blocks, in place where nobody else reads y.

A block that a convolution computes for the patch alone, from slices, is computed by this kernel: all rectangles of a corrected
mutant are one launch, which reads the receptive fields and the filters, and writes the rectangles. Other blocks are copied.
y is copied first only if it is an input or an output, or if another node reads it or what it may alias.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.triton.addressing import LARGEST_OFFSET, row_major
from mirage_eg.backends.triton.block_kernel import BlockKernel
from mirage_eg.backends.triton.program_file import TRITON_TYPES, ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.backends.triton.views import View, shown_offset, shown_strides
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.patch import written_ranges
from mirage_eg.ir.shapes import Shape

ELEMENTS = 1024  # that one program copies
WARPS = 4
STAGES = 1  # with more, Triton 3.6 overwrites tiles that wgmma still reads; on an H200 they gained nothing
LARGEST_TILE = 64  # places or filters of one program
_PRODUCTS = (DType.float16, DType.bfloat16, DType.float32)  # that tl.dot takes


@dataclass(frozen=True, slots=True)
class ConvolvedBlock:
    """A block that the patch's kernel computes: the convolution's node, and the memory of its operands."""

    item: Node
    value: int
    x: View
    weight: View


def convolved_blocks(graph: Graph, strides: Sequence[Shape]) -> dict[int, ConvolvedBlock]:
    """The values that patches compute themselves: convolutions, perhaps of slices, which no other node reads."""
    patches = _patches(graph)
    makers = {value: item for item, values in graph.numbered() for value in values} if patches else {}
    found = {}
    for item in patches:
        for value in item.operands[1:]:
            own = makers[value]
            if own.op == "conv2d" and graph.types[value].dtype in _PRODUCTS and _readers(graph, value) == 1:
                x, weight = (_shown(graph, makers, operand, strides) for operand in own.operands)
                found[value] = ConvolvedBlock(own, value, x, weight)
    return found


def values_within_patches(graph: Graph) -> frozenset[int]:
    """The values that no kernel stores: convolutions that patches compute, and slices that only these read."""
    within = {*convolved_blocks(graph, row_major_strides(graph))}
    if not within:
        return frozenset()
    for item, values in reversed([*graph.numbered()]):
        readers = [made for reader, made in graph.numbered() if values and values[0] in reader.operands]
        if item.op == "slice" and readers and all(made and made[0] in within for made in readers):
            within.add(values[0])
    return frozenset(within)


def _patches(graph: Graph) -> list[Node]:
    return [item for item in graph.nodes if item.op == "patch"]


def row_major_strides(graph: Graph) -> list[Shape]:
    """The strides of all values where none are declared."""
    return [row_major(kind.shape) for kind in graph.types]


def _readers(graph: Graph, value: int) -> int:
    return sum(item.operands.count(value) for item in graph.nodes)


def _shown(graph: Graph, makers: Mapping[int, Node], value: int, strides: Sequence[Shape]) -> View:
    """The memory of a value that is a slice of slices, or a tensor of its own."""
    item = makers[value]
    if item.op != "slice":
        return View(value, strides[value])
    view = _shown(graph, makers, item.operands[0], strides)
    shown = shown_strides(item, graph.types[item.operands[0]].shape, view.strides)
    assert shown is not None, "a slice is a view"
    return View(view.base, shown, view.offset + shown_offset(item, view.strides))


def patched_layouts(graph: Graph, strides: Sequence[Shape], declared: frozenset[int]) -> dict[int, Shape]:
    """The values that patches write whose memory the library gives channels last, with these strides.

    A convolution of such images has such a result, and its moves may be views of it. Copied to row-major order, y would not be
    patched in place.
    """
    if not _patches(graph):
        return {}
    given, fixed = list(strides), declared.union(graph.input_values)
    found = dict[int, Shape]()
    for item, values in graph.numbered():
        for value in set(values) - declared:
            shape = graph.types[value].shape
            if item.op == "conv2d" and is_channels_last(graph.types[item.operands[0]].shape, given[item.operands[0]]):
                given[value] = channels_last(shape)
            elif item.op in ("reshape", "transpose", "slice", "broadcast"):
                operand = item.operands[0]
                given[value] = shown_strides(item, graph.types[operand].shape, given[operand]) or row_major(shape)
            elif item.op == "patch" and is_channels_last(shape, given[y := item.operands[0]]) and y not in fixed:
                found[y] = found[value] = given[value] = channels_last(shape)
    return found


def channels_last(shape: Shape) -> Shape:
    """The strides of [N, C, H, W] in the order N, H, W, C."""
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether images have these strides, but for dims of one element, and no others."""
    if len(shape) != 4 or strides == row_major(shape):
        return False
    return all(extent == 1 or have == want for extent, have, want in zip(shape, strides, channels_last(shape), strict=True))


def read_by_patches(graph: Graph, strides: Sequence[Shape]) -> frozenset[int]:
    """The values that the kernels of patches read or write, by their strides."""
    blocks = convolved_blocks(graph, strides)
    return frozenset(value for item in _patches(graph) for value in (item.operands[0], *_sources(item, blocks)))


def write_patch(file: ProgramFile, number: int) -> None:
    """Write the kernel of the patch at this node and its launch; the patched value is y's memory."""
    item, [value] = file.nodes[number]
    y = item.operands[0]
    name = file.new_name(f"{file.names[y]}_patch_kernel")
    if is_patched_in_place(file.graph, value):
        file.names[value], file.shown[value] = file.names[y], file.shown.get(y, frozenset())
    else:
        file.names[value], file.shown[value] = file.wanted.get(value) or file.new_name(f"t{value}"), frozenset()
        file.body.append(f"    {file.names[value]} = {file.names[y]}.clone()")
        file.calls_torch = True
    file.strides[value] = file.strides[y]
    blocks = convolved_blocks(file.graph, file.strides)
    sources = list(dict.fromkeys(_sources(item, blocks)))
    for source in sources:
        file.use(source, number)
    arguments = ("y_ptr", *(f"x{place}_ptr" for place in range(len(sources))))
    programs, body = _body(file, item, blocks, {source: f"x{place}_ptr" for place, source in enumerate(sources)})
    helpers = frozenset({"convolve_rectangle"} if blocks.keys() & {*item.operands} else ())
    file.kernels.append(BlockKernel(name, _source(name, arguments, body), arguments, (), helpers))
    file.signatures.append(tuple(f"*{TRITON_TYPES[file.types[it].dtype]}" for it in (y, *sources)))
    file.options.append({"num_warps": WARPS, "num_stages": STAGES, "enable_fp_fusion": True})
    given = ", ".join(file.names[it] for it in (value, *sources))
    file.body.append(f'    {name}[({programs}, 1, 1)]({given}, **OPTIONS["{name}"])')


def _sources(item: Node, blocks: Mapping[int, ConvolvedBlock]) -> Iterator[int]:
    """The values that the kernel reads."""
    for value in item.operands[1:]:
        yield from (blocks[value].x.base, blocks[value].weight.base) if value in blocks else (value,)


def is_patched_in_place(graph: Graph, value: int) -> bool:
    """Whether a patch may write into y: its memory, and what it is a view of, is computed here for this patch alone."""
    makers = {it: item for item, values in graph.numbered() for it in values}
    read = makers[value].operands[0]
    while True:
        item = makers[read]
        if item.op == "input" or _readers(graph, read) > 1:
            return False
        if not _may_alias(item):
            return True
        read = item.operands[0]


def _may_alias(item: Node) -> bool:
    """Whether torch may give a view of the first operand."""
    return OPS[item.op].kind in (Kind.REARRANGEMENT, Kind.DERIVED) or item.op in ("cast", "patch")


def patch_traffic(graph: Graph, item: Node, value: int) -> tuple[int, int]:
    """The bytes that a patch's kernel moves (fields and filters or blocks, rectangles, y if copied), and its operations."""
    blocks, makers = (
        convolved_blocks(graph, row_major_strides(graph)),
        {it: one for one, values in graph.numbered() for it in values},
    )
    moved, flops = 0 if is_patched_in_place(graph, value) else 2 * graph.types[item.operands[0]].nbytes, 0
    for block in item.operands[1:]:
        moved += graph.types[block].nbytes
        read = makers[block].operands if block in blocks else (block,)
        moved += sum(graph.types[it].nbytes for it in read)
        if block in blocks:
            flops += 2 * prod(graph.types[block].shape) * prod(graph.types[read[1]].shape[1:])
    return moved, flops


def _body(
    file: ProgramFile, item: Node, blocks: Mapping[int, ConvolvedBlock], names: Mapping[int, str]
) -> tuple[int, list[str]]:
    """The number of programs, and the lines of the kernel: a branch for each block."""
    graph, (y, *written) = file.graph, item.operands
    shapes = [graph.types[block].shape for block in written]
    strides = file.strides[y]
    reach = sum((extent - 1) * stride for extent, stride in zip(graph.types[y].shape, strides, strict=True))
    lines = [f"program = tl.program_id(0){'.to(tl.int64)' if reach > LARGEST_OFFSET else ''}"]
    first = 0
    for block, shape, ranges in zip(written, shapes, written_ranges(len(strides), shapes, item.mapping), strict=True):
        start = sum(it.start * stride for it, stride in zip(ranges, strides, strict=True))
        steps = [it.step * stride for it, stride in zip(ranges, strides, strict=True)]
        if block in blocks:
            programs, own = _convolved(graph, blocks[block], f"y_ptr + {start}", steps, names, f"program - {first}")
        else:
            programs, own = _copied(shape, file.strides[block], names[block], f"y_ptr + {start}", steps, f"program - {first}")
        lines.append(f"{'el' if first else ''}if program < {first + programs}:")
        lines += [f"    {line}" for line in own]
        first += programs
    return first, lines


def _copied(
    shape: Shape, strides: Shape, source: str, target: str, steps: Sequence[int], program: str
) -> tuple[int, list[str]]:
    """Programs and lines that copy a block."""
    mask = f"mask=i < {prod(shape)}"
    lines = [f"i = ({program}) * {ELEMENTS} + tl.arange(0, {ELEMENTS})"]
    lines.append(f"block = tl.load({source} + {_offset(shape, strides)}, {mask})")
    lines.append(f"tl.store({target} + {_offset(shape, steps)}, block, {mask})")
    return -(-prod(shape) // ELEMENTS), lines


def _offset(shape: Shape, strides: Sequence[int]) -> str:
    """The offset of element i in row-major order."""
    terms = []
    for extent, step, stride in zip(shape, row_major(shape), strides, strict=True):
        if extent > 1:
            digit = f"i // {step} % {extent}" if step > 1 else f"i % {extent}"
            terms.append(f"{digit} * {stride}" if stride != 1 else digit)
    return f"({' + '.join(terms) or '0 * i'})"


def _convolved(
    graph: Graph, block: ConvolvedBlock, target: str, steps: Sequence[int], names: Mapping[int, str], program: str
) -> tuple[int, list[str]]:
    """Programs and lines that compute a block by `convolve_rectangle`."""
    x, weight = (graph.types[operand].shape for operand in block.item.operands)
    images, filters, rows, columns = graph.types[block.value].shape
    top, left, _, _ = block.item["pads"]
    groups = block.item["groups"]
    places, per_group = images * rows * columns, filters // groups
    tile = [max(16, min(LARGEST_TILE, power_of_two(extent))) for extent in (places, per_group, weight[1])]
    numbers = {
        ("IMAGES", "ROWS", "COLUMNS"): (images, rows, columns),
        ("GROUPS_FILTERS", "CHANNELS"): (per_group, weight[1]),
        ("HEIGHT", "WIDTH"): x[2:],
        ("TAPS_DOWN", "TAPS_ACROSS"): weight[2:],
        ("STRIDE_DOWN", "STRIDE_ACROSS"): block.item["strides"],
        ("DILATION_DOWN", "DILATION_ACROSS"): block.item["dilations"],
        ("TOP", "LEFT"): (top, left),
        ("X_IMAGE", "X_CHANNEL", "X_ROW", "X_COLUMN"): block.x.strides,
        ("W_FILTER", "W_CHANNEL", "W_DOWN", "W_ACROSS"): block.weight.strides,
        ("Y_IMAGE", "Y_FILTER", "Y_ROW", "Y_COLUMN"): steps,
        ("PLACES_TILE", "FILTERS_TILE", "CHANNELS_TILE"): tile,
    }
    pointers = [f"{names[view.base]} + {view.offset}" if view.offset else names[view.base] for view in (block.x, block.weight)]
    lines = [f"convolve_rectangle({target}, {pointers[0]}, {pointers[1]}, {program},"]
    lines += [
        f"    {', '.join(f'{name}={value}' for name, value in zip(words, values, strict=True))},"
        for words, values in numbers.items()
    ]
    programs = groups * -(-per_group // tile[1]) * -(-places // tile[0])
    return programs, [*lines, ")"]


def _source(name: str, arguments: Sequence[str], body: Sequence[str]) -> str:
    return "\n".join(["@triton.jit", f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]) + "\n"


__all__ = [
    "channels_last",
    "convolved_blocks",
    "is_patched_in_place",
    "patch_traffic",
    "patched_layouts",
    "read_by_patches",
    "row_major_strides",
    "values_within_patches",
    "write_patch",
]
