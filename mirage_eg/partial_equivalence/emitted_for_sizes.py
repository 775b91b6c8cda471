"""One emitted program of a corrected mutant for all sizes of a named dim: the size is an argument of its kernels.

The program is written at many sizes: at every one of a short range. The texts may differ in their numbers alone. A number that
differs is an affine expression of the size, or counts the tiles of such a number of elements.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import gcd

from mirage_eg.backends.triton.emit import emit, size_name
from mirage_eg.ir.at_sizes import at_sizes, sizes_of
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim, read_dims
from mirage_eg.partial_equivalence.all_sizes import SizedMutant
from mirage_eg.partial_equivalence.parts import linear_parts, replaced
from mirage_eg.partial_equivalence.size_families import NamedExtent, with_fixed_sizes

Line = tuple[int, int]  # constant and slope
Written = tuple[list[str], list[int]]  # what is between the numbers of a text, and the numbers

MOST_RANGES = 12
EVERY = 256  # sizes, the least ones, at each of which the text is compared
TILES = tuple(1 << power for power in range(1, 13))  # elements that a program may compute
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_TILE = re.compile(r"tl\.(?:arange|zeros|full)\(.*?\)")  # with numbers that no argument may give
FIXED = "_"  # before these numbers
_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\[[\d, ]*\] \w+$)", re.MULTILINE)  # of the graph in the header

_CHECK = '''
# name: (input, its dim, least, largest, step)
SIZES = {{"{name}": ({place}, {dim}, {least}, {largest}, {step})}}


def layouts({name}):
    """Inputs, and what the kernels write: name: (shape, element type, strides in elements)."""
    inputs = {inputs}
    buffers = {buffers}
    return inputs, buffers


def check(arrays, {name}):
    _, _, least, largest, step = SIZES["{name}"]
    if {name} not in range(least, largest + 1, step):
        raise ValueError(f"size {name}: got {{{name}}}, wanted {{least}}, {{least + step}}, … {{largest}}")
    for (name, (shape, _, strides)), array in zip(layouts({name})[0].items(), arrays):
        if tuple(array.shape) != shape:
            raise ValueError(f"argument {{name}}: got shape {{tuple(array.shape)}}, wanted {{shape}}")
        if any(have != want and extent > 1 for have, want, extent in zip(array.stride(), strides, shape)):
            raise ValueError(f"argument {{name}}: got strides {{array.stride()}}, wanted {{strides}}")
'''


def at_size(sized: SizedMutant, size: int) -> tuple[Graph, Graph]:
    """The whole program at a size of the named dim, and the one with the corrected mutant."""
    family, (part, corrected) = sized.family, sized.at(size)
    if not isinstance(family, NamedExtent) or family.node is None:
        return part, corrected
    program = with_fixed_sizes(at_sizes(family.program, sizes_of(family.program) | {family.name: size}))
    [place] = [it for it in linear_parts(program) if family.node in it.nodes]
    return program, replaced(program, place, corrected)


def emit_for_all_sizes(sized: SizedMutant, dim: Dim) -> list[str]:
    """The sources of a program with a corrected mutant for all sizes of `dim` that it serves, one for each range of sizes.

    The range is in the table SIZES. A kernel has smaller tiles for few elements, so that small sizes may have sources of their
    own; the first source is that of the largest ones.

    Raises:
        UnsupportedError: no such sizes, or a text that depends on the size otherwise.
    """
    given = range(sized.sizes.least, dim.max + 1, sized.sizes.multiple_of)
    sizes = [size for size in given if size >= dim.min and not size % dim.multiple_of]
    if not sizes:
        raise UnsupportedError(f"no program for all {dim.name}: got a statement for none of its sizes")
    step = sizes[1] - sizes[0] if len(sizes) > 1 else 1
    left = sizes if len(sizes) <= EVERY else [*sizes[:EVERY], *_spread(sizes[EVERY:])]
    written, found = {size: _written(sized, size) for size in left}, list[str]()
    while left:
        count, text = _general_text(written, left, step, size_name(dim.name))
        between = [size for size in sizes if left[-count - 1] < size < left[-count]] if count < len(left) else []
        if between:  # sizes that are not compared: the range begins at one of them
            middle = between[len(between) // 2]
            written[middle] = _written(sized, middle)
            left.insert(len(left) - count, middle)
            continue
        found.append(_with_size(text, sized, dim, (left[-count], left[-1], step)))
        left = left[:-count]
        if len(found) > MOST_RANGES:
            raise UnsupportedError(f"no program for all {dim.name}: got other kernels at most of them, as at {left[-1]}")
    return found


def _spread(sizes: Sequence[int]) -> Iterator[int]:
    """Sizes of a long range, ever farther apart, and the last ones."""
    place = 0
    while place < len(sizes) - 3:
        yield sizes[place]
        place += max(1, place // 4)
    yield from sizes[-3:]


def _general_text(written: Mapping[int, Written], sizes: Sequence[int], step: int, name: str) -> tuple[int, str]:
    """The most of the largest sizes that have one text, and this text, with expressions of size // step for its numbers.

    Raises:
        UnsupportedError: the name of the size is taken.
    """
    between, _ = written[sizes[-1]]
    if any(re.search(rf"\b{name}\b", text) for text in between):
        raise UnsupportedError(f"no program for all {name}: got another value of this name")
    most = next((count for count, size in enumerate(reversed(sizes)) if written[size][0] != between), len(sizes))

    def numbers(count: int) -> list[str] | None:
        rows = {size // step: written[size][1] for size in sizes[-count:]}
        columns = [dict(zip(rows, column, strict=True)) for column in zip(*rows.values(), strict=True)]
        affine = {line for column in columns if (line := _line(column)) is not None}
        found = list[str]()
        for column in columns:
            text = _expression(column, affine, name if step == 1 else f"({name} // {step})")
            if text is None:
                return None
            found.append(text)
        return found

    fits = bisect_left(range(1, most + 1), True, key=lambda count: numbers(count) is None) or 1  # fewer sizes fit if more do
    texts = numbers(fits)
    assert texts is not None, "one size has constants"
    text = "".join([between[0], *(it for pair in zip(texts, between[1:], strict=True) for it in pair)])
    return fits, _TILE.sub(lambda found: re.sub(rf"\b{FIXED}(?=\d)", "", found[0]), text)


def _line(column: Mapping[int, int]) -> Line | None:
    """The affine function with these values; None if there is none."""
    if len(column) == 1:
        return next(iter(column.values())), 0
    (x, first), (y, second), *_ = column.items()
    slope = (second - first) // (y - x)
    line = first - slope * x, slope
    return line if all(number == line[0] + slope * size for size, number in column.items()) else None


def _expression(column: Mapping[int, int], affine: Collection[Line], size: str) -> str | None:
    """The numbers at all sizes as an expression: affine, or of the tiles of an affine number; None if it is neither."""
    if (line := _line(column)) is not None:
        return _affine(*line, size)
    first = next(iter(column))
    times = gcd(*(number - column[first] for number in column.values()))
    for constant, slope in sorted(affine, reverse=True):  # programs beyond the last element do nothing
        for tile in TILES if slope else ():
            tiles = {at: -(-(constant + slope * at) // tile) for at in column}
            rest = column[first] - times * tiles[first]
            if all(number == rest + times * tiles[at] for at, number in column.items()):
                counted = f"(({_affine(constant, slope, size)} + {tile - 1}) // {tile})"
                return f"({times} * {counted} + {rest})" if rest else f"({times} * {counted})" if times > 1 else counted
    return None


def _affine(constant: int, slope: int, size: str) -> str:
    """constant + slope · size as an expression of Python."""
    if not slope:
        return str(constant)
    times = size if slope == 1 else f"{slope} * {size}"
    if not constant:
        return times if slope == 1 else f"({times})"
    return f"({times} {'+' if constant > 0 else '-'} {abs(constant)})"


def _written(sized: SizedMutant, size: int) -> Written:
    """The text of the program at a size: what is between its numbers, and the numbers."""
    text = _COLUMNS.sub(" ", emit(at_size(sized, size)[1]))
    text = _TILE.sub(lambda found: re.sub(r"(?=\b\d)", FIXED, found[0]), text)
    return _NUMBER.split(text), [int(number) for number in _NUMBER.findall(text)]


def _with_size(text: str, sized: SizedMutant, dim: Dim, sizes: tuple[int, int, int]) -> str:
    """The text with the size as an argument of its functions and kernels.

    Raises:
        UnsupportedError: buffers that share memory.
    """
    if "\nARENA = " in text or "\nPREPARED = " in text:
        raise UnsupportedError(f"no program for all {dim.name}: got buffers that share memory, or prepared weights")
    name, (place, position, argument) = size_name(dim.name), _first_input(sized, dim.name)
    tables: dict[str, str] = {}
    for table in ("INPUTS", "BUFFERS"):
        found = re.search(rf"\n(?:# [^\n]*\n)?{table} = (\{{.*?\n\}})\n", text, re.DOTALL)
        tables[table] = "{}" if found is None else found[1].replace("\n", "\n    ")
        text = text if found is None else text.replace(found[0], "\n", 1)
    least, largest, step = sizes
    given = {"name": name, "place": place, "dim": position, "least": least, "largest": largest, "step": step}
    header = _CHECK.format(**given, inputs=tables["INPUTS"], buffers=tables["BUFFERS"])
    for kernel in re.findall(r'^    "(\w+)": \("\*', text, re.MULTILINE):
        text = re.sub(rf"^(def {kernel}\(.*)\):$", rf"\1, {name}):", text, count=1, flags=re.MULTILINE)
        text = re.sub(rf'^(    "{kernel}": \(.*?),?\),$', r'\1, "i32"),', text, count=1, flags=re.MULTILINE)
        text = text.replace(f', **OPTIONS["{kernel}"]', f', {name}, **OPTIONS["{kernel}"]')
    text = re.sub(r"^def launch\((.*?)(, torch)?\):$", rf"def launch(\1, {name}\2):", text, count=1, flags=re.MULTILINE)
    text = text.replace("def allocate(device):", f"def allocate(device, {name}):").replace(".device)", f".device, {name})")
    text = text.replace("BUFFERS.values()", f"layouts({name})[1].values()")
    start, run = text.index("\ndef launch("), text.index("\ndef run(")
    own, body = text[run:].split("    return launch(", 1)
    arguments = re.match(r"def run\((.*?)(?:, buffers=None)?\):", own.strip())
    assert arguments is not None, own
    taken = f"    {name} = {argument}.shape[{position}]\n    check(({arguments[1]},), {name})\n"
    body = (
        re.sub(r"(, torch=torch)?\)", rf", {name}\1)", body, count=1) if "allocate" not in body else _with_buffers(body, name)
    )
    return f"{text[:start]}{header}\n{text[start:run]}{own}{taken}    return launch({body}"


def _with_buffers(body: str, name: str) -> str:
    """The arguments of `launch` after new or given buffers, with the size."""
    before, after = body.split("))", 1)
    return f"{before})), {name}{after}" if not after.startswith(")") else f"{before})){name}{after}"


def _first_input(sized: SizedMutant, name: str) -> tuple[int, int, str]:
    """The place of the first input with the dim, the dim's place there, and the input's name.

    Raises:
        UnsupportedError: no statement about a named dim.
    """
    if not isinstance(sized.family, NamedExtent):
        raise UnsupportedError(f"got a statement about a dim without a name, wanted one about {name}")
    for place, item in enumerate(sized.family.program.inputs):
        for position, dim in enumerate(read_dims(item.get("dims"), len(item["shape"]))):
            if dim is not None and dim.name == name:
                return place, position, str(sized.family.program.input_names[place])
    raise UnsupportedError(f"got no input with the dim {name}")


__all__ = ["at_size", "emit_for_all_sizes"]
