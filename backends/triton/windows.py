"""The kernel of a pooling, or of a convolution of each channel alone: a thread computes a few rows and columns of the result.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod

from mirage_eg.backends.launches.generated_ops import Pooling, poolings
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.op_table import NAN_MAX
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.windows import channels_last

_WARPS, _WARPS_OF_CONVOLUTION = 8, 4
_VECTORS = (2, 4)  # elements that a thread loads at once

Load = Callable[[Sequence[int], str], str]  # of a tensor with these steps along image, channel and three dims, by its pointer
Behind = Callable[[Mapping[int, str], Mapping[str, Load]], Iterator[str]]
"""The lines of the ops behind a convolution, by the pointers of what they read, and the loads of tensors at the places of each
sum."""


def write_pooling(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a pooling, and its launch."""
    pooling = poolings(file.graph)[launch.nodes[0]]
    _write(file, launch, pooling, partial(_body, pooling), [NAN_MAX] if pooling.is_max else [])


def write_each_channel(
    file: ProgramFile, launch: Launch, pooling: Pooling, factors: Shape, behind: Behind, helpers: Sequence[str]
) -> None:
    """Write the kernel of a convolution whose filter has the strides `factors`, and of the ops `behind` it, and its launch."""

    def body(program: str, x: str, w: str, *others: str) -> Iterator[str]:
        named = dict(zip(launch.operands, (x, w, *others), strict=False))
        yield from _body(pooling, program, x, others[-1], w, factors, partial(behind, named))

    _write(file, launch, pooling, body, helpers)


def _write(
    file: ProgramFile, launch: Launch, pooling: Pooling, lines: Callable[..., Iterator[str]], helpers: Sequence[str]
) -> None:
    def body(*pointers: str) -> list[str]:
        return [*lines(*pointers)]

    row, warps = pooling.row_tile, _warps(pooling)
    programs = -(-_positions(pooling) // _elements(pooling))
    if row is not None:
        programs, warps = _positions(pooling) // pooling.result[-1] * row.programs, max(1, row.columns // 32)
    groups = 1 if pooling.x_last else pooling.groups[-2]
    write_generated_kernel(file, launch, groups * programs, body, helpers, warps)


def _warps(pooling: Pooling) -> int:
    return _WARPS_OF_CONVOLUTION if pooling.x_last and pooling.has_factors else _WARPS


def _elements(pooling: Pooling) -> int:
    """Positions of one program."""
    return pooling.vector * 32 * _warps(pooling)


def _positions(pooling: Pooling) -> int:
    """Threads times their channels; of a row-major image along the dims but the rows."""
    of_rows = 1 if pooling.x_last else pooling.groups[-2]
    return prod(pooling.groups) // of_rows


def _names(pooling: Pooling) -> tuple[str, ...]:
    return ("n", "c", "d", "h", "w") if len(pooling.x) == 5 else ("n", "c", "h", "w")


def _body(
    pooling: Pooling,
    number: str,
    x: str,
    y: str,
    weight: str = "",
    factors: Shape = (),
    behind: Callable[[Mapping[str, Load]], Iterator[str]] | None = None,
) -> Iterator[str]:
    """The lines of the kernel: d, h and w are the first places of the result, pd, ph and pw of x; `factors` are the strides of
    the `weight` of a convolution."""
    names, row = _names(pooling), pooling.row_tile
    orders = (channels_last if pooling.x_last else row_major, channels_last if pooling.result_last else row_major)
    shapes = pooling.x, pooling.result
    x_steps, y_steps = (dict(zip(names, order(shape), strict=True)) for order, shape in zip(orders, shapes, strict=True))
    yield from _places(pooling, number)
    yield f"into = {y} + {' + '.join(f'{name} * {y_steps[name]}' for name in names[:-1])}"
    for dim, name in enumerate(names[2:-1], 2 - len(names)):
        yield f"p{name} = {name} * {pooling.strides[dim]} - {pooling.before[dim]}"
    if factors:
        yield f"factors = {weight} + c * {factors[0]}"
    channel = f"c // {pooling.results_of_channel}" if pooling.has_factors else "c"
    planes = " + ".join(f"p{name} * {x_steps[name]}" for name in names[2:-1])
    yield f"above = {x} + n * {x_steps['n']} + {channel} * {x_steps['c']} + {planes}"
    for part in range(1 if row is None else row.parts):
        if row is not None:
            yield f"w = first + {part * row.columns}"
            yield f"inside = w < {pooling.result[-1]}"
        yield f"to = into + w * {y_steps['w']}"
        yield f"at = above + w * {pooling.strides[-1] * x_steps['w']}"  # aligned, as the first column of a window need not be
        yield f"pw = w * {pooling.strides[-1]} - {pooling.before[-1]}"
        yield from _products(pooling, x_steps, factors[2:]) if factors else _sums(pooling, x_steps)
        tile = {f"sum{row}_{column}": (row, column) for row, column in product(range(pooling.rows), range(pooling.columns))}
        if behind is not None:
            yield from behind({name: partial(_spread, pooling, place) for name, place in tile.items()})
        for name, (row_of, column) in tile.items():
            where, mask = row_of * y_steps["h"] + column * y_steps["w"], _inside(pooling, (row_of, column))
            yield f"tl.store(to + {where}, {_result(pooling, name, row_of)}, mask={mask})"


def _places(pooling: Pooling, number: str) -> Iterator[str]:
    """The lines that find the first place of a thread in the result, but for the column of a part of a row."""
    names, row, step = _names(pooling), pooling.row_tile, 1
    yield f"program = {number}"
    if not pooling.x_last:
        yield f"h = program % {pooling.groups[-2]}"
        yield f"program = program // {pooling.groups[-2]}"
    if row is None:
        yield f"i = program * {_elements(pooling)} + tl.arange(0, {_elements(pooling)})"
        yield f"inside = i < {_positions(pooling)}"
    else:
        yield f"first = program % {row.programs} * {row.parts * row.columns} + tl.arange(0, {row.columns})"
        yield f"i = program // {row.programs} + tl.zeros_like(first)"  # the interpreter spreads no condition
    for name in ("c", "w", "h", "n") if pooling.x_last else [it for it in reversed(names) if it != "h"]:
        if row is not None and name == "w":
            continue
        extent = pooling.groups[names.index(name)]
        yield f"{name} = i // {step}" + ("" if name == "n" else f" % {extent}")
        step *= extent
    yield f"h = h * {pooling.rows} + tl.zeros_like(i)"
    if pooling.columns > 1:
        yield f"w = w * {pooling.columns}"


def _inside(pooling: Pooling, place: tuple[int, int]) -> str:
    """The condition that the result has the row and the column of a place of a thread."""
    groups = zip("hw", place, pooling.groups[-2:], (pooling.rows, pooling.columns), pooling.result[-2:], strict=True)
    bounds = [f"({dim} + {at} < {extent})" for dim, at, count, each, extent in groups if (count - 1) * each + at >= extent]
    return " & ".join(["inside", *bounds])


def _spread(pooling: Pooling, place: tuple[int, int], steps: Sequence[int], pointer: str) -> str:
    """The load of a tensor with these steps along image, channel and three dims, for a place of a thread."""
    row, column = place
    texts = ("n", "c", "d", f"(h + {row})", f"(w + {column})")
    where = " + ".join([pointer, *(f"{text} * {step}" for text, step in zip(texts, steps, strict=True) if step)])
    mask = f", mask={_inside(pooling, place)}" if any((steps[0], *steps[2:])) else ""
    return f"tl.load({where}{mask}).to(tl.float32)"


def _products(pooling: Pooling, steps: Mapping[str, int], factors: Sequence[int]) -> Iterator[str]:
    """The sums of products for each row and column of the result; `factors` are the steps of the filter along its window.

    A row of the filter is loaded where it is first used: fewer of them are in registers together.
    """
    begun = set[str]()
    for planes in _planes(pooling):
        loaded = set[int]()
        for needed in pooling.needed:
            rows = _users(pooling, -2, needed)
            for at in {at for _, at in rows} - loaded:
                loaded.add(at)
                for column in range(pooling.window[-1]):
                    places = (*(it // pooling.dilations[-3] for it in planes), at, column)
                    where = sum(place * step for place, step in zip(places, factors, strict=True))
                    yield f"factor{at}_{column} = tl.load(factors + {where}).to(tl.float32)"
            for column in pooling.needed_columns:
                yield f"element = {_load(pooling, steps, (*planes, needed, column))}"
                for (row, at), (place, tap) in product(rows, _users(pooling, -1, column)):
                    name, term = f"sum{row}_{place}", f"element * factor{at}_{tap}"
                    yield f"{name} = " + (f"{name} + {term}" if name in begun else term)
                    begun.add(name)


def _planes(pooling: Pooling) -> Iterator[tuple[int, ...]]:
    """The planes of x of a window, from its first one; one without a number of an image."""
    pairs = zip(pooling.window[:-2], pooling.dilations[:-2], strict=True)
    return product(*(range(0, extent * dilation, dilation) for extent, dilation in pairs))


def _users(pooling: Pooling, dim: int, needed: int) -> list[tuple[int, int]]:
    """The rows or columns of the result, with the places of their windows, that have a row or column of x."""
    results = pooling.rows if dim == -2 else pooling.columns
    places = product(range(results), range(pooling.window[dim]))
    return [(result, at) for result, at in places if pooling.place_of(dim, result, at) == needed]


def _load(pooling: Pooling, steps: Mapping[str, int], places: Sequence[int], together: int = 1) -> str:
    """The load of the elements of x at `places` from the first ones of windows."""
    moved = dict(zip(_names(pooling)[2:], places, strict=True))
    other = 'float("-inf")' if pooling.is_max else "0.0"
    where = f"at + {sum(more * steps[name] for name, more in moved.items()) - pooling.before[-1] * steps['w']}"
    bounds = [bound for name, more in moved.items() for bound in _bounds(pooling, name, more)]
    mask, fill = " & ".join(["inside", *bounds]), f", other={other}" if bounds else ""  # beyond the images nothing is stored
    if together > 1:
        where, mask = f"({where})[:, None] + tl.arange(0, {together})[None, :]", f"({mask})[:, None]"
    return f"tl.load({where}, mask={mask}{fill}).to(tl.float32)"


def _sums(pooling: Pooling, steps: Mapping[str, int]) -> Iterator[str]:
    """The maxima or sums of the elements of each row of x, and of these for each row of the result."""
    begun = set[int]()
    for planes in _planes(pooling):
        for needed in pooling.needed:
            parts = []
            for column, count in _runs(pooling):
                part = _load(pooling, steps, (*planes, needed, column * pooling.dilations[-1]), count)
                parts.append(part if count == 1 else _of_neighbours(pooling, part))
            yield f"line = {parts[0]}"
            yield from (f"line = {_joined(pooling, 'line', part)}" for part in parts[1:])
            for row, _ in _users(pooling, -2, needed):
                name = f"sum{row}_0"
                yield f"{name} = " + (_joined(pooling, name, "line") if row in begun else "line")
                begun.add(row)


def _runs(pooling: Pooling) -> Iterator[tuple[int, int]]:
    """The columns of a window, and how many neighbours are loaded at once: as many as windows are apart, if they are aligned.

    Then the threads of a warp read without gaps. Such neighbours are all in the image, or none.
    """
    step, window, column = pooling.strides[-1], pooling.window[-1], 0
    is_aligned = not pooling.x_last and step in _VECTORS and pooling.dilations[-1] == 1 and pooling.x[-1] % step == 0
    while column < window:
        together = is_aligned and (column - pooling.before[-1]) % step == 0 and column + step <= window
        yield column, step if together else 1
        column += step if together else 1


_DIM = {"d": -3, "h": -2, "w": -1}


def _bounds(pooling: Pooling, name: str, more: int) -> Iterator[str]:
    """The conditions that x has the element `more` indices behind the first one of a window: those that may fail."""
    dim = _DIM[name]
    before, stride = pooling.before[dim], pooling.strides[dim]
    together = {"h": pooling.rows, "w": pooling.columns}.get(name, 1)
    last = (pooling.groups[dim] - 1) * together
    if more < before:
        yield f"(p{name} + {more} >= 0)"
    if last * stride - before + more >= pooling.x[dim]:
        yield f"(p{name} + {more} < {pooling.x[dim]})"


def _joined(pooling: Pooling, one: str, other: str) -> str:
    return f"{NAN_MAX}({one}, {other})" if pooling.is_max else f"{one} + {other}"


def _of_neighbours(pooling: Pooling, part: str) -> str:
    return f"tl.reduce({part}, 1, {NAN_MAX})" if pooling.is_max else f"tl.sum({part}, 1)"


def _result(pooling: Pooling, name: str, row: int) -> str:
    """A row of the result: a maximum, a sum of products, or a mean of the elements that count."""
    if pooling.is_max or pooling.has_factors:
        return name
    if pooling.counts_pads:
        return f"{name} / {float(prod(pooling.window))}"
    counts = []
    for dim in _names(pooling)[2:]:
        start = f"p{dim} + {row * pooling.strides[-2]}" if dim == "h" else f"p{dim}"
        extent, window = pooling.x[_DIM[dim]], pooling.window[_DIM[dim]]
        counts.append(f"(tl.minimum({start} + {window}, {extent}) - tl.maximum({start}, 0))")
    return f"{name} / ({' * '.join(counts)}).to(tl.float32)"
