"""The elementwise ops behind a convolution, in its kernel.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Iterator, Mapping

from mirage_eg.backends.launches.implicit_products import ConvolutionKernel
from mirage_eg.backends.triton.op_table import ELEMENTWISE, triton_attributes
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.storage import is_widening
from mirage_eg.backends.triton.windows import Load
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.shapes import Shape


def ops_behind(
    file: ProgramFile, kernel: ConvolutionKernel, laid: Mapping[int, int], pointers: Mapping[int, str], sums: Mapping[str, Load]
) -> Iterator[str]:
    """The lines that assign the result of the ops to each of the `sums`, whose positions its load reads; smaller tensors are
    broadcast.

    `laid`: the copies of image and weight that the kernel reads; `pointers` are those of what it reads. What has a number of
    each channel alone is computed once. All ops compute in float32; a cast to a narrower type rounds.
    """
    graph, inside = file.graph, {*kernel.nodes}
    [[convolved]] = (values for place, (_, values) in enumerate(graph.numbered()) if place == kernel.nodes[0])
    shared, lines, count = dict[tuple[int, Shape], str](), list[str](), 0

    def named(value: int, shape: Shape, names: dict[tuple[int, Shape], str], load: Load) -> str:
        """The name of a value with this shape, which a reshape may give a number of each channel."""
        nonlocal count
        if (name := shared.get((value, shape), names.get((value, shape)))) is not None:
            return name
        item, own = graph.node_of[value], graph.types[value].shape
        if graph.makers[value] not in inside:
            read = laid.get(value, value)
            steps = _spread_steps(own, file.strides[read], shape, len(graph.types[convolved].shape))
            text, is_shared = load(steps, pointers[read]), not any((steps[0], *steps[2:]))
        elif item.op in RESHAPES or is_widening(graph, item):
            return named(item.operands[0], shape, names, load)
        else:
            shapes = [graph.types[operand].shape for operand in item.operands]
            shapes = [shape if shape != own and max(each, default=1) > 1 else each for each in shapes]
            operands = [named(operand, each, names, load) for operand, each in zip(item.operands, shapes, strict=True)]
            rounded = ".to(tl.float32)" if item.op in CASTS else ""
            text = ELEMENTWISE[item.op].triton(operands, triton_attributes(item, DType.float32)) + rounded
            is_shared = {*operands} <= {*shared.values()}
        name, count = f"value{count}", count + 1
        lines.append(f"{name} = {text}")
        (shared if is_shared else names)[value, shape] = name
        return name

    for name, load in sums.items():
        names = {(convolved, graph.types[convolved].shape): name}
        last = named(kernel.value, graph.types[kernel.value].shape, names, load)
        lines += [] if last == name else [f"{name} = {last}"]
    yield from lines


def _spread_steps(own: Shape, strides: Shape, shape: Shape, rank: int) -> list[int]:
    """The steps of a tensor along image, channel and three dims of the result, with another `shape` of as many elements."""
    steps = [0 if extent == 1 else step for extent, step in zip(own, strides, strict=True)]
    if shape != own:
        steps = [0 if extent == 1 else max(steps) for extent in shape]
    steps = [0] * (rank - len(steps)) + steps
    return [*steps[:2], *[0] * (5 - rank), *steps[2:]]
