"""The layouts of the values between kernels: dims from the slowest to the fastest, with their writers and readers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.optimizer.layouts import Access, access_us, accesses, laid_out
from mirage_eg.report import svg
from mirage_eg.report.draw import kernel_numbers

_MARGIN, _ROW, _GAP = 16.0, 22.0, 14.0


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """One value: its dims of more than one element from slowest to fastest, its accesses, and their microseconds."""

    name: str
    shape: Shape
    order: tuple[int, ...]
    chosen: bool  # not row-major
    us: float
    row_major_us: float
    accesses: tuple[str, ...]


def value_layouts(graph: Graph, device: Device) -> Iterator[ValueLayout]:
    """The values of a kernel graph that generated kernels write and read, with their layouts."""
    numbers = kernel_numbers(graph)
    for value, strides in laid_out(graph).items():
        kind = graph.types[value]
        long = [dim for dim, extent in enumerate(kind.shape) if extent > 1]
        texts = dict.fromkeys(
            f"kernel {numbers[access.kernel]} {'writes' if access.writes else 'reads'} tiles of {_times(access.tile)} "
            f"in {_runs(access)}"
            for access in accesses(graph, value, strides)
        )
        plain = row_major(kind.shape)
        yield ValueLayout(
            f"t{value}",
            kind.shape,
            tuple(sorted(long, key=lambda dim: -strides[dim])),
            any(strides[dim] != plain[dim] for dim in long),
            access_us(graph, value, strides, device),
            access_us(graph, value, plain, device),
            tuple(texts),
        )


def _runs(access: Access) -> str:
    if access.run == prod(access.tile):
        return "one run"
    return f"runs of {access.run:,} elements" if access.run > 1 else "single elements"


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def layouts_svg(graph: Graph, device: Device) -> str:
    """The layouts as SVG; a note if no generated kernel reads the value of another."""
    values = list(value_layouts(graph, device))
    heads = [f"{one.name}  {_times(one.shape)}" for one in values]
    left = _MARGIN + max(map(len, heads), default=0) * svg.LETTER + 20
    box = 16 + svg.LETTER * max((len(_dim(one, dim)) for one in values for dim in one.order), default=0)
    boxes = left + box * max((len(one.order) for one in values), default=0)
    width = max(
        [_MARGIN * 2 + svg.LETTER * len(_CAPTION), 480.0]
        + [boxes + 12 + svg.LETTER * len(_price(one)) + _MARGIN for one in values]
        + [left + svg.LETTER * len(words) + _MARGIN for one in values for words in one.accesses]
    )
    parts = [svg.write(_MARGIN, 24, "layouts of values between kernels", bold=True)]
    parts.append(
        svg.write(_MARGIN, 44, _CAPTION if values else "no generated kernel reads the value of another", colour="muted")
    )
    y = 60.0
    for one, head in zip(values, heads, strict=True):
        parts.append(svg.write(_MARGIN, y + 16, head, bold=True))
        for i, dim in enumerate(one.order):
            x = left + box * i
            parts.append(svg.rectangle(x, y, box - 2, 24, "loop" if one.chosen else "frame", round=3))
            parts.append(svg.write(x + box / 2 - 1, y + 16, _dim(one, dim), anchor="middle"))
        parts.append(svg.write(left + box * len(one.order) + 12, y + 16, _price(one)))
        y += 24
        for words in one.accesses:
            parts.append(svg.write(left, y + 16, words, colour="muted"))
            y += _ROW
        y += _GAP
    return svg.picture(width, max(y, 60.0), "".join(parts), "layouts")


_CAPTION = "dims from slowest to fastest; coloured if not row-major; times of all accesses"


def _dim(one: ValueLayout, dim: int) -> str:
    return f"dim {dim}: {one.shape[dim]:,}"


def _price(one: ValueLayout) -> str:
    saved = f", {one.row_major_us:.2f} row-major" if one.chosen else ""
    return f"{one.us:.2f} µs{saved}"
