"""The roofline cost of a µGraph: per kernel the slowest of its resources, plus the launch (docs/explanation/optimizer.md).

A library kernel moves its operands and result once, and costs as many launches as measured library kernels of its kind.

The model is crude on purpose: it ranks candidates before they are timed, and replaces timing without a GPU.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, hypot, prod

from mirage_eg.backends.cost.block_cost import (
    REGISTER,
    BlockWork,
    Cost,
    Orders,
    block_cost,
    block_work,
    busy_blocks,
    cost_of_times,
)
from mirage_eg.backends.cost.copies import bytes_of_copies, reordered_bytes
from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.library_products import (
    MOVED,
    MOVED_BY_ELEMENTS,
    MOVED_ROWS,
    ODD,
    UNALIGNED,
    converted_bytes,
    convolution_steps,
    library_work,
    repeated_bytes,
)
from mirage_eg.backends.cost.library_traffic import rows_of, tiles_of, waits_of
from mirage_eg.backends.cost.live_iterations import causal_share, live_share
from mirage_eg.backends.cost.lower_bound import PRODUCTS
from mirage_eg.backends.cost.tile_ops import functions_of
from mirage_eg.backends.cost.user_cost import PricedDevice
from mirage_eg.backends.launches.aligned_rows import UnalignedProduct, row_major_results, unaligned_products
from mirage_eg.backends.launches.attention import LibraryAttention
from mirage_eg.backends.launches.generated_ops import WindowOp, poolings, scans
from mirage_eg.backends.launches.image_layouts import has_channels_last, is_channels_last_convolution
from mirage_eg.backends.launches.implicit_products import implicit_products
from mirage_eg.backends.launches.launch_graph import Launch, LaunchKind, launches_of
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.ir.biased_product import BiasedProduct
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import to_a_type
from mirage_eg.ir.op.library import ORDERS
from mirage_eg.ir.op.moves import TRANSPOSES
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape, row_major
from mirage_eg.ir.weights import marked_weights, prepared_values

LONG_ROW = 48 << 10  # bytes: a longer row is read three times by the library's softmax, which has it in shared memory else


@dataclass(frozen=True, slots=True)
class KernelWork:
    """A kernel as the cost model sees it on every device: `work` of each of its `blocks`, None for a library kernel.

    `op` is "copy" for several concatenations in one launch, "pool", "convolution", "scan" and "top-k" for generated ones.
    `steps`: of the loop of a library convolution, of a thread of one of each channel, and the elements that a top-k finds.
    `functions`: exponentials of a library kernel, half of which overlap with products. `copied`: bytes that copies of a library
    kernel's result or operands move. `loads`: elements that a pooling or a convolution loads. `tiles`: thread blocks of a
    library product, norm or softmax; 0 of other kernels. `waits`: the time of other library kernels in times of their traffic.
    """

    op: str
    dram: int
    flops: int = 0
    slowdown: float = 1.0
    work: "BlockWork | None" = None
    blocks: int = 1
    loop: int = 1
    steps: float = 0
    functions: int = 0
    copied: int = 0
    loads: int = 0
    waits: float = 1.0
    tiles: int = 0


def kernel_works(graph: Graph) -> tuple[KernelWork, ...]:
    """The kernels of a kernel graph that are launched, in order."""
    works: dict[tuple[Graph, float, Orders], BlockWork] = {}  # of each different block graph
    kernels = [(launch, _kernel_work(graph, launch, works)) for launch in launches_of(graph).kernels]
    return tuple(replace(it, copied=it.copied + reordered_bytes(graph, launch)) for launch, it in kernels)


def _kernel_work(graph: Graph, launch: Launch, works: dict[tuple[Graph, float, Orders], BlockWork]) -> KernelWork:
    item, result = graph.nodes[launch.nodes[0]], launch.results[-1]
    dram = _read_bytes(graph, launch.operands) + sum(graph.types[value].nbytes for value in launch.results)
    match launch:
        case Launch(call=LibraryAttention() as attention):
            return attention_work(attention, dram)
        case Launch(kind=LaunchKind.CONCATENATION):
            return KernelWork("copy", sum(bytes_of_copies(graph, graph.nodes[position]) for position in launch.nodes))
        case Launch(kind=LaunchKind.POOLING):
            return _window_work(poolings(graph)[launch.nodes[0]], dram)
        case Launch(kind=LaunchKind.IMPLICIT_PRODUCT):
            return _convolution_work(graph, launch, dram)
        case Launch(kind=LaunchKind.SCAN):
            [scan] = (it for it in scans(graph) if it.nodes == launch.nodes)
            apart = scan.is_reversed or scan.start > 0 or scan.first is not None  # elements are moved one by one
            return KernelWork("scan", dram, waits=max(1.0, REGISTER / graph.types[result].dtype.itemsize) if apart else 1.0)
        case Launch(kind=LaunchKind.TOP_K):
            [count] = (graph.nodes[it]["count"] for it in launch.nodes if graph.nodes[it].op in ORDERS)
            return KernelWork("top-k", dram, steps=count)
        case Launch(kind=LaunchKind.BLOCK):
            block: Graph = item["graph"]
            key = block, live_share(graph, item), orders_of(graph, item, launch.results)
            if key not in works:
                works[key] = block_work(*key)
            return KernelWork(item.op, dram, work=works[key], blocks=prod(block.grid) * busy_blocks(block), loop=block.loop)
    if item.op in PRODUCTS:
        product = launch.results[0] if launch.call is None else launch.call.values[0]
        work = product_work(graph, item, result, dram, unaligned_products(graph).get(product))
        activation = launch.call.activation if isinstance(launch.call, BiasedProduct) else ""
        functions = int(functions_of(activation, {}) * prod(graph.types[result].shape)) if activation else 0
        return replace(work, functions=functions)
    if OPS[item.op].indices is not None and len(item.operands) == 2:  # reads as much as it writes, and the indices
        dram = 2 * graph.types[result].nbytes + graph.types[item.operands[1]].nbytes
    if item.op in SOFTMAXES and graph.types[result].shape[item["dim"]] * graph.types[result].dtype.itemsize > LONG_ROW:
        dram += 2 * graph.types[result].nbytes
    each = functions_of(item.op, item.mapping, by_torch=True) if item.kind is Kind.ELEMENTWISE else 0
    functions = int(each * prod(graph.types[result].shape))
    tiles = rows_of(item, graph.types[result].shape)
    return KernelWork(item.op, dram, tiles=tiles, waits=waits_of(graph, item, result), functions=functions)


def _read_bytes(graph: Graph, values: Iterable[int]) -> int:
    """The bytes of these values; what several of them show of one value is read once."""
    views, shown = placement_of(graph).views, Counter[int]()
    for value in values:
        shown[views[value].base if value in views else value] += graph.types[value].nbytes
    return sum(min(nbytes, graph.types[base].nbytes) for base, nbytes in shown.items())


def orders_of(graph: Graph, item: Node, results: Iterable[int]) -> Orders:
    """How the operands and the results of a kernel are in memory; a row-major intermediate may be laid out by a later pass."""
    strides = placement_of(graph).strides

    def stored(result: int) -> Shape | None:
        shape = graph.types[result].shape
        if strides[result] == row_major(shape):
            return () if result in row_major_results(graph) else None
        return tuple(sorted(range(len(shape)), key=lambda dim: -strides[result][dim]))

    loaded = (None if (own := strides[it]) == row_major(graph.types[it].shape) else own for it in item.operands)
    return Orders(tuple(map(stored, results)), tuple(loaded))


def _window_work(op: WindowOp, dram: int) -> KernelWork:
    sums = op.rows * op.columns * op.vector * prod(op.window) if op.has_factors else 0
    return KernelWork("pool", dram, loads=op.elements, steps=_FEW_LOADS + sums / _OF_STEP if sums else 0)


def _convolution_work(graph: Graph, launch: Launch, dram: int) -> KernelWork:
    """The products of a generated convolution, and the elements of windows that its programs load."""
    [product] = (it.product for it in implicit_products(graph) if it.nodes == launch.nodes)
    if isinstance(product, WindowOp):
        return replace(_window_work(product, dram), copied=converted_bytes(graph, graph.nodes[launch.nodes[0]]))
    slowdown, size = 1.0 if product.is_half else _IN_FLOAT32, prod(product.result)
    ops = [graph.numbered()[it] for it in launch.nodes[1:]]
    of_images = [it for it, values in ops if prod(graph.types[values[0]].shape) == size]  # others are of a row of each tile
    behind = sum(functions_of(it.op, it.mapping) for it in of_images if it.kind is Kind.ELEMENTWISE)
    if product.is_small:
        item, steps = graph.nodes[launch.nodes[0]], _STEP * (1 + product.terms.rows / 128) * product.loop / product.parts
        parts = 0 if product.parts == 1 else 8 * product.parts * prod(product.result)
        dram, copied = dram + _filter_bytes(graph, item), converted_bytes(graph, item) + parts
        return KernelWork("convolution", dram, 2 * product.gathered * product.tile, steps=steps, copied=copied)
    functions = (behind + (_APART if product.steps[-1] > 1 else 0)) * size
    flops, weight = 2 * product.gathered * product.tile, graph.nodes[launch.nodes[0]].operands[1]
    is_copied = product.copies_filter and weight not in marked_weights(graph) | prepared_values(graph)
    copied = 2 * graph.types[weight].nbytes if is_copied else 0
    loads = product.gathered
    if product.is_padded:
        image = graph.types[graph.nodes[launch.nodes[0]].operands[0]]
        loads, copied = int(_OF_PIXELS * loads), copied + image.nbytes + prod(product.padded.x) * image.dtype.itemsize
    return KernelWork("convolution", dram, flops, slowdown, loads=loads, functions=int(functions), copied=copied)


_STEP = 0.7
"""Iterations of a generated kernel in the time of a step of a small convolution, and as many for 128 terms: with 64 a step took
0.18 µs on an H200, with 128 it took 0.24 to 0.31, where an iteration takes 0.19."""
_IN_FLOAT32 = 3.0  # products in bfloat16 of one in float32
_GATHERED, _PARTED = 13, 28
"""Arithmetic operations in the time of a load of an implicit product, and with parts in bfloat16. With its products and its
traffic ten convolutions of KernelBench's level 1 take 0.97 to 1.11 of their times on an H200, 352 to 2,707 µs."""
_OF_PIXELS = 0.44
"""The time of an element of a pixel of four, in loads of single ones. With the copies of their images four convolutions with
windows of 5 × 5 to 11 × 11 take 1.01 to 1.22 of their predicted times on an H200, 73 to 877 µs."""
_APART = 6.3
"""Exponentials in the time of a store of a single element. The positions of a phase of a transposed convolution are apart in
its result: with steps of 3 one took 1,543 µs on an H200 for 202 million elements in float32, of which 530 are without this."""
_CHOICE_US = 0.15  # of one element of a row, by the latency of two reductions
_FEW_LOADS, _OF_STEP = 4, 130  # iterations in the time of a thread's first loads, and its products in that of an iteration
_POOLED = 7  # arithmetic operations in the time of a load from the first cache: poolings of 8 to 99 loads on an H200


def attention_work(attention: LibraryAttention, dram: int) -> KernelWork:
    """Both products and the exponentials of the scores, of which a causal mask leaves half, in tiles of 128."""
    (batch, heads, rows, width), (_, _, _, columns), _, *masks = attention.shapes
    share = causal_share(rows, columns) if attention.constant else 1.0
    rows, columns = (extent if extent <= 64 else ceil(extent / 128) * 128 for extent in (rows, columns))
    scores = int(batch * heads * rows * columns * share)
    masked = _MASKED if masks and not attention.constant else 0.0
    return KernelWork("attention", dram, 4 * scores * width, functions=int(scores * (1 + masked)))


_MASKED = 1.5
"""The time of a mask in an attention, in exponentials. On an H200 cuDNN's took 136 µs for 100 million scores of 64 terms with a
mask and 74 without one, 83 and 48 for 67 million, and 227 for 201 million."""


def product_work(
    graph: Graph, item: Node, value: int, dram: int, unaligned: UnalignedProduct | None = None, by_rows: bool = False
) -> KernelWork:
    """A product or a convolution of the library; `by_rows`: with row-major volumes, as Inductor has them."""
    steps = 0 if item.kind is Kind.MATMUL else convolution_steps(graph.types[item.operands[1]].shape)
    operations, slower = library_work(graph, item, value, by_rows)
    dram += _filter_bytes(graph, item)
    written, repeated = repeated_bytes(graph, item)
    dram, copied = dram + written - repeated, converted_bytes(graph, item) + written + repeated
    if unaligned is not None and unaligned.is_padded:
        is_transposed = graph.node_of[item.operands[1]].op in TRANSPOSES  # unaligned columns are whole rows of its memory
        moved = MOVED_BY_ELEMENTS if len(unaligned.copied) > 1 else MOVED if is_transposed else MOVED_ROWS
        copied = moved * sum(graph.types[operand].nbytes for operand in unaligned.copied)
    elif unaligned is not None:
        slower *= ODD if unaligned.is_odd else UNALIGNED
    return KernelWork(item.op, dram, operations, slower, steps=steps, copied=copied, tiles=tiles_of(graph, item))


def _filter_bytes(graph: Graph, item: Node) -> int:
    """The bytes of the copy channels last of a filter that is no weight."""
    if not is_channels_last_convolution(graph, item) or item.operands[1] in marked_weights(graph) | prepared_values(graph):
        return 0
    kind, strides = graph.types[item.operands[1]], placement_of(graph).strides[item.operands[1]]
    return 0 if has_channels_last(kind.shape, strides) else 2 * kind.nbytes


def cost_of(kernel: KernelWork, device: Device) -> Cost:
    """The cost of one kernel."""
    if kernel.work is not None:
        return block_cost(kernel.work, kernel.blocks, kernel.loop, kernel.dram, device)
    drawn = min(1.0, device.bandwidth_share * kernel.tiles / device.multiprocessors) if kernel.tiles else 1.0
    times = {"memory": kernel.waits * kernel.dram / (device.memory_bandwidth * drawn)}
    if kernel.op in (*PRODUCTS, "attention"):
        times["matrix units"] = kernel.flops / device.matrix_rate * kernel.slowdown
        times["matrix units"] += kernel.functions / 2 / device.function_rate
        times["latency"] = kernel.steps * device.iteration_us * 1e-6
    elif kernel.functions:
        times["functions"] = kernel.functions / device.function_rate
    if kernel.op == "convolution":  # one stage: a program loads, or multiplies
        times["matrix units"] = kernel.flops / device.matrix_rate * kernel.slowdown
        times["latency"] = kernel.steps * device.iteration_us * 1e-6
        times["matrix units"] += (_GATHERED if kernel.slowdown == 1 else _PARTED) * kernel.loads / device.arithmetic_rate
        times["matrix units"] += kernel.functions / device.function_rate
        times["matrix units"] += times["memory"] if kernel.loads else 0.0
    if kernel.op == "top-k":
        times["latency"] = _CHOICE_US * kernel.steps * 1e-6
    if kernel.op == "pool":
        times["arithmetic"] = _POOLED * kernel.loads / device.arithmetic_rate
        times["latency"] = kernel.steps * device.iteration_us * 1e-6
        slowest = "memory" if times["memory"] > times["arithmetic"] else "arithmetic"
        times[slowest] = hypot(times["memory"], times["arithmetic"])  # they hide each other in part
    copy_us = kernel.copied / device.memory_bandwidth * 1e6 + device.launch_us * device.library_elementwise
    overhead = device.launch_us * _launches(kernel.op, device) + (copy_us if kernel.copied else 0.0)
    return cost_of_times(times, kernel.dram + kernel.copied, kernel.flops, overhead)


def _launches(op: str, device: Device) -> float:
    """The overhead of a library kernel, in launches of a generated kernel."""
    if op in PRODUCTS:
        return device.library_product
    if op == "attention":
        return device.library_attention
    if op in ("copy", "pool", "scan", "convolution", "top-k"):  # a generated kernel
        return 1.0
    if to_a_type(op):  # 2.3 µs on an H100, 2.5 on an H200: torch loads and converts element by element
        return 1.9
    match OPS[op].kind:
        case Kind.REDUCTION | Kind.DERIVED | Kind.LIBRARY:
            return device.library_reduction
        case _:
            return device.library_elementwise


def kernel_us(kernel: KernelWork, device: Device) -> float:
    """Its predicted microseconds."""
    return cost_of(kernel, device).us


def predict(graph: Graph, device: Device) -> tuple[Cost, ...]:
    """The cost of every kernel of a kernel graph, in order; a user's cost takes the place of the predicted time."""
    costs = tuple(cost_of(kernel, device) for kernel in kernel_works(graph))
    if not isinstance(device, PricedDevice):
        return costs
    pairs = zip(launches_of(graph).kernels, costs, strict=True)
    return tuple(
        replace(it, us=device.cost.us(graph, launch, it.us, it.limited_by, it.dram_bytes, it.flops)) for launch, it in pairs
    )


def predict_us(graph: Graph, device: Device) -> float:
    """The predicted time of a kernel graph in microseconds."""
    return sum(cost.us for cost in predict(graph, device))
