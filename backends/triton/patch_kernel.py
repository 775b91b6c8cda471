"""The kernel of a patch: a branch for each block, and one for the other positions if elementwise ops follow."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import prod

from mirage_eg.backends.triton.addressing import LARGEST_OFFSET, highest_offset
from mirage_eg.backends.triton.block_kernel import BlockKernel
from mirage_eg.backends.triton.copied_block import ELEMENTS, STAGES, WARPS, kernel_source
from mirage_eg.backends.triton.op_table import triton_type
from mirage_eg.backends.triton.patch import PatchKernel, is_patched_in_place, makers_of
from mirage_eg.backends.triton.program_file import TRITON_TYPES, ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.backends.triton.values_at_positions import ZERO, Position, TileIndex, ValueWriter, tile_extent
from mirage_eg.backends.triton.views import View
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.patch import written_ranges
from mirage_eg.ir.shapes import Shape


def write_patch(file: ProgramFile, kernel: PatchKernel) -> None:
    """Write the kernel of a patch and its launch."""
    graph, y, makers = file.graph, kernel.item.operands[0], makers_of(file.graph)
    name = file.new_name(f"{file.names[y]}_patch_kernel")
    file.strides[kernel.patched] = file.strides[y]
    if kernel.is_fused:
        file.name_written(kernel.stored)
        buffer = file.write(kernel.stored)
        file.buffers += [buffer] if buffer not in file.buffers else []
    elif is_patched_in_place(graph, kernel.patched):
        file.names[kernel.stored], file.shown[kernel.stored] = file.names[y], file.shown.get(y, frozenset())
    else:
        file.names[kernel.stored] = file.wanted.get(kernel.stored) or file.new_name(f"t{kernel.stored}")
        file.shown[kernel.stored] = frozenset()
        file.body.append(f"    {file.names[kernel.stored]} = {file.names[y]}.clone()")
        file.calls_torch = True
    sources = [it for it in dict.fromkeys(kernel.read(makers)) if it != y or kernel.is_fused]
    for source in sources:
        file.use(source)
    pointers = {source: f"x{place}_ptr" for place, source in enumerate(sources)}
    arguments = ("result_ptr", *pointers.values())
    body = _Body(file, kernel, makers, pointers)
    programs, lines = body.written()
    written = BlockKernel(name, kernel_source(name, arguments, lines), arguments, (), frozenset(body.helpers))
    types = tuple(f"*{TRITON_TYPES[file.types[it].dtype]}" for it in (kernel.stored, *sources))
    file.add_kernel(written, types, {"num_warps": WARPS, "num_stages": STAGES, "enable_fp_fusion": True}, of_block=False)
    given = ", ".join(file.names[it] for it in (kernel.stored, *sources))
    file.body.append(f'    {name}[({programs}, 1, 1)]({given}, **OPTIONS["{name}"])')


Write = Callable[[ValueWriter, str], int]  # lines for a program's number, given as text; the number of programs


class _Body:
    """The body of a patch's kernel."""

    def __init__(self, file: ProgramFile, kernel: PatchKernel, makers: Mapping[int, Node], pointers: Mapping[int, str]) -> None:
        self.file, self.kernel, self.makers, self.pointers = file, kernel, makers, pointers
        self.shape = file.graph.types[kernel.patched].shape
        self.strides, self.start = file.strides[kernel.stored], file.offsets.get(kernel.stored, 0)
        self.wide = any(highest_offset(file.pointer(it)) > LARGEST_OFFSET for it in (kernel.stored, *pointers))
        self.helpers: set[str] = set()
        self.names = 0

    def written(self) -> tuple[int, list[str]]:
        """The number of programs, and the lines."""
        y, *blocks = self.kernel.item.operands
        shapes = [self.file.graph.types[block].shape for block in blocks]
        rectangles = list(written_ranges(len(self.shape), shapes, self.kernel.item.mapping))
        lines = [f"program = tl.program_id(0){'.to(tl.int64)' if self.wide else ''}"]
        first = 0
        branches: list[Write] = [
            partial(self._rectangle, block=block, ranges=ranges) for block, ranges in zip(blocks, rectangles, strict=True)
        ]
        if self.kernel.is_fused:
            branches.append(partial(self._elsewhere, y=y, rectangles=rectangles))
        for write in branches:
            writer = self._writer()
            programs = write(writer, f"(program - {first})" if first else "program")
            lines.append(f"{'el' if first else ''}if program < {first + programs}:")
            lines += [f"    {line}" for line in writer.lines]
            first += programs
            self.names = writer.names
            self.helpers |= writer.helpers
        return first, lines

    def _writer(self) -> ValueWriter:
        strides, offsets = self.file.strides, self.file.offsets
        memory = {it: View(it, strides[it], offsets.get(it, 0)) for it in self.pointers}
        return ValueWriter(self.file.graph, self.makers, memory, self.pointers, self.wide, names=self.names)

    def _rectangle(self, writer: ValueWriter, program: str, block: int, ranges: Sequence[range]) -> int:
        """Programs and lines that compute a block and write it."""
        shape = self.file.graph.types[block].shape
        dim, groups = _columns(self.file.graph, self.makers, self.kernel.inner, block)
        places = prod(shape) if dim is None else prod(shape) // shape[dim]
        tile = (min(ELEMENTS, power_of_two(places)), 1)
        if dim is not None:
            tile = (tile_extent(places), tile_extent(shape[dim] // groups))
        programs = -(-places // tile[0])
        place, position, valid = self._places(writer, program, shape, dim, tile[0])
        spread = [place]
        if dim is not None:
            extent = shape[dim] // groups
            tiles = -(-extent // tile[1])
            own = f"({program} // {programs} % {tiles} * {tile[1]} + tl.arange(0, {tile[1]}))[None, :]"
            column = writer.named(own, frozenset({1}))
            position[dim] = writer.named(f"tl.minimum({column.text}, {extent - 1})", column.axes)
            if groups > 1:
                group = writer.named(f"{program} // {programs * tiles}", frozenset())
                filter_ = writer.named(f"{group.text} * {extent} + {position[dim].text}", column.axes)
                position[dim] = TileIndex(filter_.text, filter_.axes, group=(extent, group.text))
            valid += f" & ({column.text} < {extent})"
            spread.append(column)
            programs *= tiles * groups
        moved = [writer.affine(index, taken.step, taken.start) for index, taken in zip(position, ranges, strict=True)]
        writer.replaced = {self.kernel.patched: (block, tuple(position))}
        self._store(writer, tuple(moved), tile, valid, spread)
        return programs

    def _elsewhere(self, writer: ValueWriter, program: str, y: int, rectangles: Sequence[Sequence[range]]) -> int:
        """Programs and lines that write all positions outside the rectangles."""
        places = prod(self.shape)
        tile = (min(ELEMENTS, power_of_two(places)), 1)
        place, position, valid = self._places(writer, program, self.shape, None, tile[0])
        for ranges in rectangles:
            inside = [
                f"({index.text} >= {taken.start}) & ({index.text} <= {taken[-1]})"
                + (f" & (({index.text} - {taken.start}) % {taken.step} == 0)" if taken.step > 1 else "")
                for index, taken, extent in zip(position, ranges, self.shape, strict=True)
                if len(taken) < extent
            ]
            valid += f" & ~({' & '.join(inside) or f'{place.text} >= 0'})"
        writer.replaced = {self.kernel.patched: (y, tuple(position))}
        self._store(writer, tuple(position), tile, valid, [place])
        return -(-places // tile[0])

    def _places(
        self, writer: ValueWriter, program: str, shape: Shape, column: int | None, tile: int
    ) -> tuple[TileIndex, list[TileIndex], str]:
        """The places of a program, their position without the column, and which of them exist."""
        others = [dim for dim in range(len(shape)) if dim != column]
        places = prod(shape[dim] for dim in others)
        down = frozenset({0})
        tiles = -(-places // tile)
        place = writer.named(f"({program} % {tiles} * {tile} + tl.arange(0, {tile}))[:, None]", down)
        own = writer.named(f"tl.minimum({place.text}, {places - 1})", down)
        position, step = [ZERO] * len(shape), 1
        for dim in reversed(others):
            if shape[dim] > 1:
                digit = f"{own.text} // {step}" if step > 1 else own.text
                position[dim] = writer.named(f"{digit} % {shape[dim]}", down)
            step *= shape[dim]
        return place, position, f"({place.text} < {places})"

    def _store(self, writer: ValueWriter, position: Position, tile: Shape, valid: str, spread: Sequence[TileIndex]) -> None:
        found = writer.value(self.kernel.stored, position, tile)
        offset = writer.offset(position, self.strides, self.start)
        where = " + ".join([offset.text, *(f"0 * {index.text}" for index in spread if not index.axes <= offset.axes)])
        text = f"{found.text}.to({triton_type(self.file.types[self.kernel.stored].dtype)})"
        writer.say(f"tl.store(result_ptr + ({where}), {text}, mask={valid})")


def _columns(graph: Graph, makers: Mapping[int, Node], inner: Collection[int], value: int) -> tuple[int | None, int]:
    """The dim of a block that the right factor of its product has, and the groups of that dim; None if there is no product."""
    left, seen = [(value, False)], set[int]()
    while left:
        value, moved = left.pop()
        if value not in inner or value in seen:
            continue
        seen.add(value)
        item, shape = makers[value], graph.types[value].shape
        if item.op == "conv2d":
            return 1, 1 if moved else item["groups"]
        if item.op == "matmul":
            return len(shape) - 1, 1
        elementwise = OPS[item.op].kind is Kind.ELEMENTWISE
        if elementwise or item.op in ("slice", "pad", "flip", "concat", "avg_pool2d"):
            alike = [it for it in item.operands if len(graph.types[it].shape) == len(shape)]
            left += [(it, moved or not elementwise) for it in alike]
    return None, 1


__all__ = ["write_patch"]
