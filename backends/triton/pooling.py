"""The kernel of a pooling, or of a convolution of each channel alone: a program computes a few rows of the result, for many
positions along its other dims.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator
from itertools import product
from math import prod

from mirage_eg.backends.launches.generated_ops import Pooling, poolings
from mirage_eg.backends.launches.launch_graph import Launch
from mirage_eg.backends.triton.generated_kernel import write_generated_kernel
from mirage_eg.backends.triton.op_table import NAN_MAX
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.windows import channels_last

_WARPS = 8
_ELEMENTS = 32 * _WARPS  # of each row of one program: with several a thread, each load of a warp has wide gaps
_CHANNELS = 4  # that a thread loads at once, channels last
_VECTORS = (2, 4)  # elements that a thread loads at once


def write_pooling(file: ProgramFile, launch: Launch) -> None:
    """Write the kernel of a pooling, and its launch."""
    pooling = poolings(file.graph)[launch.nodes[0]]

    def body(program: str, x: str, *others: str) -> list[str]:
        return [*_body(pooling, program, x, *others)]

    row = pooling.row_tile
    if row is None:
        programs, warps = -(-_positions(pooling) // _elements(pooling)), _WARPS
    else:
        programs, warps = _positions(pooling) // pooling.result[-1] * row.programs, max(1, row.columns // 32)
    write_generated_kernel(file, launch, _groups(pooling) * programs, body, [NAN_MAX] if pooling.is_max else [], warps)


def _elements(pooling: Pooling) -> int:
    """Positions of one program: several channels a thread where they follow each other in memory."""
    return _CHANNELS * _ELEMENTS if pooling.x_last else _ELEMENTS


def _groups(pooling: Pooling) -> int:
    """Programs along the rows of the result."""
    return -(-pooling.result[-2] // pooling.rows)


def _positions(pooling: Pooling) -> int:
    """Positions along the other dims."""
    return prod(pooling.result) // pooling.result[-2]


def _body(pooling: Pooling, number: str, x: str, *others: str) -> Iterator[str]:
    """The lines of the kernel: h is the first row of x, d and w the first plane and column of a window; `others` are the
    factors of a convolution, and the result."""
    *factors, y = others
    names = ("n", "c", "d", "h", "w") if len(pooling.x) == 5 else ("n", "c", "h", "w")
    orders = (channels_last if pooling.x_last else row_major, channels_last if pooling.result_last else row_major)
    shapes = pooling.x, pooling.result
    x_steps, y_steps = (dict(zip(names, order(shape), strict=True)) for order, shape in zip(orders, shapes, strict=True))
    place = {name: dim - len(names) for dim, name in enumerate(names)}  # from the end, as windows have it
    row, step = pooling.row_tile, 1
    yield f"program = {number}"
    yield f"i = program // {_groups(pooling)}"
    if row is None:
        yield f"i = i * {_elements(pooling)} + tl.arange(0, {_elements(pooling)})"
        yield f"inside = i < {_positions(pooling)}"
    else:
        yield f"first = i % {row.programs} * {row.parts * row.columns} + tl.arange(0, {row.columns})"
        yield f"i = i // {row.programs} + tl.zeros_like(first)"  # the interpreter spreads no condition
    yield f"row = program % {_groups(pooling)} * {pooling.rows} + tl.zeros_like(i)"
    for name in ("c", "w", "n") if pooling.x_last else [it for it in reversed(names) if it != "h"]:
        if row is not None and name == "w":
            continue
        extent = pooling.result[place[name]]
        yield f"{name} = i // {step}" + ("" if name == "n" else f" % {extent}")
        step *= extent
    into = " + ".join(f"{name} * {y_steps[name]}" for name in names if name not in "hw")
    yield f"into = {y} + {into} + row * {y_steps['h']}"
    for name in names[2:-1]:
        dim = place[name]
        yield f"{name} = {'row' if name == 'h' else name} * {pooling.strides[dim]} - {pooling.before[dim]}"
    if pooling.has_factors:
        yield f"factors = {factors[0]} + c * {prod(pooling.window)}"
        yield f"c = c // {pooling.results_of_channel}"
    yield f"above = {x} + {' + '.join(f'{name} * {x_steps[name]}' for name in names[:-1])}"
    for part in range(1 if row is None else row.parts):
        if row is not None:
            yield f"w = first + {part * row.columns}"
            yield f"inside = w < {pooling.result[-1]}"
        yield f"to = into + w * {y_steps['w']}"
        yield f"at = above + w * {pooling.strides[-1] * x_steps['w']}"  # aligned, as the first column of a window need not be
        yield f"w = w * {pooling.strides[-1]} - {pooling.before[-1]}"
        yield from _sums(pooling, names[2:-2], x_steps)
        for number_of_row in range(pooling.rows):
            mask = "inside"
            if pooling.result[-2] % pooling.rows:
                mask += f" & (row + {number_of_row} < {pooling.result[-2]})"
            yield f"tl.store(to + {number_of_row * y_steps['h']}, {_result(pooling, names[2:], number_of_row)}, mask={mask})"


def _sums(pooling: Pooling, outer: tuple[str, ...], steps: dict[str, int]) -> Iterator[str]:
    """The maxima or sums of the elements of each row of x, and of these for each row of the result; with factors, the sums of
    products for each row of the result."""
    begun = set[int]()
    users = {
        needed: [
            (row, at) for row in range(pooling.rows) for at in range(pooling.window[-2]) if pooling.row_of(row, at) == needed
        ]
        for needed in pooling.needed
    }
    other = 'float("-inf")' if pooling.is_max else "0.0"
    for planes in product(*(range(pooling.window[dim]) for dim in range(-2 - len(outer), -2))):
        moved = {name: at * pooling.dilations[-3] for name, at in zip(outer, planes, strict=True)}
        if pooling.has_factors:
            first = sum(planes) * prod(pooling.window[-2:])  # of at most one plane
            for place in range(prod(pooling.window[-2:])):
                yield f"factor{place} = tl.load(factors + {first + place}, mask=inside).to(tl.float32)"
        for needed, rows in users.items():
            moved["h"] = needed
            parts = []
            for column, count in _runs(pooling):
                moved["w"] = column * pooling.dilations[-1]
                step = sum(more * steps[name] for name, more in moved.items()) - pooling.before[-1] * steps["w"]
                bounds = [bound for name, more in moved.items() for bound in _bounds(pooling, name, more)]
                fill = (
                    f", other={other}" if bounds else ""
                )  # without bounds only positions beyond the image lack a value; these have no store
                where, mask = f"at + {step}", " & ".join(["inside", *bounds])
                if count > 1:
                    where, mask = f"({where})[:, None] + tl.arange(0, {count})[None, :]", f"({mask})[:, None]"
                part = f"tl.load({where}, mask={mask}{fill}).to(tl.float32)"
                parts.append(part if count == 1 else _of_neighbours(pooling, part))
            if pooling.has_factors:
                for column, part in enumerate(parts):
                    yield f"line = {part}"
                    for row, at in rows:
                        term = f"line * factor{at * len(parts) + column}"
                        yield f"sum{row} = " + (f"sum{row} + {term}" if row in begun else term)
                        begun.add(row)
                continue
            yield f"line = {parts[0]}"
            yield from (f"line = {_joined(pooling, 'line', part)}" for part in parts[1:])
            for row, _ in rows:
                yield f"sum{row} = " + (_joined(pooling, f"sum{row}", "line") if row in begun else "line")
                begun.add(row)


def _runs(pooling: Pooling) -> Iterator[tuple[int, int]]:
    """The columns of a window, and how many neighbours are loaded at once: as many as windows are apart, if they are aligned.

    Then the threads of a warp read without gaps. Such neighbours are all in the image, or none.
    """
    step, window, column = pooling.strides[-1], pooling.window[-1], 0
    is_aligned = (
        not (pooling.has_factors or pooling.x_last)
        and step in _VECTORS
        and pooling.dilations[-1] == 1
        and pooling.x[-1] % step == 0
    )
    while column < window:
        together = is_aligned and (column - pooling.before[-1]) % step == 0 and column + step <= window
        yield column, step if together else 1
        column += step if together else 1


_DIM = {"d": -3, "h": -2, "w": -1}


def _bounds(pooling: Pooling, name: str, more: int) -> Iterator[str]:
    """The conditions that x has the element `more` indices behind the first one of a window: those that may fail."""
    dim = _DIM[name]
    before, stride = pooling.before[dim], pooling.strides[dim]
    last = (_groups(pooling) - 1) * pooling.rows if name == "h" else pooling.result[dim] - 1
    if more < before:
        yield f"({name} + {more} >= 0)"
    if last * stride - before + more >= pooling.x[dim]:
        yield f"({name} + {more} < {pooling.x[dim]})"


def _joined(pooling: Pooling, one: str, other: str) -> str:
    return f"{NAN_MAX}({one}, {other})" if pooling.is_max else f"{one} + {other}"


def _of_neighbours(pooling: Pooling, part: str) -> str:
    return f"tl.reduce({part}, 1, {NAN_MAX})" if pooling.is_max else f"tl.sum({part}, 1)"


def _result(pooling: Pooling, names: tuple[str, ...], row: int) -> str:
    """A row of the result: a maximum, a sum of products, or a mean of the elements that count."""
    if pooling.is_max or pooling.has_factors:
        return f"sum{row}"
    if pooling.counts_pads:
        return f"sum{row} / {float(prod(pooling.window))}"
    counts = []
    for name in names:
        start = f"{name} + {row * pooling.strides[-2]}" if name == "h" else name
        extent, window = pooling.x[_DIM[name]], pooling.window[_DIM[name]]
        counts.append(f"(tl.minimum({start} + {window}, {extent}) - tl.maximum({start}, 0))")
    return f"sum{row} / ({' * '.join(counts)}).to(tl.float32)"
