"""One block graph as one Triton kernel: loads before the loop or in it, tile ops, accumulators, stores.

Every value becomes one variable, named after what it is. Padding is made neutral right where it would be reduced, and only
where it is not already known to be zero. Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_eg.backends.emit_address import GRID_NAMES, LARGEST_OFFSET, Pointer, address, coordinates, highest_offset, parts
from mirage_eg.backends.emit_matmul import DotPlan, plan_dot, write_product
from mirage_eg.backends.emit_ops import ELEMENTWISE, NOUNS
from mirage_eg.backends.emit_rearrange import write_columns, write_rearrangement
from mirage_eg.backends.emit_safe import SafeExponential, safe_exponentials
from mirage_eg.backends.emit_tiles import MatmulForm, Tile, flatten, matmul_form, padding, zero_dims
from mirage_eg.backends.emit_writer import Writer, aligned, cast, condition, masked, picked
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import NEW_DIM, REPLICATED, Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

_LATE = 2048  # an accumulator with a reduction keeps tiles of at most so many elements whole and reduces once, behind the loop
_MINUS_INFINITY = 'float("-inf")'
_LOWEST = "-1.0e38"  # below every score, and still finite: the difference of two is 0, not NaN


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """A kernel as text; `used` and the outputs in order are its arguments."""

    name: str
    source: str
    used: tuple[int, ...]  # which inputs of the block graph are loaded at all
    helpers: frozenset[str]


def emit_block(
    graph: Graph, name: str, inputs: Sequence[Pointer], outputs: Sequence[Pointer], *, safe: bool = True
) -> BlockKernel:
    """The kernel of a block graph whose inputs and outputs lie behind the given pointers.

    Raises:
        UnsupportedError: a tile beyond what Triton can hold.
    """
    graph = flatten(expand(graph))
    needed = {operand for item in graph.nodes for operand in item.operands}
    used = tuple(
        place for place, value in enumerate(v[0] for item, v in graph.numbered() if item.op == "input") if value in needed
    )
    writer = Writer(
        graph=graph,
        padded=padding(graph),
        safe=safe_exponentials(graph) if safe else {},
        wide=any(highest_offset(pointer) > LARGEST_OFFSET for pointer in (*inputs, *outputs)),
        names={
            "triton",
            "tl",
            "i",
            "step",
            "range",
            "float",
            "tanh",
            *GRID_NAMES,
            *(pointer.name for pointer in (*inputs, *outputs)),
        },
    )
    _write_body(writer, inputs, outputs)
    arguments = dict.fromkeys(pointer.name for pointer in (*(inputs[i] for i in used), *outputs))
    source = "\n".join(["@triton.jit", f"def {name}({', '.join(arguments)}):", *_indent(_assemble(writer))]) + "\n"
    return BlockKernel(name, source, used, frozenset(writer.helpers))


def _assemble(writer: Writer) -> list[str]:
    graph = writer.graph
    lines = coordinates(graph.grid, writer.grid_used, writer.wide)
    offset = ".to(tl.int64)" if writer.wide else ""
    lines += [f"r{extent} = tl.arange(0, {extent}){offset}" for extent in sorted(writer.ranges)]
    lines += writer.lines[Phase.PROLOGUE]
    if body := writer.lines[Phase.LOOP]:
        counter = "step" if writer.wide else "i"
        widen = ["i = tl.cast(step, tl.int64)"] if writer.wide else []
        lines += [f"for {counter} in range({graph.loop}):", *_indent([*widen, *body])]
    return [*lines, *writer.lines[Phase.EPILOGUE], *writer.stores]


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
            _write_store(writer, item, next(stores))
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
                _write_reduction(writer, item, value)
            case Kind.REARRANGEMENT:
                write_rearrangement(writer, item, value)
            case Kind.MATMUL if _accumulates(writer, value, consumers[value]):
                fused[value] = plan_dot(writer, item, value)
            case Kind.MATMUL:
                write_product(writer, item, value)
            case Kind.ACCUMULATOR:
                _write_accumulator(writer, item, value, fused.get(item.operands[0]))
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
    where = address(writer, pointer, [parts(split, extent) for split, extent in zip(splits, tile.shape, strict=True)], tile)
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


def _write_store(writer: Writer, item: Node, pointer: Pointer) -> None:
    graph = writer.graph
    tile = writer.tiles[item.operands[0]]
    new = [grid_dim for grid_dim, target in enumerate(item["omap"]) if target == NEW_DIM]
    splits = [parts([(grid_dim, graph.grid[grid_dim])], 1) for grid_dim in new]
    for dim, extent in enumerate(tile.shape):
        split = [(grid_dim, graph.grid[grid_dim]) for grid_dim, target in enumerate(item["omap"]) if target == dim]
        splits.append(parts(split, extent))
    where = address(writer, pointer, splits, tile, lead=len(new))
    mask = f", mask={condition(writer, tile, sorted(tile.ragged))}" if tile.ragged else ""
    store = f"tl.store({where}, {cast(tile.name, tile.dtype, pointer.dtype)}{mask})"
    alike = [dim for dim, target in enumerate(item["omap"]) if target == REPLICATED and graph.grid[dim] > 1]
    if alike:  # every block along these dims has the same value; the first one stores it
        writer.grid_used.update(alike)
        first = " and ".join(f"{GRID_NAMES[dim]} == 0" for dim in alike)
        writer.stores += [f"if {first}:", f"    {store}"]
    else:
        writer.stores.append(store)


def _write_elementwise(writer: Writer, item: Node, value: int) -> None:
    graph, row = writer.graph, ELEMENTWISE[item.op]
    operands = [writer.tiles[i] for i in item.operands]
    dtype, shape, phase = writer.compute_dtype(value), graph.types[value].shape, graph.phases[value]
    if value in writer.safe:
        _write_safe_exponential(writer, item, value, writer.safe[value])
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


def _write_safe_exponential(writer: Writer, item: Node, value: int, shift: SafeExponential) -> None:
    """exp(x − peak) with the maximum of x over the dims in which the ratio reduces; a running one in the loop."""
    [x] = (writer.tiles[i] for i in item.operands)
    phase, dtype = writer.graph.phases[value], writer.compute_dtype(value)
    peak = writer.new_name("peak")
    writer.safe[value] = shift = replace(shift, rescale=writer.new_name("rescale"))
    scores = cast(x.name, x.dtype, dtype)
    if x.ragged & shift.reduced:
        inside = writer.new_name(f"inside_{x.name}")
        writer.say(phase, f"{inside} = {masked(writer, scores, x, sorted(shift.reduced), _MINUS_INFINITY)}")
        scores = inside
    highest = scores
    for dim in sorted(shift.reduced & set(x.dims), reverse=True):
        highest = f"tl.max({highest}, {x.axis[dim]})"
    kept = [dim in shift.kept for dim in x.dims]
    if phase is Phase.LOOP:
        shape = tuple(x.padded[dim] for dim in x.dims if dim in shift.kept)
        writer.say(Phase.PROLOGUE, f"{peak} = tl.full({shape}, {_LOWEST}, tl.{dtype})")
        higher = writer.new_name(f"higher_{peak}")
        writer.say(phase, f"{higher} = tl.maximum({peak}, {highest})")
        writer.say(phase, f"{shift.rescale} = tl.exp({peak} - {higher})")
        writer.say(phase, f"{peak} = {higher}")
    else:
        writer.say(phase, f"{peak} = tl.maximum({highest}, {_LOWEST})")
    name = writer.new_name("exponential")
    zero = frozenset(shift.reduced) if x.finite else frozenset[int]()
    writer.new_tile(value, name, dtype, zero, finite=False)
    writer.say(phase, f"{name} = tl.exp({scores} - {picked(peak, kept)})")


def reduce_text(writer: Writer, kind: str, expression: str, tile: Tile, dim: int) -> str:
    """A reduction of one dim whose padding is made neutral first."""
    fill = _MINUS_INFINITY if kind == "max" else "0.0"
    if kind == "max" or dim not in tile.zero:
        expression = masked(writer, expression, tile, [dim], fill)
    reduced = f"tl.{'max' if kind == 'max' else 'sum'}({expression}, {tile.axis[dim]})"
    return f"{reduced} / {float(tile.shape[dim])}" if kind == "mean" else reduced


def _write_reduction(writer: Writer, item: Node, value: int) -> None:
    [tile] = (writer.tiles[i] for i in item.operands)
    dim, dtype = item["dim"], writer.compute_dtype(value)
    if tile.shape[dim] == 1:
        writer.new_tile(value, tile.name, tile.dtype, tile.zero, tile.finite)
        return
    expression = reduce_text(writer, item.op, cast(tile.name, tile.dtype, dtype), tile, dim)
    name = writer.new_name(NOUNS[item.op])
    writer.new_tile(value, name, dtype, tile.zero - {dim}, tile.finite)
    writer.say(writer.graph.phases[value], f"{name} = {expression}")


def _write_accumulator(writer: Writer, item: Node, value: int, dot: DotPlan | None) -> None:
    graph, operand = writer.graph, item.operands[0]
    kind = {"accum_strided_sum": "sum"}.get(item.op, item.op.removeprefix("accum_"))
    dtype, dim = writer.compute_dtype(value), item.get("dim")
    name = writer.new_name(NOUNS[item.op])
    looped = graph.phases[operand] is Phase.LOOP
    terms = (graph.loop if looped else 1) * (graph.types[operand].shape[dim] if dim is not None else 1)
    count = terms if kind == "mean" else 1
    average = f" / {float(count)}" if count > 1 else ""
    rescale = _rescaling(writer, value)
    if dot is not None:
        dot = dot if not rescale or dot.shape == dot.tile_shape else None
    if dot is not None:
        _open_accumulator(writer, name, dot.shape, kind, dtype)
        start = " * ".join([name, *(factor for factor in rescale)])
        writer.say(Phase.LOOP, f"{name} = {dot.text(start)}")
        writer.new_tile(value, name, dtype, dot.zero, dot.finite)
        if dot.finish("") or average:
            writer.say(Phase.EPILOGUE, f"{name} = {dot.finish(name)}{average}")
        return
    if operand not in writer.tiles:
        write_product(writer, next(step for step, made in graph.numbered() if operand in made), operand)
    tile = writer.tiles[operand]
    term = cast(tile.name, tile.dtype, dtype)
    reduces = dim is not None and tile.shape[dim] > 1
    late = reduces and item.op != "accum_strided_sum" and prod(tile.padded) <= _LATE and looped and not rescale
    zero, finite = tile.zero - ({dim} if reduces else frozenset()), tile.finite
    if item.op == "accum_strided_sum" and reduces:
        term, zero = write_columns(writer, item, value, tile, term), frozenset()
    elif reduces and not late:
        term = reduce_text(writer, "max" if kind == "max" else "sum", term, tile, item["dim"])
    made = writer.new_tile(value, name, dtype, zero, finite)
    if not looped:  # the same term in every iteration
        times = f" * {float(graph.loop)}" if kind == "sum" and graph.loop > 1 else ""
        writer.say(Phase.EPILOGUE, f"{name} = {term}{times}{average}")
        return
    _open_accumulator(writer, name, tile.physical if late else made.physical, kind, dtype)
    kept = " * ".join([name, *rescale])
    if kind == "max":
        writer.say(Phase.LOOP, f"{name} = tl.maximum({kept}, {term})")
    else:
        writer.say(Phase.LOOP, f"{name} = {kept} + {term}" if rescale else f"{name} += {term}")
    if late:
        whole = Tile(name, dtype, tile.shape, tile.padded, tile.zero, tile.finite)
        writer.say(
            Phase.EPILOGUE,
            f"{name} = {reduce_text(writer, 'max' if kind == 'max' else 'sum', name, whole, item['dim'])}{average}",
        )
    elif average:
        writer.say(Phase.EPILOGUE, f"{name} = {name}{average}")


def _open_accumulator(writer: Writer, name: str, shape: Shape, kind: str, dtype: DType) -> None:
    start = _MINUS_INFINITY if kind == "max" else "0.0"
    writer.say(Phase.PROLOGUE, f"{name} = tl.full({shape}, {start}, tl.{dtype})")


def _rescaling(writer: Writer, value: int) -> list[str]:
    """The factors by which an accumulator shrinks when a running maximum rises."""
    shape = writer.graph.types[value].shape
    factors = []
    for exponential, shift in writer.safe.items():
        if writer.graph.phases[exponential] is Phase.LOOP and (degree := shift.degrees.get(value, 0)):
            origins = shift.origins[value]
            have = [origins.get(dim) in shift.kept for dim, extent in enumerate(shape) if extent > 1]
            factors += [picked(shift.rescale, have)] * int(degree)
    return factors


__all__ = ["BlockKernel", "emit_block"]
