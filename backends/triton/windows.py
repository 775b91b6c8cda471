"""The kernel of a pooling, or of a convolution of each channel alone: a thread computes a few rows and columns of the result.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod

from mirage_eg.backends.launches.generated_ops import WindowOp, poolings
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.field_helpers import ASSEMBLER
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.op_table import NAN_MAX
from mirage_eg.backends.triton.product_helpers import added, name_of
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.windows import channels_last

_WARPS, _WARPS_OF_CONVOLUTION = 8, 4
_SMALL_FILTER = 9  # numbers: row-major images in float32 took 623 µs where it is loaded first, 804 where row by row (H200)
_MANY_FACTORS = 25
"""Of a larger filter several products are one op, and sums begin with zero. On an H200 7 × 7 filters take 0.89 to 1.02 of the
time so, 3 × 3 and 5 × 5 ones up to 1.07."""
_VECTORS = (2, 4)  # elements that a thread loads at once

Load = Callable[[Sequence[int], str], str]  # of a tensor with these steps along image, channel and three dims, by its pointer
Behind = Callable[[Mapping[int, str], Mapping[str, Load]], Iterator[str]]
"""The lines of the ops behind a convolution, by the pointers of what they read, and the loads of tensors at the places of each
sum."""


def write_pooling(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a pooling, and its launch."""
    op = poolings(file.graph)[launch.nodes[0]]
    _write(file, launch, op, partial(_body, op), [NAN_MAX] if op.is_max else [])


def write_each_channel(
    file: ProgramFile, launch: Launch, op: WindowOp, factors: Shape, behind: Behind, helpers: Sequence[str]
) -> None:
    """Write the kernel of a convolution whose filter has the strides `factors`, and of the ops `behind` it, and its launch."""

    def body(x: str, w: str, *others: str) -> Iterator[str]:
        named = dict(zip(launch.operands, (x, w, *others), strict=False))
        yield from _body(op, x, others[-1], w, factors, partial(behind, named))

    _write(file, launch, op, body, [*helpers, *_functions(op)])


def _write(file: ProgramFile, launch: Launch, op: WindowOp, body: Callable[..., Iterator[str]], helpers: Sequence[str]) -> None:
    row, warps = op.row_tile, _warps(op)
    programs = -(-_positions(op) // _elements(op))
    if row is not None:
        programs, warps = _positions(op) // op.result[-1] * row.programs, max(1, row.columns // 32)
    groups = 1 if op.x_last else op.groups[-2]
    write_generated_kernel(file, launch, groups * programs, body, helpers, warps)


def _warps(op: WindowOp) -> int:
    return _WARPS_OF_CONVOLUTION if op.x_last and op.has_factors else _WARPS


def _elements(op: WindowOp) -> int:
    """Positions of one program."""
    return op.vector * 32 * _warps(op)


def _positions(op: WindowOp) -> int:
    """Threads times their channels; of a row-major image along the dims but the rows."""
    of_rows = 1 if op.x_last else op.groups[-2]
    return prod(op.groups) // of_rows


def _names(op: WindowOp) -> tuple[str, ...]:
    return ("n", "c", "d", "h", "w") if len(op.x) == 5 else ("n", "c", "h", "w")


def _body(
    op: WindowOp,
    x: str,
    y: str,
    weight: str = "",
    factors: Shape = (),
    behind: Callable[[Mapping[str, Load]], Iterator[str]] | None = None,
) -> Iterator[str]:
    """The lines of the kernel: d, h and w are the first places of the result, pd, ph and pw of x; `factors` are the strides of
    the `weight` of a convolution."""
    names, row = _names(op), op.row_tile
    orders = (channels_last if op.x_last else row_major, channels_last if op.result_last else row_major)
    shapes = op.x, op.result
    x_steps, y_steps = (dict(zip(names, order(shape), strict=True)) for order, shape in zip(orders, shapes, strict=True))
    yield from _places(op)
    yield f"into = {y} + {' + '.join(f'{name} * {y_steps[name]}' for name in names[:-1])}"
    for dim, name in enumerate(names[2:-1], 2 - len(names)):
        yield f"p{name} = {name} * {op.strides[dim]} - {op.before[dim]}"
    if factors:
        yield f"factors = {weight} + c * {factors[0]}"
    channel = f"c // {op.results_of_channel}" if op.has_factors else "c"
    planes = " + ".join(f"p{name} * {x_steps[name]}" for name in names[2:-1])
    yield f"above = {x} + n * {x_steps['n']} + {channel} * {x_steps['c']} + {planes}"
    for part in range(1 if row is None else row.parts):
        if row is not None:
            yield f"w = first + {part * row.columns}"
            yield f"inside = w < {op.result[-1]}"
        yield f"to = into + w * {y_steps['w']}"
        yield f"at = above + w * {op.strides[-1] * x_steps['w']}"  # aligned, as the first column of a window need not be
        yield f"pw = w * {op.strides[-1]} - {op.before[-1]}"
        yield from _products(op, x_steps, factors[2:]) if factors else _sums(op, x_steps)
        tile = {f"sum{row}_{column}": (row, column) for row, column in product(range(op.rows), range(op.columns))}
        if behind is not None:
            yield from behind({name: partial(_spread, op, place) for name, place in tile.items()})
        for name, (row_of, column) in tile.items():
            where, mask = row_of * y_steps["h"] + column * y_steps["w"], _inside(op, (row_of, column))
            yield f"tl.store(to + {where}, {_result(op, name, row_of)}, mask={mask})"


def _places(op: WindowOp) -> Iterator[str]:
    """The lines that find the first place of a thread in the result, but for the column of a part of a row."""
    names, row, step = _names(op), op.row_tile, 1
    if not op.x_last:
        yield f"h = program % {op.groups[-2]}"
        yield f"program = program // {op.groups[-2]}"
    if row is None:
        yield f"i = program * {_elements(op)} + tl.arange(0, {_elements(op)})"
        yield f"inside = i < {_positions(op)}"
    else:
        yield f"first = program % {row.programs} * {row.parts * row.columns} + tl.arange(0, {row.columns})"
        yield f"i = program // {row.programs} + tl.zeros_like(first)"  # the interpreter spreads no condition
    for name in ("c", "w", "h", "n") if op.x_last else [it for it in reversed(names) if it != "h"]:
        if row is not None and name == "w":
            continue
        extent = op.groups[names.index(name)]
        yield f"{name} = i // {step}" + ("" if name == "n" else f" % {extent}")
        step *= extent
    yield f"h = h * {op.rows} + tl.zeros_like(i)"
    if op.columns > 1:
        yield f"w = w * {op.columns}"


def _inside(op: WindowOp, place: tuple[int, int]) -> str:
    """The condition that the result has the row and the column of a place of a thread."""
    groups = zip("hw", place, op.groups[-2:], (op.rows, op.columns), op.result[-2:], strict=True)
    bounds = [f"({dim} + {at} < {extent})" for dim, at, count, each, extent in groups if (count - 1) * each + at >= extent]
    return " & ".join(["inside", *bounds])


def _spread(op: WindowOp, place: tuple[int, int], steps: Sequence[int], pointer: str) -> str:
    """The load of a tensor with these steps along image, channel and three dims, for a place of a thread."""
    row, column = place
    texts = ("n", "c", "d", f"(h + {row})", f"(w + {column})")
    where = " + ".join([pointer, *(f"{text} * {step}" for text, step in zip(texts, steps, strict=True) if step)])
    mask = f", mask={_inside(op, place)}" if any((steps[0], *steps[2:])) else ""
    return f"tl.load({where}{mask}).to(tl.float32)"


def _products(op: WindowOp, steps: Mapping[str, int], factors: Sequence[int]) -> Iterator[str]:
    """The sums of products for each row and column of the result; `factors` are the steps of the filter along its window.

    A row of the filter is loaded where it is first used: fewer are in registers together. A small filter is loaded first.
    """
    begun = set[str]()
    if prod(op.window) > _MANY_FACTORS:
        begun.update(f"sum{row}_{column}" for row, column in product(range(op.rows), range(op.columns)))
        yield from (f"{name} = tl.zeros_like(i).to(tl.float32)" for name in sorted(begun))
    for planes in _planes(op):
        first = range(op.window[-2]) if prod(op.window) <= _SMALL_FILTER and not op.x_last else ()
        loaded = set(first)
        yield from _factors(op, planes, first, factors)
        for needed in op.needed:
            rows = {at for _, at in _users(op, -2, needed)}
            yield from _factors(op, planes, rows - loaded, factors)
            loaded |= rows
            for column in op.needed_columns:
                yield f"element = {_load(op, steps, (*planes, needed, column))}"
                terms = _terms(op, needed, column)
                if _are_one_op(op, terms):
                    yield added("element", terms)
                    continue
                for name, factor in terms.items():
                    yield f"{name} = {f'{name} + ' if name in begun else ''}element * {factor}"
                    begun.add(name)


def _functions(op: WindowOp) -> list[str]:
    """The functions by which products are added to several sums, and their constant."""
    of_elements = [_terms(op, *place) for place in product(op.needed, op.needed_columns)]
    functions = {name_of(len(terms)) for terms in of_elements if _are_one_op(op, terms)}
    return [ASSEMBLER, *functions] if functions else []


def _are_one_op(op: WindowOp, terms: Mapping[str, str]) -> bool:
    return prod(op.window) > _MANY_FACTORS and len(terms) > 1


def _terms(op: WindowOp, needed: int, column: int) -> dict[str, str]:
    """The sums that have an element of x, by their names, with its factors: each has it once."""
    users = product(_users(op, -2, needed), _users(op, -1, column))
    return {f"sum{row}_{place}": f"factor{at}_{tap}" for (row, at), (place, tap) in users}


def _factors(op: WindowOp, planes: Sequence[int], rows: Iterable[int], steps: Sequence[int]) -> Iterator[str]:
    """The loads of rows of a plane of the filter."""
    for at, column in product(rows, range(op.window[-1])):
        places = (*(it // op.dilations[-3] for it in planes), at, column)
        where = sum(place * step for place, step in zip(places, steps, strict=True))
        yield f"factor{at}_{column} = tl.load(factors + {where}).to(tl.float32)"


def _planes(op: WindowOp) -> Iterator[tuple[int, ...]]:
    """The planes of x of a window, from its first one; one without a number of an image."""
    pairs = zip(op.window[:-2], op.dilations[:-2], strict=True)
    return product(*(range(0, extent * dilation, dilation) for extent, dilation in pairs))


def _users(op: WindowOp, dim: int, needed: int) -> list[tuple[int, int]]:
    """The rows or columns of the result, with the places of their windows, that have a row or column of x."""
    results = op.rows if dim == -2 else op.columns
    places = product(range(results), range(op.window[dim]))
    return [(result, at) for result, at in places if op.place_of(dim, result, at) == needed]


def _load(op: WindowOp, steps: Mapping[str, int], places: Sequence[int], together: int = 1) -> str:
    """The load of the elements of x at `places` from the first ones of windows."""
    moved = dict(zip(_names(op)[2:], places, strict=True))
    other = 'float("-inf")' if op.is_max else "0.0"
    where = f"at + {sum(more * steps[name] for name, more in moved.items()) - op.before[-1] * steps['w']}"
    bounds = [bound for name, more in moved.items() for bound in _bounds(op, name, more)]
    mask, fill = " & ".join(["inside", *bounds]), f", other={other}" if bounds else ""  # beyond the images nothing is stored
    if together > 1:
        where, mask = f"({where})[:, None] + tl.arange(0, {together})[None, :]", f"({mask})[:, None]"
    return f"tl.load({where}, mask={mask}{fill}).to(tl.float32)"


def _sums(op: WindowOp, steps: Mapping[str, int]) -> Iterator[str]:
    """The maxima or sums of the elements of each row of x, and of these for each row of the result."""
    begun = set[int]()
    for planes in _planes(op):
        for needed in op.needed:
            parts = []
            for column, count in _runs(op):
                part = _load(op, steps, (*planes, needed, column * op.dilations[-1]), count)
                reduced = f"tl.reduce({part}, 1, {NAN_MAX})" if op.is_max else f"tl.sum({part}, 1)"
                parts.append(part if count == 1 else reduced)
            yield f"line = {parts[0]}"
            yield from (f"line = {_joined(op, 'line', part)}" for part in parts[1:])
            for row, _ in _users(op, -2, needed):
                name = f"sum{row}_0"
                yield f"{name} = " + (_joined(op, name, "line") if row in begun else "line")
                begun.add(row)


def _runs(op: WindowOp) -> Iterator[tuple[int, int]]:
    """The columns of a window, and how many neighbours are loaded at once: as many as windows are apart, if they are aligned.

    Then the threads of a warp read without gaps. Such neighbours are all in the image, or none.
    """
    step, window, column = op.strides[-1], op.window[-1], 0
    is_aligned = not op.x_last and step in _VECTORS and op.dilations[-1] == 1 and op.x[-1] % step == 0
    while column < window:
        together = is_aligned and (column - op.before[-1]) % step == 0 and column + step <= window
        yield column, step if together else 1
        column += step if together else 1


_DIM = {"d": -3, "h": -2, "w": -1}


def _bounds(op: WindowOp, name: str, more: int) -> Iterator[str]:
    """The conditions that x has the element `more` indices behind the first one of a window: those that may fail."""
    dim = _DIM[name]
    before, stride = op.before[dim], op.strides[dim]
    together = {"h": op.rows, "w": op.columns}.get(name, 1)
    last = (op.groups[dim] - 1) * together
    if more < before:
        yield f"(p{name} + {more} >= 0)"
    if last * stride - before + more >= op.x[dim]:
        yield f"(p{name} + {more} < {op.x[dim]})"


def _joined(op: WindowOp, one: str, other: str) -> str:
    return f"{NAN_MAX}({one}, {other})" if op.is_max else f"{one} + {other}"


def _result(op: WindowOp, name: str, row: int) -> str:
    """A row of the result: a maximum, a sum of products, or a mean of the elements that count."""
    if op.is_max or op.has_factors:
        return name
    if op.counts_pads:
        return f"{name} / {float(prod(op.window))}"
    counts = []
    for dim in _names(op)[2:]:
        start = f"p{dim} + {row * op.strides[-2]}" if dim == "h" else f"p{dim}"
        extent, window = op.x[_DIM[dim]], op.window[_DIM[dim]]
        counts.append(f"(tl.minimum({start} + {window}, {extent}) - tl.maximum({start}, 0))")
    return f"{name} / ({' * '.join(counts)}).to(tl.float32)"
