"""One block graph as one Triton kernel: loads before the loop or in it, tile ops, accumulators, stores.

Every value becomes one variable, named after its op. Padding is masked where it would be reduced, unless it is zero already.
Nothing here is trusted: emitted kernels are checked against float64.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_eg.backends.triton.addressing import (
    LARGEST_OFFSET,
    NO_PLACES,
    Pointer,
    Rows,
    address,
    coordinates,
    highest_offset,
    parts,
)
from mirage_eg.backends.triton.block_order import prepared
from mirage_eg.backends.triton.byte_casts import byte_cast, is_byte_sum
from mirage_eg.backends.triton.byte_fields import (
    Fields,
    fields_of_bytes,
    in_halves,
    is_scaled_alone,
    places_alone,
    written_fields,
    written_places,
)
from mirage_eg.backends.triton.clusters import shared_row
from mirage_eg.backends.triton.grid_order import grid_order
from mirage_eg.backends.triton.joined_numbers import by_numbers_of_last_dim
from mirage_eg.backends.triton.kernel_binaries import CONSTANT, FULL, SizedTiles
from mirage_eg.backends.triton.loop import indented, loop_lines
from mirage_eg.backends.triton.masked_exp import Factor
from mirage_eg.backends.triton.matmul import DotPlan, plan_dot, write_product
from mirage_eg.backends.triton.op_table import ELEMENTWISE, helper_names, triton_attributes
from mirage_eg.backends.triton.rearrangement import write_rearrangement
from mirage_eg.backends.triton.reduction import write_accumulator, write_logarithm, write_reduction, write_safe_exponential
from mirage_eg.backends.triton.safe_exp import NO_VALUES, SafeExponential, judged_exponentials
from mirage_eg.backends.triton.schedule import WAITING, Schedule
from mirage_eg.backends.triton.skipped_iterations import SkippedIterations
from mirage_eg.backends.triton.split_reduction import ExportedMaximum, row_maximum_tile
from mirage_eg.backends.triton.storage import accumulates, is_widening, late_loads, needs_copy, reads_stored
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.backends.triton.tiles import Tile, padding, real_dims, zero_dims
from mirage_eg.backends.triton.viewed_loads import JoinedTerms, Step, joined_terms, places, viewed_loads
from mirage_eg.backends.triton.writer import GRID_NAMES, Writer, aligned, cast, condition, picked, times
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node, Phase, is_zero
from mirage_eg.ir.op.elementwise import CASTS, PRODUCTS, QUOTIENTS, TERMS, to_a_type
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.sizes import SizeExpression, divisor

_RESERVED = {"triton", "tl", "i", "step", "first", "end", "whole", "stop", "range", "float", FULL, *GRID_NAMES}


@dataclass(frozen=True, slots=True)
class Part:
    """A block graph with pointers to its inputs, outputs and exported maxima.

    `maxima`: the positions of the inputs that are row maxima of another kernel. `skipped`: which iterations have no effect,
    with the pointer to the bounds of the others. `ready`: the positions of the inputs that no kernel of the program writes.
    """

    graph: Graph
    inputs: Sequence[Pointer]
    outputs: Sequence[Pointer]
    schedule: Schedule
    exported_maxima: Sequence[tuple[ExportedMaximum, Pointer]] = ()
    maxima: frozenset[int] = NO_VALUES
    skipped: tuple[SkippedIterations, Pointer] | None = None
    ready: frozenset[int] = NO_VALUES

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """Pointers to inputs and the indices of their rows, bounds of the loop, outputs and exported maxima."""
        return (*with_indices(self.inputs), *self.bounds, *self.outputs, *self.extras)

    @property
    def order(self) -> tuple[int, ...]:
        """The grid dims as they are launched, the fastest one first."""
        return grid_order(self.graph, self.inputs, self.outputs, self.uneven)

    @property
    def uneven(self) -> tuple[int, ...]:
        """The grid dims with which the length of the loop varies."""
        return () if self.skipped is None else self.skipped[0].grid_dims

    @property
    def bounds(self) -> tuple[Pointer, ...]:
        """The pointer to the bounds of the loop, if there is one."""
        return () if self.skipped is None else (self.skipped[1],)

    @property
    def extras(self) -> tuple[Pointer, ...]:
        """Pointers to exported maxima."""
        return tuple(pointer for _, pointer in self.exported_maxima)


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """The source of a kernel, the names of its pointer arguments, and of the sizes that follow them.

    `sized_tiles`: the masked tiles that sizes may fill; with some, the last argument is a constant (`kernel_binaries`).
    `addresses_gain`: rows are aligned at sizes that are multiples of 16 only.
    """

    name: str
    source: str
    arguments: tuple[str, ...]
    sizes: tuple[str, ...]
    helpers: frozenset[str]
    sized_tiles: tuple[SizedTiles, ...] = ()
    addresses_gain: bool = False


def with_indices(pointers: Iterable[Pointer]) -> Iterator[Pointer]:
    """The pointers, each with that to the indices of its rows, if it is gathered."""
    for pointer in pointers:
        yield pointer
        if pointer.rows is not None:
            yield pointer.rows.index


def emit_block(name: str, part: Part, sizes: Sequence[str] = ()) -> BlockKernel:
    """The kernel of a block graph; `sizes` are names that it may take as arguments.

    Raises UnsupportedError: a tile beyond what Triton can hold.
    """
    wide = any(highest_offset(pointer) > LARGEST_OFFSET for pointer in part.pointers)
    writer = _written(part, wide, sizes)
    arguments, lines = tuple(dict.fromkeys(_arguments(part))), _assemble(writer, part)
    taken = tuple(size for size in sizes if any(re.search(rf"\b{size}\b", line) for line in lines))
    sized_tiles = tuple(sorted(writer.masked))
    constant = [f"{FULL}: tl.{CONSTANT}"] if sized_tiles else []
    gain = _addresses_gain(part)
    head = [_decorator(taken, gain), f"def {name}({', '.join([*arguments, *taken, *constant])}):"]
    source, helpers = "\n".join([*head, *indented(lines)]) + "\n", frozenset(writer.helpers)
    return BlockKernel(name, source, arguments, taken, helpers, sized_tiles, gain)


def _addresses_gain(part: Part) -> bool:
    """Whether rows begin at multiples of 16 bytes at some sizes only."""
    moves = [stride * pointer.dtype.itemsize for pointer in part.pointers for stride in (*pointer.strides, pointer.offset)]
    return any(divisor(move) % ALIGNMENT for move in moves if isinstance(move, SizeExpression))


def _decorator(sizes: Sequence[str], addresses_gain: bool) -> str:
    """Triton's, which compiles a kernel again where a size is 1 or a multiple of 16; not so where no address gains from it."""
    if not sizes or addresses_gain:
        return "@triton.jit"
    return f"@triton.jit(do_not_specialize=[{', '.join(map(repr, sizes))}])".replace("'", '"')


def _arguments(part: Part) -> list[str]:
    """Inputs that are loaded, bounds of the loop, outputs, exported maxima."""
    graph = prepared(part.graph)
    needed = {operand for item in graph.nodes for operand in item.operands}
    used = [pointer for value, pointer in zip(graph.input_values, part.inputs, strict=True) if value in needed]
    return [pointer.name for pointer in (*with_indices(used), *part.bounds, *part.outputs, *part.extras)]


def _written(part: Part, wide: bool, sizes: Sequence[str]) -> Writer:
    """The body of a part."""
    graph = prepared(part.graph)
    exported = frozenset(position for export, _ in part.exported_maxima for position in export.degrees)
    names = {pointer.name for pointer in part.pointers} | _RESERVED | helper_names() | {*sizes}
    judged = judged_exponentials(graph, exported, part.maxima) if part.schedule.safe else {}
    safe = {value: shift for value, shift in judged.items() if isinstance(shift, SafeExponential)}
    plain = {value: why for value, why in judged.items() if isinstance(why, str)}
    masks = frozenset(graph.input_values[position] for position in (part.skipped[0].masks if part.skipped else ()))
    writer = Writer(graph, padding(graph), safe, plain, wide, part.schedule, names, row=shared_row(graph), masks=masks)
    _write_body(writer, part)
    for export, pointer in part.exported_maxima:
        _store(writer, row_maximum_tile(writer, export), export.omap, pointer)
    return writer


def _assemble(writer: Writer, part: Part) -> list[str]:
    loop = loop_lines(writer, part.skipped)  # first: it needs coordinates
    offset = ".to(tl.int64)" if writer.wide else ""
    lines = [f"r{extent} = {_range(writer, extent)}{offset}" for extent in sorted(writer.ranges)]
    lines += coordinates(writer.graph.grid, part.order, writer.grid_used, writer.wide, backwards=part.uneven)
    if writer.schedule.dependent_launch:
        lines += [*writer.early_loads, *WAITING]
    lines += [*writer.ordered_loads(), *writer.lines[Phase.PROLOGUE]]
    return [*lines, *loop, *writer.late_loads, *writer.lines[Phase.EPILOGUE]]


def _range(writer: Writer, extent: int) -> str:
    """The indices of a dim; of a row that a cluster holds in parts, a part in each row of a tile."""
    if writer.row is None or not writer.row.in_parts:
        return f"tl.arange(0, {extent})"
    cluster, part = writer.row.cluster, extent // writer.row.cluster
    indices = f"tl.arange(0, {cluster})[:, None] * {part} + tl.arange(0, {part})[None, :]"
    return f"({indices})" if writer.wide else indices


def _write_body(writer: Writer, part: Part) -> None:
    graph = writer.graph
    consumers = [[graph.nodes[place] for place in places] for places in graph.readers]
    loads, stores = iter(enumerate(part.inputs)), enumerate(part.outputs)
    fused: dict[int, DotPlan] = {}
    viewed, fields = viewed_loads(graph), fields_of_bytes(graph, writer.padded)
    inside = frozenset[int]().union(*(it.inner for it in fields.values()))
    writer.halves, alone = in_halves(graph, fields), places_alone(graph, fields)
    at_once = {value for steps in viewed.values() for _, value in steps}
    chosen = {value for value, pointer in zip(graph.input_values, part.inputs, strict=True) if pointer.rows is not None}
    terms = joined_terms(graph, {value: steps for value, steps in viewed.items() if value not in chosen})
    for item, values in graph.numbered():
        if item.op == "output":
            position, pointer = next(stores)
            [stored] = item.operands
            _store(writer, writer.tiles[stored], item["omap"], pointer, stored)
            continue
        [value] = values
        match item.kind:
            case Kind.BOUNDARY:
                (position, pointer), steps = next(loads), viewed.get(value, [])
                if value in alone and not steps and pointer.rows is None:
                    written_places(writer, value, pointer, alone[value])
                elif consumers[value]:
                    ready = position in part.ready
                    last = steps[-1][1] if steps else value
                    _write_load(writer, item, value, pointer, ready, steps, consumers[last], terms.get(last))
            case _ if value in inside:
                continue
            case _ if value in fields:
                _write_fields(writer, fields[value], value)
            case Kind.ELEMENTWISE:
                _write_elementwise(writer, item, value)
            case Kind.REDUCTION:
                write_reduction(writer, item, value)
            case Kind.REARRANGEMENT:
                if value not in at_once:
                    write_rearrangement(writer, item, value)
            case Kind.MATMUL if accumulates(graph, value, consumers[value]):
                fused[value] = plan_dot(writer, item, value)
            case Kind.MATMUL:
                write_product(writer, item, value)
            case Kind.ACCUMULATOR:
                write_accumulator(writer, item, value, fused.get(item.operands[0]))
            case kind:
                raise AssertionError(f"{item.op} ({kind}) is not an op of a flattened, expanded block graph")


def _write_load(
    writer: Writer,
    item: Node,
    value: int,
    pointer: Pointer,
    ready: bool,
    moved: Sequence[Step],
    consumers: Sequence[Node],
    terms: JoinedTerms | None = None,
) -> None:
    """Load a tile; in the form that it has after the steps `moved`, if there are some. The consumers are those of that form.

    A dependent kernel loads tiles that are `ready` before it waits for the kernel before it, and converts them afterwards.
    """
    graph = writer.graph
    dtype, stored = graph.types[value].dtype, pointer.dtype
    movable = graph.phases[value] is Phase.PROLOGUE and pointer.rows is None  # chosen rows wait for their indices
    early = movable and ready and writer.schedule.dependent_launch
    late = not early and not moved and pointer.rows is None and value in late_loads(graph)
    hoisted = not (early or late) and movable and writer.schedule.hoist_loads
    name = writer.new_name(pointer.tensor)
    zero = frozenset(range(len(pointer.shape))) if dtype.has_zero else frozenset[int]()
    tile = writer.new_tile(value, name, dtype, zero, finite=True)
    ranged = [(dim, target) for dim, target in enumerate(item["imap"]) if target != REPLICATED]
    splits = [
        [(grid_dim, graph.grid[grid_dim]) for grid_dim, target in ranged if target == dim] for dim in range(len(tile.shape))
    ]
    if graph.phases[value] is Phase.LOOP:
        splits[item["fmap"]].append((REPLICATED, graph.loop))
    steps = [parts(split, extent) for split, extent in zip(splits, tile.shape, strict=True)]
    loaded, where_moved = tile, places(writer, moved, terms) if moved else NO_PLACES
    if moved:
        value = moved[-1][1]
        whole = frozenset(range(len(graph.types[value].shape)))
        tile = writer.new_tile(value, name, dtype, whole if dtype.has_zero else frozenset(), finite=True)
    if pointer.rows is not None:
        row = _write_rows(writer, pointer.rows, steps, loaded, tile, where_moved, graph.phases[value])
        pointer = replace(pointer, name=f"{pointer.name} + {row}")
    where = address(writer, pointer, steps, loaded, places=where_moved)
    mask = f", mask={inside}, other=0.0" if (inside := _inside(writer, tile, terms)) else ""
    load = f"tl.load({where}{mask}{', volatile=True' if hoisted else ''})"
    if early:
        writer.early_loads.append(f"{name} = {load}")
        load = name
    if not dtype.has_zero or (dtype is not DType.bool and any(reads_stored(graph, consumer, value) for consumer in consumers)):
        load = cast(load, stored, dtype)
    else:
        load = cast(load, stored, writer.compute_dtype(value))
        writer.new_tile(value, name, writer.compute_dtype(value), tile.zero, finite=True)
    if hoisted:
        writer.loads.append((name, f"{name} = {load}"))
    elif late:
        writer.late_loads.append(f"{name} = {load}")
    elif load != name:
        writer.say(graph.phases[value], f"{name} = {load}", "" if value in writer.masks else None)
    if needs_copy(graph, value, writer.schedule.swapped):
        writer.say(
            Phase.LOOP,
            f"{name} = tl.where(i >= 0, {name}, 0.0)  # always so: tl.dot reads a copy (docs/explanation/kernels.md)",
        )


def _inside(writer: Writer, tile: Tile, terms: JoinedTerms | None) -> str:
    """The mask of the elements of a loaded tile that are no padding; "" if all are."""
    if terms is None:
        return condition(writer, tile, sorted(tile.ragged))
    index = picked(writer.range(tile.padded[terms.dim]), [other == terms.dim for other in tile.dims])
    others = condition(writer, tile, sorted(tile.ragged - {terms.dim}))
    return " & ".join([*terms.inside(index), *([f"({others})"] if others else [])])


def _write_rows(
    writer: Writer,
    rows: Rows,
    steps: Sequence[list[tuple[int, int]]],
    loaded: Tile,
    tile: Tile,
    moved: Mapping[int, str],
    phase: Phase,
) -> str:
    """Load the indices of the rows of a gathered tile; gives the term of its address. An index counts from the end below 0.

    An index beyond the rows, for which torch raises, reads the first or the last one: no address is outside the tensor.
    """
    along = [dim for dim, stride in enumerate(rows.index.strides) if stride]
    if all(grid_dim != REPLICATED for dim in along for grid_dim, _ in steps[dim]):
        phase = Phase.PROLOGUE
    ragged = sorted(tile.ragged if moved else tile.ragged.intersection(along))
    mask = f", mask={condition(writer, tile, ragged)}, other=0" if ragged else ""
    where = address(writer, rows.index, steps, loaded, places=moved, thin=True)
    name = writer.new_name(f"{tile.name}_row")
    writer.say(phase, f"{name} = tl.load({where}{mask}).to(tl.int64)")
    writer.say(
        phase, f"{name} = tl.minimum(tl.maximum(tl.where({name} < 0, {name} + {rows.extent}, {name}), 0), {rows.extent + -1})"
    )
    return times(name, rows.step)


def _store(writer: Writer, tile: Tile, omap: Sequence[int], pointer: Pointer, value: int | None = None) -> None:
    """Store a tile, that of a `value` of the graph or another. Gaps behind rows are written, too: in whole vectors."""
    graph, row = writer.graph, writer.row
    if row is not None and value is not None and value in row.totals:
        tile = replace(tile, shape=graph.types[value].shape, padded=graph.types[value].shape)
    new = [grid_dim for grid_dim, target in enumerate(omap) if target == NEW_DIM]
    splits = [parts([(grid_dim, graph.grid[grid_dim])], 1) for grid_dim in new]
    for dim, extent in enumerate(tile.shape):
        split = [(grid_dim, graph.grid[grid_dim]) for grid_dim, target in enumerate(omap) if target == dim]
        splits.append(parts(split, extent))
    where = address(writer, pointer, splits, tile, lead=len(new))
    if row is not None and not tile.dims:  # each thread block stores what all have
        where = f"{where} + tl.zeros({row.variable_of_total}, tl.int32)"
    if pointer.gap and value is not None:
        tile = _with_gap(writer, tile, value, pointer)
    mask = f", mask={condition(writer, tile, sorted(tile.ragged))}" if tile.ragged else ""
    store = f"tl.store({where}, {cast(tile.name, tile.dtype, pointer.dtype)}{mask})"
    alike = [dim for dim, target in enumerate(omap) if target == REPLICATED and graph.grid[dim] > 1]
    if alike:  # every block along these dims has the same value; the first one stores it
        writer.grid_used.update(alike)
        first = " and ".join(f"{GRID_NAMES[dim]} == 0" for dim in alike)
        writer.say(Phase.EPILOGUE, f"if {first}:")
        writer.say(Phase.EPILOGUE, f"    {store}")
    else:
        writer.say(Phase.EPILOGUE, store)


def _with_gap(writer: Writer, tile: Tile, value: int, pointer: Pointer) -> Tile:
    """The tile with the gap behind each row: where a mask ends within a vector, each element of it is a store of its own."""
    (*rows, columns), last = tile.shape, len(tile.shape) - 1
    if last in tile.ends:
        return replace(tile, ends=dict(tile.ends) | {last: writer.ends(value, pointer.gap)[last]})
    if columns == pointer.shape[-1]:
        return replace(tile, shape=(*rows, min(columns + pointer.gap, tile.padded[-1])))
    return tile


def _write_elementwise(writer: Writer, item: Node, value: int) -> None:
    graph, row = writer.graph, ELEMENTWISE[item.op]
    operands = [writer.tiles[i] for i in item.operands]
    dtype, shape, phase = writer.compute_dtype(value), graph.types[value].shape, graph.phases[value]
    if value in writer.safe:
        write_safe_exponential(writer, item, value, writer.safe[value])
        return
    if (masked := _masked_exponential(writer, item, value)) is not None:
        tile = writer.tiles[masked]
        writer.new_tile(value, tile.name, tile.dtype, tile.zero, tile.finite)
        return
    if item.op in CASTS:
        _write_cast(writer, item, value, operands[0])
        return
    if item.op == "log":
        write_logarithm(writer, item, value)
        return
    wide = writer.compute_dtype(item.operands[0]) if to_a_type(item.op) else dtype
    texts = [aligned(cast(tile.name, tile.dtype, wide), tile, shape) for tile in operands]
    writer.helpers.update(name for name, _ in row.helpers)
    every, some = zero_dims(operands, len(shape))
    finite = all(tile.finite for tile in operands)
    zero = every if row.keeps_zero(item.mapping) else frozenset()
    if item.op in PRODUCTS and finite:  # 0 · y is 0 where y is finite
        zero = some
    if item.op == "where":  # 0 chooses the second side
        zero |= zero_dims([operands[0], operands[2]], len(shape))[0]
    if is_zero(item):
        zero = frozenset(range(len(shape)))
    missing = ""
    for position, operand in enumerate(item.operands):
        if operand in writer.offsets and item.op in PRODUCTS:  # one multiplication and addition instead of two instructions
            missing = f" + {texts[1 - position]} * {writer.offsets[operand]}"
        elif operand in writer.offsets:  # to the other operand, which is close to it
            offset, other = aligned(f"({writer.offsets[operand]})", operands[position], shape), 1 - position
            texts[other] = f"({texts[other]} {'+' if TERMS[item.op] == (1, 1) else '-'} {offset})"
    written = by_numbers_of_last_dim(writer, item, value, wide) or row.triton(texts, triton_attributes(item, wide)) + missing
    if item.op in QUOTIENTS and writer.schedule.use_reciprocal and prod(operands[1].physical) < prod(writer.padded[value]):
        reciprocal = f"(1.0 / {cast(operands[1].name, operands[1].dtype, dtype)})"
        written = f"{texts[0]} * {aligned(reciprocal, operands[1], shape)}"
    if item.op == "shift" and is_byte_sum(operands[0].dtype, dtype, item["offset"]):  # one sum instead of two
        written = byte_cast(operands[0].name, operands[0].dtype, dtype, item["offset"])
    name = writer.new_name(row.noun)
    writer.new_tile(value, name, dtype, zero, finite and row.bounded)
    why = f"  # not shifted by its maximum: {writer.plain[value]}" if value in writer.plain else ""
    chooses_all = item.op == "where" and item.operands[0] in writer.masks and operands[1].padded == writer.padded[value]
    writer.say(phase, f"{name} = {written}{why}", f"{name} = {texts[1]}" if chooses_all else None)


def _write_fields(writer: Writer, fields: Fields, value: int) -> None:
    text, offset, dtype = written_fields(writer, fields, value)
    name = writer.new_name("number")
    writer.new_tile(value, name, dtype, finite=True)
    if is_scaled_alone(writer.graph, value, dtype):
        writer.offsets[value] = str(offset)
    else:
        text = f"{text} + {offset}"
    writer.say(writer.graph.phases[value], f"{name} = {text}")


def _masked_exponential(writer: Writer, item: Node, value: int) -> int | None:
    """The exponential that a mask of bool selects or multiplies, if it is 0 already where the mask is: it is the result."""
    types = writer.graph.types
    pairs: list[tuple[int, ...]] = []
    if item.op in PRODUCTS:
        pairs = [item.operands, item.operands[::-1]]
    elif item.op == "where" and any(is_zero(it) for it, values in writer.graph.numbered() if item.operands[2] in values):
        pairs = [item.operands[:2]]
    for mask, operand in pairs:
        shift = writer.safe.get(operand)
        if shift is None or types[mask].dtype is not DType.bool or types[operand].shape != types[value].shape:
            continue
        further = len(types[value].shape) - len(types[mask].shape)
        if Factor(mask, tuple((dim, dim + further) for dim in real_dims(types[mask].shape))) in shift.factors:
            return operand
    return None


def _write_cast(writer: Writer, item: Node, value: int, tile: Tile) -> None:
    """A value rounded to its new type, in the type of arithmetic; a wider type keeps the value."""
    graph, dtype, name = writer.graph, writer.compute_dtype(value), tile.name
    wanted = graph.types[value].dtype
    if is_widening(graph, item):  # its readers convert it, if they must
        writer.new_tile(value, name, tile.dtype, tile.zero, tile.finite)
        return
    text = cast(tile.name, tile.dtype, dtype)
    if wanted is not dtype and wanted is not graph.types[item.operands[0]].dtype:
        text = cast(cast(text, dtype, wanted), wanted, dtype)
    if text != tile.name:
        name = writer.new_name(ELEMENTWISE[item.op].noun)
        writer.say(graph.phases[value], f"{name} = {text}")
    writer.new_tile(value, name, dtype, tile.zero, tile.finite and dtype.largest <= wanted.largest)
