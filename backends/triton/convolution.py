"""The kernel of a convolution as an implicit product: a program computes a tile of filters and positions.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

from mirage_eg.backends.launches.generated_ops import WindowOp
from mirage_eg.backends.launches.implicit_products import ImplicitProduct, implicit_products
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.copied_block import StridedMemory, copied_block
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.op_table import ELEMENTWISE
from mirage_eg.backends.triton.ops_behind import ops_behind
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.windows import write_each_channel
from mirage_eg.backends.triton.written_calls import channels_last_operands, laid_filter
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.shapes import row_major

_WIDE = 64  # filters that are the rows of a tile of matrix units; fewer are its columns
_WARPS = 4  # of a small convolution; others have one for 32 positions
_PIXELS = 256  # of a program that copies an image
_ADDED = 8  # positions of a program that adds parts
_STAGES = 4  # of the loop of a small convolution, whose tiles are too small for wgmma
_DIMS = ("d", "h", "w")


def write_convolution(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a convolution and its launch, or two: of the parts of the sums, and of their sum."""
    [kernel] = (it for it in implicit_products(file.graph) if it.nodes == launch.nodes)
    it, items = kernel.product, [file.graph.nodes[position] for position in kernel.nodes]
    helpers = [name for item in items[1:] if item.op in ELEMENTWISE for name, _ in ELEMENTWISE[item.op].helpers]
    x, w = items[0].operands
    is_last = it.x_last if isinstance(it, WindowOp) else it.is_small
    laid = dict(zip((x, w), channels_last_operands(file, items[0]) if is_last else (x, w), strict=True))
    read = [laid.get(operand, operand) for operand in kernel.operands]
    if isinstance(it, WindowOp):
        launch = replace(launch, operands=tuple(read))
        write_each_channel(file, launch, it, file.strides[laid[w]], partial(ops_behind, file, kernel, laid), helpers)
        return
    if it.is_padded:
        laid[x], it = _with_padded_image(file, launch, x, it)
        read = [laid.get(operand, operand) for operand in kernel.operands]
    if it.copies_filter:
        laid[w], it = _with_filters_last(file, launch, w, it)
        read = [laid.get(operand, operand) for operand in kernel.operands]
    options = (_WARPS, _STAGES) if it.is_small else (it.tile_positions // 32,)

    def stored(operands: Sequence[int], pointers: Sequence[str]) -> Iterator[str]:
        named = dict(zip(operands, pointers, strict=False))
        yield from _stored(it, ops_behind(file, kernel, laid, named, {"sums": partial(_spread, it)}), pointers[-1])

    def whole(*pointers: str) -> list[str]:
        sums = _sums(it, pointers[read.index(laid[x])], pointers[read.index(laid[w])])
        return [*_places(it, it.tile_positions), *sums, *stored(read, pointers)]

    def part(x: str, w: str, y: str) -> list[str]:
        places = _places(it, it.tile_positions, it.parts)
        return [*places, *_sums(it, x, w), f"tl.store({_part(it, y)}, sums, mask={_is_stored(it)})"]

    def added(*pointers: str) -> list[str]:
        parts = [f"sums = tl.zeros([{it.tile}, {_ADDED}], tl.float32)", f"for part in tl.static_range({it.parts}):"]
        parts.append(f"    sums += tl.load({_part(it, pointers[0])}, mask={_is_stored(it)}, other=0.0)")
        return [*_places(it, _ADDED), *parts, *stored((parted, *behind), pointers)]

    if it.parts == 1:
        launch = replace(launch, operands=tuple(read))
        write_generated_kernel(file, launch, _programs(it, it.tile_positions), whole, helpers, *options)
        return
    others = {laid.get(operand, operand) for item in items[1:] for operand in item.operands}
    behind, shape = [operand for operand in read if operand in others], (it.parts, prod(it.positions), it.filters)
    parted = file.add_value(TensorType(shape, DType.float32), "parts")
    first = replace(launch, operands=(laid[x], laid[w]), results=(parted,))
    write_generated_kernel(file, first, it.parts * _programs(it, it.tile_positions), part, (), *options)
    write_generated_kernel(file, replace(launch, operands=(parted, *behind)), _programs(it, _ADDED), added, helpers)


def _with_filters_last(file: ProgramFile, launch: Launch, weight: int, it: ImplicitProduct) -> tuple[int, ImplicitProduct]:
    """The product with filters next to each other in memory for each channel and place of the window: a copy, by `prepare` or
    by a kernel.

    In row-major order the threads of a warp read a line of memory each, and each line has one factor of a step.
    """
    shape, of_filter = file.types[weight].shape, int(it.is_transposed)
    order = (*range(2, len(shape)), 1 - of_filter, of_filter)
    in_order = row_major(tuple(shape[dim] for dim in order))
    strides = tuple(in_order[order.index(dim)] for dim in range(len(shape)))
    if (laid := laid_filter(file, weight, strides)) == weight:
        kind = TensorType(tuple(shape[dim] for dim in order), file.types[weight].dtype)
        laid = file.add_value(kind, f"{file.names[weight]}_filters_last")

        def copied(x: str, y: str) -> tuple[int, list[str]]:
            return copied_block(shape, StridedMemory(x, file.strides[weight]), StridedMemory(y, strides), "program")

        copy = replace(launch, operands=(weight,), results=(laid,))
        write_generated_kernel(file, copy, copied("", "")[0], lambda x, y: copied(x, y)[1])
    else:
        strides = file.strides[laid]
    of_dims = (*strides[:2], *(0,) * (5 - len(shape)), *strides[2:])
    return laid, replace(it, memory=(it.memory[0], of_dims, it.memory[2]))


def _with_padded_image(file: ProgramFile, launch: Launch, image: int, it: ImplicitProduct) -> tuple[int, ImplicitProduct]:
    """The product of a copy of an image: a thread copies a pixel, or writes zeros."""
    padded, (images, channels, *_, height, width), strides = it.padded, it.x, it.memory[0]
    copied_channels, _, rows, columns = padded.x[1:]
    pixels = images * rows * columns
    laid = file.add_value(
        TensorType((images, rows, columns, copied_channels), file.types[image].dtype), f"{file.names[image]}_padded"
    )

    def copied(x: str, y: str) -> Iterator[str]:
        yield f"i = program * {_PIXELS} + tl.arange(0, {_PIXELS})"
        yield f"w = i % {columns} - {it.before[2]}"
        yield f"h = i // {columns} % {rows} - {it.before[1]}"
        yield f"inside = (i < {pixels}) & (h >= 0) & (h < {height}) & (w >= 0) & (w < {width})"
        yield f"c = tl.arange(0, {copied_channels})"
        yield f"at = {x} + i // {rows * columns} * {strides[0]} + h * {strides[3]} + w * {strides[4]}"
        yield f"there = inside[:, None] & (c < {channels})[None, :]"
        yield f"pixel = tl.load(at[:, None] + (c * {strides[1]})[None, :], mask=there, other=0.0)"
        yield f"tl.store(({y} + i * {copied_channels})[:, None] + c[None, :], pixel, mask=(i < {pixels})[:, None])"

    copy = replace(launch, operands=(image,), results=(laid,))
    write_generated_kernel(file, copy, -(-pixels // _PIXELS), copied)
    return laid, padded


def _programs(it: ImplicitProduct, positions: int) -> int:
    """The programs of a kernel with tiles of so many positions."""
    return -(-it.filters // it.tile) * -(-prod(it.positions) // positions) * it.groups * prod(it.steps)


def _part(it: ImplicitProduct, pointer: str) -> str:
    """The places of a tile in a part of the sums."""
    return f"{pointer} + ((part * {prod(it.positions)} + i) * {it.filters})[None, :] + o[:, None]"


def _spread(it: ImplicitProduct, steps: Sequence[int], pointer: str) -> str:
    """The load of a tensor for each filter and position of a tile."""
    places = [f"{name} * {step}" for name, step in zip(("n", *_DIMS), (steps[0], *steps[2:]), strict=True) if step]
    channels = [f"((group * {it.filters} + o) * {steps[1]})[:, None]"] if steps[1] else []
    masks = [_known(it)] if channels and _known(it) else []
    masks += ["inside[None, :]"] if places else []
    where = " + ".join([pointer, *channels, *([f"({' + '.join(places)})[None, :]"] if places else [])])
    return f"tl.load({where}{', mask=' + ' & '.join(masks) if masks else ''}).to(tl.float32)"


def _known(it: ImplicitProduct) -> str:
    """The condition that filters of a tile exist; nothing where all do."""
    return "" if it.filters % it.tile == 0 else f"(o < {it.filters})[:, None]"


def _places(it: ImplicitProduct, positions: int, parts: int = 1) -> Iterator[str]:
    """The lines that find the filters o and positions i of a program: q are positions of a phase r."""
    counts = [("tile", -(-it.filters // it.tile)), *_phases(it), ("group", it.groups)]
    for name, count in [("part", parts), *counts] if parts > 1 else counts:
        yield f"{name} = program % {count}"
        yield f"program = program // {count}"
    yield f"i = program * {positions} + tl.arange(0, {positions})"
    yield f"inside = i < {prod(it.positions)}"
    yield f"o = tile * {it.tile} + tl.arange(0, {it.tile})"
    step = 1
    for dim in (2, 1, 0):
        yield f"q{_DIMS[dim]} = i // {step} % {it.positions[1 + dim]}"
        step *= it.positions[1 + dim]
    yield f"n = i // {step}"


def _sums(it: ImplicitProduct, x: str, w: str) -> Iterator[str]:
    """The lines that add products: j are places of the windows, and p the first element of a window."""
    steps, taps, _ = it.memory
    for dim in (2, 1, 0):
        name, every = _DIMS[dim], [it.taps(dim, phase) for phase in range(it.steps[dim])]
        for field in ("first", "count", "shift"):
            yield f"{field}_{name} = {_by_phase([getattr(each, field) for each in every], f'r{name}')}"
        yield f"p{name} = q{name} * {every[0].scale} + shift_{name}"
    places = " + ".join(f"p{_DIMS[dim]} * {steps[2 + dim]}" for dim in range(3))
    yield f"at = {x} + n * {steps[0]} + group * {it.channels * steps[1]} + {places}"
    of_filter, of_channel = (taps[1], taps[0]) if it.is_transposed else (taps[0], taps[1])
    first = it.channels * of_channel if it.is_transposed else it.filters * of_filter
    yield f"factors = {w} + group * {first} + o * {of_filter}"
    tile = (it.tile_positions, it.tile) if _has_positions_first(it) else (it.tile, it.tile_positions)
    yield f"sums = tl.zeros([{tile[0]}, {tile[1]}], tl.float32)"
    yield from _loops(it, [*_terms(it, steps, taps, of_channel)], [*_step(it, steps, taps, of_channel)])
    if _has_positions_first(it):
        yield "sums = tl.trans(sums)"


def _stored(it: ImplicitProduct, epilogue: Iterable[str], y: str) -> Iterator[str]:
    """The lines that store the sums, and what the `epilogue` makes of them."""
    into, outs = it.memory[2], []
    for dim in range(3):
        name = _DIMS[dim]
        yield f"{name} = q{name} * {it.steps[dim]} + r{name}"
        outs.append(f"{name} * {into[2 + dim]}")
        if it.result[2 + dim] % it.steps[dim]:
            yield f"inside = inside & ({name} < {it.result[2 + dim]})"
    yield f"out = {y} + n * {into[0]} + group * {it.filters * into[1]} + {' + '.join(outs)}"
    yield from epilogue
    yield f"tl.store(out[None, :] + (o * {into[1]})[:, None], sums, mask={_is_stored(it)})"


def _is_stored(it: ImplicitProduct) -> str:
    """The mask of a tile."""
    return " & ".join(["inside[None, :]", *filter(None, [_known(it)])])


def _has_positions_first(it: ImplicitProduct) -> bool:
    """Whether positions are the rows of a product: of few filters, and in small tiles, for which wgmma needs 64 rows."""
    return it.is_small or it.tile < _WIDE


def _loops(it: ImplicitProduct, before: Sequence[str], step: Sequence[str]) -> Iterator[str]:
    """A step for each block of channels and each place of the window that no terms of a step have."""
    yield from before
    if it.is_small:
        yield from _loop(it, step)
        return
    indent = ""
    if it.terms.channels < it.channels:
        yield f"for first_c in range(0, {it.channels}, {it.terms.channels}):"
        indent += "    "
    for dim in _looped(it):
        yield f"{indent}for j_{_DIMS[dim]} in range(count_{_DIMS[dim]}):"
        indent += "    "
    yield from (f"{indent}{line}" for line in step)


def _loop(it: ImplicitProduct, step: Sequence[str]) -> Iterator[str]:
    """One loop over the places of the window and the blocks of channels, whose loads Triton begins some steps ahead."""
    blocks = it.channels // it.terms.channels
    counts = [it.taps(dim, 0).count for dim in range(3)]
    yield f"for number in range({it.loop // it.parts}):"
    yield f"    step = {f'part * {it.loop // it.parts} + ' if it.parts > 1 else ''}number"
    yield f"    first_c = step % {blocks} * {it.terms.channels}"
    before = blocks
    for dim in (2, 1, 0):
        yield f"    j_{_DIMS[dim]} = step // {before} % {counts[dim]}"
        before *= counts[dim]
    yield from (f"    {line}" for line in step)


def _looped(it: ImplicitProduct) -> range:
    """The dims along which a step has one place of the window."""
    return range(3 - it.terms.folded)


def _terms(it: ImplicitProduct, steps: Sequence[int], taps: Sequence[int], of_channel: int) -> Iterator[str]:
    """The lines before the loop: the channel and the place of each term, and where its elements and factors are."""
    places, first = list[tuple[str, int, int, int]](), list[str]()
    for dim in reversed(range(3 - it.terms.folded, 3)):
        name, tap = _DIMS[dim], it.taps(dim, 0)
        places.append((f"j_{name}", it.most[dim], -tap.back * steps[2 + dim], tap.step * taps[2 + dim]))
        first += [f"first_{name} * {taps[2 + dim]}"] if it.is_transposed else []
    places.insert(0 if it.is_padded else len(places), ("c", it.terms.channels, steps[1], of_channel))
    yield f"term = tl.arange(0, {it.terms.rows})"
    yield "left = term"
    for name, extent, *_ in places[:-1]:
        yield f"{name} = left % {extent}"
        yield f"left = left // {extent}"
    yield f"{places[-1][0]} = left"
    yield f"term_at = {_of_term([(name, extent, at) for name, extent, at, _ in places])}"
    yield f"term_of = {' + '.join([_of_term([(name, extent, of) for name, extent, _, of in places]), *first])}"
    if exists := _term_exists(it):
        yield f"term_exists = {' & '.join(exists)}"


def _of_term(places: Sequence[tuple[str, int, int]]) -> str:
    """The sum of indices, each with its extent and step, that a term has, the first one innermost: a multiple of the term where
    they follow each other, which Triton loads as neighbours."""
    several = [it for it in places if it[1] > 1] or places[-1:]
    if all(outer == extent * inner for (_, extent, inner), (_, _, outer) in pairwise(several)):
        return f"term * {several[0][2]}"
    return " + ".join(f"{name} * {step}" for name, _, step in several)


def _term_exists(it: ImplicitProduct) -> list[str]:
    """The conditions on which a term of a step exists; nothing where all do, and loads are of several terms."""
    folded = range(3 - it.terms.folded, 3)
    few = [dim for dim in folded if any(it.taps(dim, phase).count < it.most[dim] for phase in range(it.steps[dim]))]
    rows = [f"(term < {it.terms.used})"] if it.terms.used < it.terms.rows else []
    return rows + [f"(j_{_DIMS[dim]} < count_{_DIMS[dim]})" for dim in reversed(few)]


def _step(it: ImplicitProduct, steps: Sequence[int], taps: Sequence[int], of_channel: int) -> Iterator[str]:
    """The lines of a step of the loop: a product of elements of x and of filters."""
    at, of, valid, bounds = ["at"], ["factors"], ["inside"], list[str]()
    exists = ["term_exists"] if _term_exists(it) else []
    if it.terms.channels < it.channels:
        at.append(f"first_c * {steps[1]}")
        of.append(f"first_c * {of_channel}")
        exists += [f"(first_c + c < {it.channels})"] if it.channels % it.terms.channels else []
    for dim, name in enumerate(_DIMS):
        tap, is_looped = it.taps(dim, 0), dim in _looped(it)
        if is_looped:
            at.append(f"j_{name} * {-tap.back * steps[2 + dim]}")
            of.append(f"(first_{name} + j_{name} * {tap.step}) * {taps[2 + dim]}")
        if _may_leave(it, dim) and is_looped:
            yield f"e{name} = p{name} - j_{name} * {tap.back}"
            valid.append(f"(e{name} >= 0) & (e{name} < {it.x[2 + dim]})")
        elif _may_leave(it, dim):
            yield f"e{name} = p{name}[None, :] - (j_{name} * {tap.back})[:, None]"
            bounds.append(f"(e{name} >= 0) & (e{name} < {it.x[2 + dim]})")
    yield f"valid = {' & '.join(valid)}"
    if exists:
        yield f"exists = {' & '.join(exists)}"
    mask = " & ".join(["valid[None, :]", *(["exists[:, None]"] if exists else []), *bounds])
    yield f"block = tl.load(({' + '.join(at)})[None, :] + term_at[:, None], mask={mask}, other=0.0)"
    have = [f"(c < {it.weight[1]})[None, :]"] if it.is_padded and it.weight[1] < it.channels else []
    known = " & ".join([*(["exists[None, :]"] if exists else []), *have, *filter(None, [_known(it)])])
    known = f", mask={known}, other=0.0" if known else ""
    yield f"factor = tl.load(({' + '.join(of)})[:, None] + term_of[None, :]{known})"
    precision = "" if it.is_half else ', input_precision="bf16x3"'  # two numbers an operand: 16 digits, where TF32 has 11
    operands = "tl.trans(block), tl.trans(factor)" if _has_positions_first(it) else "factor, block"
    yield f"sums = tl.dot({operands}, sums{precision})"


def _may_leave(it: ImplicitProduct, dim: int) -> bool:
    """Whether a window may reach over an end of x along a dim."""
    for phase in range(it.steps[dim]):
        taps = it.taps(dim, phase)
        last = taps.scale * (it.positions[1 + dim] - 1)
        ends = [q + taps.shift - taps.back * j for q in (0, last) for j in (0, taps.count - 1)]
        if taps.count and not 0 <= min(ends) <= max(ends) < it.x[2 + dim]:
            return True
    return False


def _phases(it: ImplicitProduct) -> Iterator[tuple[str, int]]:
    """The name of the first position of a phase along each dim, the last one first, and their number."""
    for dim in (2, 1, 0):
        yield f"r{_DIMS[dim]}", it.steps[dim]


def _by_phase(values: Sequence[int], phase: str) -> str:
    """The value of a phase: a number where all are the same."""
    *others, text = map(str, values)
    for number, value in reversed([*enumerate(others)]):
        text = f"tl.where({phase} == {number}, {value}, {text})" if str(value) != text else text
    return text
