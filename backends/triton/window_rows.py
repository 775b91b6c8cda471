"""Convolutions of few channels in an emitted program: a kernel that copies windows into the rows of a matrix, and a product.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator

from mirage_eg.backends.launches.few_channels import WindowProduct
from mirage_eg.backends.triton.generated_kernel import write_lines
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.tiles import power_of_two
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.weights import marked_weights

_COLUMNS, _ELEMENTS = 64, 2048  # most columns of a tile, and its elements


def write_windows(file: ProgramFile, windows: WindowProduct, value: int) -> str:
    """Write the kernel of the windows of a convolution; gives the call of the product, an image channels last."""
    image, weight = windows.item.operands
    shape = (windows.rows, windows.columns)
    rows = file.add_value(TensorType(shape, file.types[image].dtype), f"{file.names[value]}_windows")
    file.buffers.append(file.write(rows))
    arguments = {"y0_ptr": rows, "x0_ptr": image}
    columns = min(_COLUMNS, power_of_two(windows.columns))
    tile = _ELEMENTS // columns, columns
    programs = -(-windows.rows // tile[0]) * -(-windows.columns // tile[1])
    write_lines(file, programs, _lines(file, windows, value, tile), arguments, file.names[rows])
    images, filters, *plane = file.types[value].shape
    result = f"({images}, {plane[0]}, {plane[1]}, {filters})"
    return f"torch.matmul({file.names[rows]}, {_matrix(file, windows, weight)}).reshape({result}).permute(0, 3, 1, 2)"


def _lines(file: ProgramFile, windows: WindowProduct, value: int, tile: tuple[int, int]) -> Iterator[str]:
    """The lines of the kernel: a tile of rows, each the window at a place of an image, by terms of channel, row and column."""
    item, (height, width) = windows.item, file.types[value].shape[2:]
    image, (_, channels, window_height, window_width) = item.operands[0], file.types[item.operands[1]].shape
    of_image, of_channel, of_row, of_column = file.strides[image]
    extents = file.types[image].shape[2:]
    parts = -(-windows.columns // tile[1])
    yield f"row = program // {parts} * {tile[0]} + tl.arange(0, {tile[0]})"
    yield f"column = program % {parts} * {tile[1]} + tl.arange(0, {tile[1]})"
    yield f"y = row // {width} % {height} * {item['strides'][0]} - {item['pads'][0]}"
    yield f"x = row % {width} * {item['strides'][1]} - {item['pads'][1]}"
    yield f"i = column // {window_width} % {window_height} * {item['dilations'][0]}"
    yield f"j = column % {window_width} * {item['dilations'][1]}"
    offset = file.placement.offsets.get(image, 0)
    yield f"place = row // {width * height} * {of_image} + y * {of_row} + x * {of_column} + {offset}"
    yield f"term = column // {window_width * window_height} * {of_channel} + i * {of_row} + j * {of_column}"
    yield f"there = (row < {windows.rows})[:, None] & (column < {channels * window_height * window_width})[None, :]"
    yield "y = y[:, None] + i[None, :]"
    yield "x = x[:, None] + j[None, :]"
    yield f"there = there & (y >= 0) & (y < {extents[0]}) & (x >= 0) & (x < {extents[1]})"
    yield "block = tl.load(x0_ptr + (place[:, None] + term[None, :]), mask=there, other=0)"
    inside = f"(row < {windows.rows})[:, None] & (column < {windows.columns})[None, :]"
    yield f"tl.store(y0_ptr + (row[:, None] * {windows.columns} + column[None, :]), block, mask={inside})"


def _matrix(file: ProgramFile, windows: WindowProduct, weight: int) -> str:
    """The text of the filters as a matrix; `prepare` computes that of weights."""
    filters, terms = file.types[weight].shape[0], windows.terms
    rows = f"{file.names[weight]}.reshape({filters}, {terms})"
    call = f"torch.nn.functional.pad({rows}, (0, {windows.columns - terms}))" if windows.columns > terms else rows
    if weight not in marked_weights(file.graph) | file.prepared:
        return f"{call}.t()"
    if weight not in file.filters:
        kind = TensorType((filters, windows.columns), file.types[weight].dtype)
        laid = file.filters[weight] = file.add_value(kind, f"{file.names[weight]}_rows")
        file.preparation.append(f"    {file.names[laid]} = {call}.contiguous()")
    return f"{file.names[file.filters[weight]]}.t()"
