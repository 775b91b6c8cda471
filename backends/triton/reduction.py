"""Reductions, accumulators over the loop, and exponentials shifted by a maximum: the ops for which padding is masked.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.triton.cluster_helpers import CLUSTER_MAX, CLUSTER_SUM
from mirage_eg.backends.triton.masked_exp import Factor
from mirage_eg.backends.triton.matmul import DotPlan, write_product
from mirage_eg.backends.triton.op_table import NAN_MAX
from mirage_eg.backends.triton.rearrangement import write_columns
from mirage_eg.backends.triton.safe_exp import SafeExponential
from mirage_eg.backends.triton.tiles import Tile, real_dims
from mirage_eg.backends.triton.warps import WARP
from mirage_eg.backends.triton.writer import Writer, as_float, cast, masked, picked
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, Phase
from mirage_eg.ir.op.elementwise import TERMS
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

_LATE = 32  # elements a thread of a tile that an accumulator with a reduction keeps whole, and reduces once, after the loop
_LONG = 32  # iterations, above which the sum of a float32 accumulator keeps what its additions lose
_INFINITY, _MINUS_INFINITY = 'float("inf")', 'float("-inf")'
_LOG2_E = "1.4426950408889634"
_FAR = "1.0e38"  # a score whose product with log2(e) may overflow; others differ from it by 0 or more than 1e30


def _reduce_text(writer: Writer, kind: str, expression: str, tile: Tile, dim: int) -> str:
    """A reduction of one dim whose padding is masked first."""
    fill = _MINUS_INFINITY if kind == "max" else "0.0"
    if kind == "max" or dim not in tile.zero:
        expression = masked(writer, expression, tile, [dim], fill)
    reduced = _reduced(writer, kind == "max", expression, tile, dim)
    return f"{reduced} / {as_float(tile.shape[dim])}" if kind == "mean" else reduced


def _reduced(writer: Writer, is_max: bool, expression: str, tile: Tile, dim: int) -> str:
    """The sum along a dim, or the maximum: not-a-number if an element is. Each thread block of a cluster has that of all."""
    row, axis = writer.row, tile.axis[dim]
    shared = row is not None and dim == tile.dims[0]
    if row is None or not shared or row.in_parts:
        axis += shared  # the first axis of a row in parts is that of the thread blocks
        expression = f"tl.reduce({expression}, {axis}, {NAN_MAX})" if is_max else f"tl.sum({expression}, {axis})"
        writer.helpers.update([NAN_MAX] if is_max else [])
    if row is not None and shared:
        helper = CLUSTER_MAX if is_max else CLUSTER_SUM
        writer.helpers.add(helper)
        expression = f"{helper}({expression}){'[:, None]' if row.in_parts else ''}"
    return expression


def write_reduction(writer: Writer, item: Node, value: int) -> None:
    [tile] = (writer.tiles[i] for i in item.operands)
    dim, dtype = item["dim"], writer.compute_dtype(value)
    if tile.shape[dim] == 1:
        writer.new_tile(value, tile.name, tile.dtype, tile.zero, tile.finite)
        return
    expression = _reduce_text(writer, item.op, cast(tile.name, tile.dtype, dtype), tile, dim)
    name = writer.new_name(OPS[item.op].noun)
    writer.new_tile(value, name, dtype, tile.zero - {dim}, tile.finite)
    writer.say(writer.graph.phases[value], f"{name} = {expression}")


def write_accumulator(writer: Writer, item: Node, value: int, dot: DotPlan | None) -> None:
    graph, operand = writer.graph, item.operands[0]
    kind, is_strided = OPS[item.op].reduction, item.get("columns") is not None
    dtype, dim = writer.compute_dtype(value), item.get("dim")
    name = writer.new_name(OPS[item.op].noun)
    looped = graph.phases[operand] is Phase.LOOP
    cut = graph.cuts[operand][dim] if dim is not None and operand in graph.cuts else None
    terms = (graph.loop if looped else 1) * (graph.types[operand].shape[dim] if dim is not None else 1)
    terms = cut.extent if cut is not None else terms  # a mean is of all that the loop cuts
    count = terms if kind == "mean" else 1
    average = f" / {as_float(count)}" if count > 1 else ""
    rescale = _rescaling(writer, value)
    if dot is not None:
        dot = dot if not rescale or not dot.finish("") else None
    if dot is not None:
        _open_accumulator(writer, name, dot.shape, kind, dtype)
        start = " * ".join([name, *(factor for factor in rescale)])
        writer.say(Phase.LOOP, f"{name} = {dot.text(start)}")
        writer.new_tile(value, name, dtype, dot.zero, dot.finite)
        if dot.finish("") or average:
            writer.say(Phase.EPILOGUE, f"{name} = {dot.finish(name)}{average}")
        return
    if operand not in writer.tiles:
        write_product(writer, graph.node_of[operand], operand)
    tile = writer.tiles[operand]
    term = cast(tile.name, tile.dtype, dtype)
    reduces = dim is not None and tile.shape[dim] > 1
    threads = WARP * writer.schedule.num_warps if writer.schedule.num_warps else graph.threads
    small = prod(tile.padded) <= _LATE * threads
    late = reduces and not is_strided and small and looped and not rescale and not cut
    zero, finite = tile.zero - ({dim} if reduces else frozenset()), tile.finite
    if is_strided and reduces:
        term, zero = write_columns(writer, item, value, tile, term), frozenset()
    elif reduces and not late:
        term = _reduce_text(writer, "max" if kind == "max" else "sum", term, tile, item["dim"])
    result = writer.new_tile(value, name, dtype, zero, finite)
    if not looped:  # the same term in every iteration
        times = f" * {as_float(graph.loop)}" if kind == "sum" and graph.loop > 1 else ""
        writer.say(Phase.EPILOGUE, f"{name} = {term}{times}{average}")
        return
    kept = " * ".join([name, *rescale])
    shape = tile.physical if late else result.physical
    _open_accumulator(writer, name, shape, kind, dtype)
    if kind == "max":
        writer.helpers.add(NAN_MAX)
        writer.say(Phase.LOOP, f"{name} = {NAN_MAX}({kept}, {term})")
    elif rescale or not _is_long(graph, value):
        writer.say(Phase.LOOP, f"{name} = {kept} + {term}" if rescale else f"{name} += {term}")
    else:
        _write_compensated_sum(writer, name, term, shape, dtype)
    if late:
        whole = replace(tile, name=name, dtype=dtype)
        writer.say(
            Phase.EPILOGUE,
            f"{name} = {_reduce_text(writer, 'max' if kind == 'max' else 'sum', name, whole, item['dim'])}{average}",
        )
    elif average:
        writer.say(Phase.EPILOGUE, f"{name} = {name}{average}")


def _open_accumulator(writer: Writer, name: str, shape: Shape, kind: str, dtype: DType) -> None:
    start = _MINUS_INFINITY if kind == "max" else "0.0"
    writer.say(Phase.PROLOGUE, f"{name} = tl.full({shape}, {start}, tl.{dtype})")


def _is_long(graph: Graph, value: int) -> bool:
    """Whether one addition an iteration loses digits: of products of half-precision numbers fewer than these lack."""
    [operand] = graph.node_of[value].operands
    source, kinds = graph.node_of[operand], graph.types
    exact = source.kind is not Kind.MATMUL or all(kinds[i].dtype is DType.float32 for i in source.operands)
    return graph.loop > _LONG and kinds[value].dtype is DType.float32 and exact


def _write_compensated_sum(writer: Writer, name: str, term: str, shape: Shape, dtype: DType) -> None:
    """A sum, with what its additions lose added at the end; infinite sums stay as they are.

    What one loses is exact where the term is no larger than the sum (Dekker, 1971; Kahan and Babuška).
    """
    lost, total = (writer.new_name(f"{each}_{name}") for each in ("lost", "total"))
    _open_accumulator(writer, lost, shape, "sum", dtype)
    if not term.isidentifier():
        added = writer.new_name(f"term_{name}")
        writer.say(Phase.LOOP, f"{added} = {term}")
        term = added
    writer.say(Phase.LOOP, f"{total} = {name} + {term}")
    writer.say(Phase.LOOP, f"{lost} += ({name} - {total}) + {term}")
    writer.say(Phase.LOOP, f"{name} = {total}")
    writer.say(Phase.EPILOGUE, f"{name} = tl.where(tl.abs({name}) < {_INFINITY}, {name} + {lost}, {name})")


def _rescaling(writer: Writer, value: int) -> list[str]:
    """The factors by which an accumulator shrinks when a running maximum rises."""
    shape = writer.graph.types[value].shape
    factors = []
    for exponential, shift in writer.safe.items():
        if writer.graph.phases[exponential] is Phase.LOOP and (degree := shift.degrees.get(value, 0)):
            origins = shift.origins[value]
            have = [origins.get(dim) in shift.kept for dim in real_dims(shape)]
            factors += [picked(shift.rescale, have)] * int(degree)
    return factors


def write_logarithm(writer: Writer, item: Node, value: int) -> None:
    """The logarithm of a value that lacks powers of exp(row maximum): log s + maximum, as s is relative to the maximum.

    Where its readers only add or subtract it, the maximum goes to the other operand first, since the two are often close:
    (x − maximum) − log s. The logarithm is 0 where the maximum is infinite, so that the sum is too.
    """
    [operand] = item.operands
    tile, dtype, phase = writer.tiles[operand], writer.compute_dtype(value), writer.graph.phases[value]
    extents = writer.graph.types[operand].shape
    terms, infinite = [], []
    for shift in writer.safe.values():
        if degree := shift.degrees.get(operand, 0):
            origins = shift.origins[operand]
            have = [origins.get(dim) in shift.kept for dim in real_dims(extents)]
            row_maximum = picked(shift.row_maximum, have)
            terms.append(row_maximum if degree == 1 else f"{float(degree)} * {row_maximum}")
            infinite.append(f"{row_maximum} == {_INFINITY}")
    name = writer.new_name(OPS[item.op].noun)
    text = f"tl.log({cast(tile.name, tile.dtype, dtype)})"
    if not terms:
        writer.new_tile(value, name, dtype)
        writer.say(phase, f"{name} = {text}")
        return
    text = f"tl.where({infinite[0] if len(infinite) == 1 else ' | '.join(f'({each})' for each in infinite)}, 0.0, {text})"
    readers = (writer.graph.nodes[place] for place in writer.graph.readers[value])
    late = all(reader.op in TERMS and reader.operands.count(value) == 1 for reader in readers)
    writer.new_tile(value, name, dtype)
    writer.say(phase, f"{name} = {text}" if late else f"{name} = {text} + {' + '.join(terms)}")
    if late:
        writer.offsets[value] = " + ".join(terms)


def write_safe_exponential(writer: Writer, item: Node, value: int, shift: SafeExponential) -> None:
    """exp(x − row maximum) with the maximum of x over the dims in which the ratio reduces; a running one in the loop.

    A row of −∞ alone is shifted by 0, so that its exponentials are 0.
    """
    [x] = (writer.tiles[i] for i in item.operands)
    phase, dtype = writer.graph.phases[value], writer.compute_dtype(value)
    kept = [dim in shift.kept for dim in x.dims]
    if shift.leader is not None:
        leader = writer.safe[shift.leader]
        writer.safe[value] = replace(shift, row_maximum=leader.row_maximum, base=leader.base, power=leader.power)
        name = writer.new_name("exponential")
        writer.new_tile(value, name, dtype)
        writer.say(phase, f"{name} = {_shifted(writer.safe[value], cast(x.name, x.dtype, dtype), kept)}")
        return
    row_maximum = writer.new_name("peak")
    shift = replace(
        shift, row_maximum=row_maximum, rescale=writer.new_name("rescale"), base=writer.new_name(f"base_{row_maximum}")
    )
    if writer.schedule.exp2 and all(reader.op != "log" for reader in writer.graph.nodes):  # a product with log2(e) is rounded
        shift = replace(shift, power=writer.new_name(f"power_{row_maximum}"))
    writer.safe[value] = shift
    scores = cast(x.name, x.dtype, dtype)
    if x.ragged & shift.reduced:
        inside = writer.new_name(f"inside_{x.name}")
        writer.say(phase, f"{inside} = {masked(writer, scores, x, sorted(shift.reduced), _MINUS_INFINITY)}")
        scores = inside
    if shift.factors:
        counted = writer.new_name(f"counted_{x.name}")
        unmasked = [factor for factor in shift.factors if factor.value not in writer.masks]
        writer.say(phase, *(f"{counted} = {_counted(writer, scores, it, x)}" for it in (shift.factors, unmasked)))
        scores = counted
    highest = scores
    for dim in sorted(shift.reduced & set(x.dims), reverse=True):
        highest = _reduced(writer, True, highest, x, dim)
    higher = row_maximum
    if phase is Phase.LOOP:
        shape = tuple(x.padded[dim] for dim in x.dims if dim in shift.kept)
        writer.say(Phase.PROLOGUE, f"{row_maximum} = tl.full({shape}, {_MINUS_INFINITY}, tl.{dtype})")
        higher = writer.new_name(f"higher_{row_maximum}")
        writer.helpers.add(NAN_MAX)
        highest = f"{NAN_MAX}({row_maximum}, {highest})"
    writer.say(phase, f"{higher} = {highest}")
    writer.say(phase, f"{shift.base} = tl.where({higher} == {_MINUS_INFINITY}, 0.0, {higher})")
    if shift.power:
        writer.say(phase, f"{shift.power} = tl.where(tl.abs({shift.base}) < {_FAR}, {_LOG2_E}, 1.0)")
    if phase is Phase.LOOP:
        writer.say(phase, f"{shift.rescale} = {_shifted(shift, row_maximum, [True])}")
        writer.say(phase, f"{row_maximum} = {higher}")
    name = writer.new_name("exponential")
    zero = frozenset(shift.reduced) if x.finite else frozenset[int]()
    writer.new_tile(value, name, dtype, zero, finite=False)
    writer.say(phase, f"{name} = {_shifted(shift, scores, kept)}")


def _counted(writer: Writer, scores: str, factors: Sequence[Factor], x: Tile) -> str:
    """The scores where no factor is 0, and −∞ elsewhere."""
    terms = [_counts(writer, factor, x) for factor in factors]
    return f"tl.where({' & '.join(terms)}, {scores}, {_MINUS_INFINITY})" if terms else scores


def _counts(writer: Writer, factor: Factor, x: Tile) -> str:
    """Where in a tile of scores a factor of their exponential is not 0."""
    name, sources = writer.tiles[factor.value].name, [source for _, source in factor.dims]
    if sources != sorted(sources):
        name = f"tl.permute({name}, {tuple(map(sources.index, sorted(sources)))})"
    return picked(f"({name} != 0.0)", [dim in sources for dim in x.dims])


def _shifted(shift: SafeExponential, scores: str, kept: Sequence[bool]) -> str:
    """exp(scores − base); as a power of two the scale joins the subtraction in one operation."""
    if not shift.power:
        return f"tl.exp({scores} - {picked(shift.base, kept)})"
    return f"tl.exp2({scores} * {picked(shift.power, kept)} - {picked(f'({shift.base} * {shift.power})', kept)})"
