"""One block graph as one Triton kernel: loads before the loop or in it, tile ops, accumulators, stores.

Every value becomes one variable, named after what it is. Padding is made neutral right where it would be reduced, and only
where it is not already known to be zero. Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.emit_address import (
    GRID_NAMES,
    LARGEST_OFFSET,
    Pointer,
    address,
    coordinates,
    highest_offset,
    is_persistent,
    parts,
)
from mirage_eg.backends.emit_descriptors import describable, descriptor_load
from mirage_eg.backends.emit_matmul import DotPlan, plan_dot, write_product
from mirage_eg.backends.emit_ops import ELEMENTWISE
from mirage_eg.backends.emit_partials import Export, peak_tile
from mirage_eg.backends.emit_rearrange import write_rearrangement
from mirage_eg.backends.emit_reduce import write_accumulator, write_reduction, write_safe_exponential
from mirage_eg.backends.emit_safe import safe_exponentials
from mirage_eg.backends.emit_tiles import MatmulForm, Tile, flatten, matmul_form, padding, zero_dims
from mirage_eg.backends.emit_writer import Choices, Writer, aligned, cast, condition
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import NEW_DIM, REPLICATED, Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind

_PLAIN = Choices()


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """A kernel as text; `used` and the outputs in order are its arguments. With `descriptors` it needs scratch memory."""

    name: str
    source: str
    used: tuple[int, ...]  # which inputs of the block graph are loaded at all
    helpers: frozenset[str]
    descriptors: bool


def emit_block(
    graph: Graph,
    name: str,
    inputs: Sequence[Pointer],
    outputs: Sequence[Pointer],
    choices: Choices = _PLAIN,
    exports: Sequence[tuple[Export, Pointer]] = (),
) -> BlockKernel:
    """The kernel of a block graph whose inputs and outputs lie behind the given pointers; so do the maxima that it exports.

    Raises:
        UnsupportedError: a tile beyond what Triton can hold.
    """
    graph = flatten(expand(graph))
    needed = {operand for item in graph.nodes for operand in item.operands}
    used = tuple(
        place for place, value in enumerate(v[0] for item, v in graph.numbered() if item.op == "input") if value in needed
    )
    pointers = (*inputs, *outputs, *(pointer for _, pointer in exports))
    exported = frozenset(position for export, _ in exports for position in export.degrees)
    writer = Writer(
        graph=graph,
        padded=padding(graph),
        safe=safe_exponentials(graph, exported) if choices.safe else {},
        wide=any(highest_offset(pointer) > LARGEST_OFFSET for pointer in pointers),
        choices=choices,
        names={
            "triton",
            "tl",
            "i",
            "step",
            "block",
            "range",
            "float",
            "tanh",
            *GRID_NAMES,
            *(pointer.name for pointer in pointers),
        },
    )
    _write_body(writer, inputs, outputs)
    for export, pointer in exports:
        _store(writer, peak_tile(writer, export), export.omap, pointer)
    arguments = dict.fromkeys(pointer.name for pointer in (*(inputs[i] for i in used), *outputs, *(p for _, p in exports)))
    source = "\n".join(["@triton.jit", f"def {name}({', '.join(arguments)}):", *_indent(_assemble(writer))]) + "\n"
    return BlockKernel(name, source, used, frozenset(writer.helpers), bool(writer.head))


def _assemble(writer: Writer) -> list[str]:
    graph = writer.graph
    offset = ".to(tl.int64)" if writer.wide else ""
    ranges = [f"r{extent} = tl.arange(0, {extent}){offset}" for extent in sorted(writer.ranges)]
    block = [*coordinates(graph.grid, writer.grid_used, writer.wide, writer.choices), *writer.lines[Phase.PROLOGUE]]
    if body := writer.lines[Phase.LOOP]:
        counter = "step" if writer.wide else "i"
        widen = ["i = tl.cast(step, tl.int64)"] if writer.wide else []
        block += [f"for {counter} in range({graph.loop}):", *_indent([*widen, *body])]
    block += writer.lines[Phase.EPILOGUE]
    if is_persistent(graph.grid, writer.choices):
        blocks = f"range(tl.program_id(0), {prod(graph.grid)}, {writer.choices.programs})"
        block = [f"for block in {blocks}:", *_indent(block)]
    return [*ranges, *writer.head, *block]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _write_body(writer: Writer, inputs: Sequence[Pointer], outputs: Sequence[Pointer]) -> None:
    graph = writer.graph
    consumers: dict[int, list[Node]] = {value: [] for value in range(len(graph.types))}
    for item in graph.nodes:
        for operand in item.operands:
            consumers[operand].append(item)
    loads, stores = iter(inputs), iter(outputs)
    fused: dict[int, DotPlan] = {}
    for item, values in graph.numbered():
        if item.op == "output":
            _store(writer, writer.tiles[item.operands[0]], item["omap"], next(stores))
            continue
        [value] = values
        match OPS[item.op].kind:
            case Kind.BOUNDARY:
                pointer = next(loads)
                if consumers[value]:
                    _write_load(writer, item, value, pointer, consumers[value])
            case Kind.ELEMENTWISE:
                _write_elementwise(writer, item, value)
            case Kind.REDUCTION:
                write_reduction(writer, item, value)
            case Kind.REARRANGEMENT:
                write_rearrangement(writer, item, value)
            case Kind.MATMUL if _accumulates(writer, value, consumers[value]):
                fused[value] = plan_dot(writer, item, value)
            case Kind.MATMUL:
                write_product(writer, item, value)
            case Kind.ACCUMULATOR:
                write_accumulator(writer, item, value, fused.get(item.operands[0]))
            case kind:
                raise AssertionError(f"{item.op} ({kind}) is not an op of a flattened, expanded block graph")


def _accumulates(writer: Writer, value: int, consumers: Sequence[Node]) -> bool:
    """Is this product only summed over the loop, so that tl.dot can add to the accumulator itself?"""
    graph = writer.graph
    if graph.phases[value] is not Phase.LOOP or len(consumers) != 1:
        return False
    [consumer] = consumers
    if consumer.op not in ("accum_sum", "accum_mean") or consumer.get("dim") is not None:
        return False
    left, right = next(item.operands for item, values in graph.numbered() if value in values)
    return matmul_form(graph.types[left].shape, graph.types[right].shape) is MatmulForm.DOT


def _write_load(writer: Writer, item: Node, value: int, pointer: Pointer, consumers: Sequence[Node]) -> None:
    graph = writer.graph
    dtype = graph.types[value].dtype
    name = writer.new_name(pointer.tensor)
    tile = writer.new_tile(value, name, dtype, frozenset(range(len(pointer.shape))), finite=True)
    ranged = [(dim, target) for dim, target in enumerate(item["imap"]) if target != REPLICATED]
    splits = [
        [(grid_dim, graph.grid[grid_dim]) for grid_dim, target in ranged if target == dim] for dim in range(len(tile.shape))
    ]
    if graph.phases[value] is Phase.LOOP:
        splits[item["fmap"]].append((REPLICATED, graph.loop))
    steps = [parts(split, extent) for split, extent in zip(splits, tile.shape, strict=True)]
    if graph.phases[value] is Phase.LOOP and describable(writer, pointer, tile):
        load = descriptor_load(writer, pointer, steps, tile)
    else:
        where = address(writer, pointer, steps, tile)
        mask = f", mask={condition(writer, tile, sorted(tile.ragged))}, other=0.0" if tile.ragged else ""
        load = f"tl.load({where}{mask})"
    if not any(_reads_stored(graph, consumer) for consumer in consumers):
        load = cast(load, dtype, writer.compute_dtype(value))
        writer.new_tile(value, name, writer.compute_dtype(value), tile.zero, finite=True)
    writer.say(graph.phases[value], f"{name} = {load}")


def _reads_stored(graph: Graph, consumer: Node) -> bool:
    """Does this op take its operand in the element type of memory?"""
    match OPS[consumer.op].kind:
        case Kind.MATMUL:
            left, right = consumer.operands
            return matmul_form(graph.types[left].shape, graph.types[right].shape) is MatmulForm.DOT
        case Kind.REARRANGEMENT | Kind.BOUNDARY:
            return True
        case _:
            return False


def _store(writer: Writer, tile: Tile, omap: Sequence[int], pointer: Pointer) -> None:
    graph = writer.graph
    new = [grid_dim for grid_dim, target in enumerate(omap) if target == NEW_DIM]
    splits = [parts([(grid_dim, graph.grid[grid_dim])], 1) for grid_dim in new]
    for dim, extent in enumerate(tile.shape):
        split = [(grid_dim, graph.grid[grid_dim]) for grid_dim, target in enumerate(omap) if target == dim]
        splits.append(parts(split, extent))
    where = address(writer, pointer, splits, tile, lead=len(new))
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


def _write_elementwise(writer: Writer, item: Node, value: int) -> None:
    graph, row = writer.graph, ELEMENTWISE[item.op]
    operands = [writer.tiles[i] for i in item.operands]
    dtype, shape, phase = writer.compute_dtype(value), graph.types[value].shape, graph.phases[value]
    if value in writer.safe:
        write_safe_exponential(writer, item, value, writer.safe[value])
        return
    texts = [aligned(cast(tile.name, tile.dtype, dtype), tile, shape) for tile in operands]
    if row.helper:
        writer.helpers.add(row.helper)
    every, some = zero_dims(operands, len(shape))
    finite = all(tile.finite for tile in operands)
    zero = every if row.keeps_zero(item.mapping) else frozenset()
    if item.op == "mul" and finite:  # 0 · y is 0 where y is finite
        zero = some
    name = writer.new_name(row.noun)
    writer.new_tile(value, name, dtype, zero, finite and row.bounded)
    writer.say(phase, f"{name} = {row.triton(texts, item.mapping)}")


__all__ = ["BlockKernel", "emit_block"]
