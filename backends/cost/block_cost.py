"""The work of a block graph, and the time that a kernel of so many blocks takes with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, log2, prod
from typing import NamedTuple

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.gathered_lines import GATHERED, gathered_lines
from mirage_eg.backends.cost.liveness import live_tiles
from mirage_eg.backends.cost.registers import (
    MOST_THREADS,
    register_bytes,
    resident_blocks,
    result_bytes,
    spill_traffic,
    splitting_bytes,
)
from mirage_eg.backends.cost.short_rows import wasted_share
from mirage_eg.backends.cost.tile_ops import TileOp, tile_ops
from mirage_eg.backends.cost.warp_crossings import CROSSED, crossed_elements, lanes_of_row
from mirage_eg.backends.triton.storage import is_narrow
from mirage_eg.backends.triton.tiles import MatmulForm, expanded, matmul_form, padded_elements, power_of_two
from mirage_eg.backends.triton.warps import WARP
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape, regrouped_dims
from mirage_eg.ir.shapes import matmul as matmul_shape


class Orders(NamedTuple):
    """How the tensors of a kernel are in memory: of each output the dims, slowest first, () if it is row-major, None if that is
    not known; of each input the strides, None if it is row-major or that is not known."""

    stored: tuple[Shape | None, ...] = ()
    loaded: tuple[Shape | None, ...] = ()


UNKNOWN = Orders()


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted time of one kernel in microseconds, and the resource that limits it; `dram_bytes` and `flops` are the work."""

    us: float
    limited_by: str
    dram_bytes: int
    flops: int


@lru_cache(maxsize=1 << 16)
def tile_flops(batch: int, m: int, n: int, k: int) -> int:
    """Operations of a product of tiles, padded as the lowering pads them."""
    return 2 * batch * prod(max(16, power_of_two(extent)) for extent in (m, n, k))


def slowdown(dtype: DType) -> float:
    """How much slower the products of generated kernels are than in float16; those in float32 are sums of six in bfloat16.

    Numbers of 8 bits become halves.
    """
    return 1.0 if dtype.itemsize <= 2 else 10.6


def without_wgmma(batched: bool, rows: int) -> float:
    """How much slower tl.dot is in a batch, or of few rows: 1,024 × 8,192 × 8,192 in float32 took 3,574 µs in a batch on an
    H200, 2,054 with wgmma (Triton 3.6)."""
    return 1.7 if batched or rows < 64 else 1.0


def cost_of_times(times: dict[str, float], dram: int, flops: int, launch_us: float) -> Cost:
    """The cost of a kernel whose resources are busy for these seconds."""
    slowest = max(times, key=times.__getitem__)
    return Cost(times[slowest] * 1e6 + launch_us + sum(times.values()), slowest, dram, flops)  # of equal ones the least work


def block_cost(work: "BlockWork", blocks: int, loop: int, dram: int, device: Device) -> Cost:
    """The cost of a kernel: `work` of each block over `loop` iterations, `dram` bytes over all blocks."""
    # A kernel of few blocks cannot draw the whole bandwidth: a multiprocessor reaches about `bandwidth_share` times the mean.
    busy = min(1.0, blocks / device.multiprocessors)
    waves = ceil(blocks / device.multiprocessors)
    balance = blocks / device.multiprocessors / waves if waves > 1 else busy
    drawn = min(1.0, device.bandwidth_share * busy)
    times = {
        "memory": work.in_turn * (dram + min(dram, blocks * work.wasted)) / (device.memory_bandwidth * drawn),
        "cache": blocks * (work.loaded + work.wasted) / (device.cache_bandwidth * drawn),
        "matrix units": blocks * work.flops / (device.matrix_rate * balance),
        "arithmetic": blocks * work.arithmetic / (device.arithmetic_rate * balance),
        "functions": blocks * work.functions / (device.function_rate * balance),
    }
    # Blocks of a multiprocessor hide each other's latency. Loads that feed tl.dot are prefetched, others are not.
    streams = dram > device.cache_bytes / 2
    rounds, tail = max(1.0, waves / RESIDENT), 0.0
    if streams and (loop == 1 or not work.ahead):  # blocks come and go
        rounds = 1.0
    if not work.ahead and (streams or busy > 1 / 2):
        alone = LAST_ITERATION / loop if streams and loop > 1 else LAST_BLOCK  # of a small kernel all blocks run at once
        rate = device.memory_bandwidth if streams else device.cache_bandwidth
        tail = alone * work.loaded * device.multiprocessors / rate
    waits = loop * work.live * (device.iteration_us if work.ahead else work.steps * device.hit_us) + work.once * device.hit_us
    if streams and not work.ahead:
        waits = _exposed_us(work, blocks, loop, device, 1e6 * max(times["memory"], times["cache"]))
    waits += work.combining_us
    moved = work.staged + loop * work.live * spill_traffic(work.spilled)
    if (last := work.ending) is not None:
        after = blocks * (last.moved / device.memory_bandwidth + last.functions / (device.function_rate * balance))
        times["cache"] = times["cache"] / LARGE_TILES + after
        times["matrix units"] = times["matrix units"] * (TWO_BUFFERS if last.two_buffers else 1.0) + after
    times["staging"] = blocks * moved / (device.stage_bandwidth * balance) + rounds * waits * 1e-6
    times["warps"] = rounds * loop * work.live * (CHAIN_US + work.alone * PRODUCT_US) * 1e-6 if work.alone else 0.0
    if work.waited:
        times["staging"] += times["matrix units"] + times["functions"]
    times["starts"] = (waves - 1) * (BLOCK_US + work.once * REDUCED_US) * 1e-6
    times["latency"] = rounds * waits * 1e-6 + tail
    times["latency"] += 0.0 if work.ahead else max(times["memory"], times["cache"]) + times["matrix units"]
    if work.scaled:
        turns = max(1.0, blocks / device.multiprocessors / RESIDENT_PRODUCTS)
        times["latency"] = max(times["memory"], times["cache"]) + turns * loop * work.live * device.step_us * 1e-6
    return cost_of_times(times, dram, blocks * work.flops, device.launch_us)


def _exposed_us(work: "BlockWork", blocks: int, loop: int, device: Device, busy_us: float) -> float:
    """The microseconds in which a multiprocessor loads nothing, where blocks without tl.dot stream from memory.

    A block loads nothing while it waits for its loads and reduces them; other blocks that the registers hold do then.
    Reductions outside a loop follow each other, as those of a norm and of the product behind it. Blocks of a last round that is
    not full hide less: they take as long as one block alone.
    """
    own = max(1.0, blocks / device.multiprocessors)
    chains = work.once**2 / 2 + (loop * work.live * work.steps if loop > 1 else 0.0)
    together = max(1.0, min(work.resident, own))
    alone = chains * device.step_us
    rounds, rest = divmod(own, together)
    last = max(rest / together**HIDING * alone, alone - busy_us * rest / own) if rest else 0.0
    return float(rounds * together ** (1 - HIDING)) * alone + last


HIDING = 1.75  # the power of the blocks that hide a wait (fitted)
TRANSPOSITION = 2  # reductions in the time of which a tile is transposed in shared memory: images channels last on an H200
RESIDENT_PRODUCTS = 2  # blocks of a multiprocessor whose products have computed operands, by their registers
HALVING = 5 * WARP  # operations while a warp adds one half of a row to the other: shuffles have a quarter of their rate
SPLIT_BYTES = 6  # of an operand of a product in float32, in three parts of bfloat16
BUFFERS = 3  # of the tiles of an iteration, which are loaded while products of others run
SHARED_MEMORY = 227 << 10  # bytes of a block
GATHERED_ELEMENT = 150  # operations in the time of one: 13,312 tiles of 58 × 2 × 64 took 500 µs longer on an H200 (Triton 3.6)
NO_SHARES = 1.3  # of a tile of 16 x 16 each warp computes all operands: int4 weights times 16 rows on an H200
TWO_BUFFERS = 1.28  # how much longer products take where shared memory holds two, in bfloat16 on an H200
LARGE_TILES = 1.3  # the cache's rate for them over that for others
RESIDENT = 4  # blocks of a multiprocessor that hide each other's latency
LAST_BLOCK, LAST_ITERATION = 0.5, 1.0
"""The share of the time of a block's or an iteration's loads, at the rate of one multiprocessor, in which nothing else works.

Of 604 kernels of products with vectors in 24 groups, as tuning measured them on an H100, the first by prediction then takes
1.03 times the fastest, without 1.14.
"""
BLOCK_US = 0.075  # between the starts of two blocks on a multiprocessor: 262,144 blocks took 150 µs longer on an H200
REDUCED_US = 0.088  # the same for a reduction: 124,928 blocks of 64 maxima of 4 numbers took 154 µs on an H200
IN_TURN = 1.25, 0.022  # and for each thread block: 1.2 to 1.4 times a copy in clusters of 4, 1.4 of 8, 1.5 to 1.7 of 16 (H200)
CLUSTER_US = 0.2  # a reduction over the thread blocks of a cluster: softmax of 64 rows, in clusters of 2 on an H200


CHAIN_US, PRODUCT_US = 0.64, 0.008
"""An iteration of an attention whose scores have too few rows for two warps, so that each of them computes all, and a product.

On an H100, steps of 32 and 64 keys of 128 terms took 1.1 and 1.6 µs, and those of 256 keys of 64 and 128 terms 2.5 and 5 µs.
"""
SCORES_OF_PRODUCT = 40  # elements that take as long as one of its products
FLOPS_OF_PRODUCT = 2 * 16 * 8 * 16  # of an instruction of matrix units
SHARED_ROWS = 64  # from so many rows warps have different ones


class Ending(NamedTuple):
    """Bytes moved and functions computed outside a loop of products, while no other block works; whether shared memory holds
    two tiles of each operand instead of three.

    On an H200 kernels of large tiles in half precision took 155 to 275 µs, some with an error function behind the product
    (`property_tests/backends/cost/test_large_products.py`).
    """

    moved: int
    functions: int
    two_buffers: bool


class BlockWork(NamedTuple):
    """The work of one block over all iterations: bytes loaded, bytes wasted where rows of a loaded or stored tile are shorter
    than a memory sector, matrix operations, elementwise operations, functions.

    `steps`: sequential steps of an iteration, each a load and a reduction; `once`: those outside the loop; `ahead`: loads are
    prefetched; `staged`: bytes of operands of tl.dot that go through registers, computed ones and those of a batch; `live`: the
    share of the iterations that run; `combining_us`: of reductions over the thread blocks of a cluster; `held`: bytes of
    registers that products take, of which `spilled` are too many, in each iteration; `ending`: what a block of products does
    outside the loop, where it leaves no capacity for another that would work meanwhile. `waited`: products of the loop wait for
    functions in it, other than the exponentials of an attention: a product of 69 GFLOP with a gelu before it took 234 µs on an
    H200, and 87 without. `alone`: products of an iteration that each warp computes, in an attention of few rows. `resident`:
    blocks that a multiprocessor holds. `scaled`: the loop computes an operand of its products of loads, or has odd rows.
    `in_turn`: how much longer memory takes where the thread blocks of a cluster all load, and then all store.
    """

    loaded: int
    wasted: int
    flops: int
    arithmetic: int
    functions: int
    steps: int = 1
    once: int = 0
    ahead: bool = True
    staged: int = 0
    live: float = 1.0
    combining_us: float = 0.0
    held: int = 0
    spilled: int = 0
    ending: "Ending | None" = None
    waited: bool = False
    alone: float = 0.0
    resident: float = inf
    scaled: bool = False
    in_turn: float = 1.0


def block_work(block: Graph, live: float = 1.0, orders: Orders = UNKNOWN) -> BlockWork:
    """The work of each thread block of a block graph, as it is lowered; `live` is the share of its iterations that run.

    The rows that it stores count where `orders` has the order of the output; an intermediate may be stored in any. An input is
    loaded as row-major where there are no strides of it.
    """
    block = expanded(block)
    shapes = [kind.shape for kind in block.types]
    work = shared(work_of_tiles(block, shapes, block.loop, live, block.threads, orders), busy_blocks(block))
    if block.cluster == 1:
        return work
    reductions = sum(item.kind is Kind.REDUCTION for item in block.nodes)
    return work._replace(combining_us=CLUSTER_US * reductions, in_turn=IN_TURN[0] + IN_TURN[1] * block.cluster)


def busy_blocks(block: Graph) -> int:
    """The thread blocks of a cluster that hold more than padding."""
    if block.cluster == 1:
        return 1
    shape = max((kind.shape for kind in block.types), key=prod)
    return ceil(block.cluster * prod(shape) / padded_elements(shape))


def shared(work: BlockWork, blocks: int) -> BlockWork:
    """The work of each of so many thread blocks that share it; they wait for each other as the warps of one do."""
    if blocks == 1:
        return work
    names = ("loaded", "wasted", "flops", "arithmetic", "functions", "staged", "held", "spilled")
    return work._replace(**{name: getattr(work, name) // blocks for name in names})


def work_of_tiles(
    block: Graph, shapes: Sequence[Shape], loop: int, live: float = 1.0, threads: int = MOST_THREADS, orders: Orders = UNKNOWN
) -> BlockWork:
    """The work of a block graph of primitive ops with tiles of these shapes, of whose iterations a share is `live`."""
    iterations = loop if live == 1 else loop * live
    wasted = _wasted_by_stores(block, shapes, orders.stored)
    loaded = flops = arithmetic = functions = staged = between_threads = 0.0  # the last: of reductions that threads share
    strides, ahead, waited = dict(zip(block.input_values, orders.loaded, strict=False)), False, False
    results = besides = odd = 0  # bytes of registers: of all results, the most that one product takes besides, odd rows
    for item in tile_ops(block):
        shape, times = shapes[item.value], iterations if item.looped else 1
        match item.kind:
            case Kind.BOUNDARY:
                moved = prod(shape) * item.size * times
                loaded += moved
                wasted += moved * wasted_share(shape, item.tensor, item.size, False, strides.get(item.value))
                if item.looped and _has_odd_rows(item):
                    odd += REGISTER * padded_elements(shape)
                    staged += moved
            case Kind.MATMUL:
                left, right = (shapes[i] for i in item.operands)
                (*batch, m, n), k = matmul_shape([left, right], {}), left[-1]
                if matmul_form(left, right) is MatmulForm.DOT:
                    slower = slowdown(item.product) * without_wgmma(prod(batch) > 1, m)
                    flops += int(tile_flops(prod(batch), m, n, k) * times * slower)
                    ahead |= item.looped
                    results += result_bytes(padded_elements((*batch, m, n)))
                    if is_narrow(item.product) or item.product.itemsize == 1:
                        alone = NO_SHARES if padded_elements((m, n)) <= 256 else 1.0
                        staged += alone * _staged_bytes(item, shapes, iterations, prod(batch))
                    else:
                        operands = sum(padded_elements(shapes[i]) for i in item.operands)
                        staged += SPLIT_BYTES * operands * times
                        besides = max(besides, splitting_bytes(padded_elements((*batch, m, n)), operands))
                else:
                    arithmetic += padded_elements((*batch, m, k, n)) * times
            case Kind.ELEMENTWISE if item.functions:
                functions += item.functions * padded_elements(shape) * times
                waited |= item.looped and not item.is_exponential
            case Kind.REARRANGEMENT:
                arithmetic += _moved_elements(item, shapes) * GATHERED_ELEMENT * times
            case _:
                elements, operand = padded_elements(shape), padded_elements(shapes[item.operands[0]])
                arithmetic += max(elements, operand) * times * item.operations
                between_threads += _between_threads(item, shapes, threads) * times
    arithmetic += (0 if ahead else between_threads) + (0 if results else _gathered(block, shapes, iterations, threads, strides))
    loaded, wasted, flops, arithmetic, functions, staged = map(int, (loaded, wasted, flops, arithmetic, functions, staged))
    (once, steps), transposed = _sequential_reductions(block, shapes), _transposed_bytes(block, shapes)
    held = results + besides + (odd if ahead else 0)
    spilled, ending = max(0, held - register_bytes(threads)), _ending(block, shapes, held) if ahead else None
    counts = loaded, wasted, flops, arithmetic, functions, max(1, steps), max(once, TRANSPOSITION if transposed else 0)
    alone = _products_of_a_warp(block, shapes) if ahead else 0.0
    live_bytes = 0 if ahead else live_tiles(block).nbytes(shapes, block.cluster)
    scaled = ahead and (odd > 0 or any(it.scaled for item in tile_ops(block) for it in item.staged))
    resident = min(resident_blocks(live_bytes, threads, loops=loop > 1), SHARED_MEMORY / max(1, transposed))
    return BlockWork(*counts, ahead, staged, live, 0.0, held, spilled, ending, waited and ahead, alone, resident, scaled)


def _gathered(
    block: Graph, shapes: Sequence[Shape], iterations: float, threads: int, strides: Mapping[int, Shape | None]
) -> float:
    """The operations in the time of the lines that loads of short rows touch."""
    loads = [item for item in tile_ops(block) if item.kind is Kind.BOUNDARY]
    lines = [gathered_lines(tuple(shapes[it.value]), it.tensor, it.size, threads, strides.get(it.value)) for it in loads]
    return GATHERED * sum(each * (iterations if it.looped else 1) for each, it in zip(lines, loads, strict=True))


def _moved_elements(item: TileOp, shapes: Sequence[Shape]) -> int:
    """The elements that move one by one: of a reshape that merges or splits dims within which a tile is padded."""
    if not item.is_reshape:
        return 0
    ends = shapes[item.operands[0]], shapes[item.value]
    extents = (shape[dim] for shape, dims in zip(ends, regrouped_dims(*ends), strict=True) for dim in dims)
    return padded_elements(shapes[item.value]) if any(extent != power_of_two(extent) for extent in extents) else 0


def _between_threads(item: TileOp, shapes: Sequence[Shape], threads: int) -> float:
    """The operations of a reduction besides those within a thread; none of another op. Four lanes have a row of a product, for
    which they do not count."""
    if item.kind is not Kind.REDUCTION:
        return 0.0
    tile, result = shapes[item.operands[0]], shapes[item.value]
    halvings = log2(lanes_of_row(tuple(tile), item.size, threads)) if result[-1] < tile[-1] else 0
    return HALVING * halvings * padded_elements(result) + CROSSED * _crossed(item, shapes, threads)


def crosses_warps(block: Graph, shapes: Sequence[Shape], threads: int) -> bool:
    """Whether more than two warps share the dim of a reduction, which is not the last of its tile."""
    return any(_crossed(item, shapes, threads) for item in tile_ops(block) if item.kind is Kind.REDUCTION)


def _crossed(item: TileOp, shapes: Sequence[Shape], threads: int) -> int:
    return crossed_elements(tuple(shapes[item.operands[0]]), tuple(shapes[item.value]), item.size, threads)


def _stores(block: Graph) -> Iterable[tuple[int, TensorType]]:
    """The values that a block stores, with the types of their tensors."""
    return zip((item.operands[0] for item in block.outputs), block.output_types, strict=True)


def _wasted_by_stores(block: Graph, shapes: Sequence[Shape], orders: Sequence[Shape | None]) -> float:
    """The bytes that are moved besides those of stored tiles, of outputs whose order in memory is known."""
    wasted = 0.0
    for (value, stored), dims in zip(_stores(block), orders, strict=False):
        if dims is not None:
            tensor, size = stored.shape, stored.dtype.itemsize
            tile = (1,) * (len(tensor) - len(shapes[value])) + shapes[value]
            if dims:
                tile, tensor = (tuple(extents[dim] for dim in dims) for extents in (tile, tensor))
            wasted += prod(tile) * size * wasted_share(tile, tensor, size, True)
    return wasted


def _sequential_reductions(block: Graph, shapes: Sequence[Shape]) -> tuple[int, int]:
    """The most reductions that follow each other: outside the loop, and in an iteration. A product with a vector is one."""
    before: tuple[dict[int, int], dict[int, int]] = ({}, {})  # each value
    for item in tile_ops(block):
        tiles = [shapes[i] for i in item.operands]
        if item.kind is Kind.MATMUL:
            reduces = tiles[0][-1] > 1 and matmul_form(*tiles) is not MatmulForm.DOT
        else:
            reduces = item.kind is Kind.REDUCTION and padded_elements(shapes[item.value]) < padded_elements(tiles[0])
        for looped, known in enumerate(before):
            known[item.value] = max((known[i] for i in item.operands), default=0) + (reduces and item.looped == looped)
    outside, inside = (max(known.values(), default=0) for known in before)
    return outside, inside


def _staged_bytes(item: TileOp, shapes: Sequence[Shape], iterations: float, batch: int) -> float:
    """The bytes of a product's operands that go through registers."""
    staged = (it for it in item.staged if it.computed or batch > 1)
    return sum(padded_elements(shapes[it.value]) * it.size * (iterations if it.looped else 1) * it.share for it in staged)


def _products_of_a_warp(block: Graph, shapes: Sequence[Shape]) -> float:
    """The products of an iteration that each warp computes, in an attention of few rows."""
    issued, rows = 0.0, SHARED_ROWS
    for item in tile_ops(block):
        if item.kind is not Kind.MATMUL or not item.looped:
            continue
        left, right = (shapes[i] for i in item.operands)
        (*batch, m, n), k = matmul_shape([left, right], {}), left[-1]
        if matmul_form(left, right) is MatmulForm.DOT:
            issued += prod(batch) * tile_flops(1, m, n, k) / FLOPS_OF_PRODUCT
            issued += 0 if item.is_of_scores else padded_elements((*batch, m, n)) / SCORES_OF_PRODUCT
            rows = min(rows, max(16, power_of_two(m))) if item.is_of_scores else rows
    return issued * 16 / rows if rows < SHARED_ROWS else 0.0


def _has_odd_rows(item: TileOp) -> bool:
    """Whether rows of an input begin at no multiple of four bytes: its elements are loaded one by one, through registers."""
    rows = [extent for extent in item.tensor if extent > 1]
    return len(rows) > 1 and rows[-1] * item.size % REGISTER != 0


def _transposed_bytes(block: Graph, shapes: Sequence[Shape]) -> int:
    """The bytes of shared memory of the largest computed tile that is transposed there, but for dims of one element."""
    most = 0
    for item in tile_ops(block):
        long = [source for source, extent in zip(item.permutation, shapes[item.value], strict=False) if extent > 1]
        most = max(most, REGISTER * padded_elements(shapes[item.value]) if long != sorted(long) else 0)
    return most


REGISTER = 4  # bytes; the least that a copy into shared memory moves


def _ending(block: Graph, shapes: Sequence[Shape], held: int) -> Ending | None:
    """What a block of products does outside its loop; None if registers and shared memory hold two."""
    moved = sum(prod(shapes[value]) * stored.dtype.itemsize for value, stored in _stores(block))
    functions, buffered = 0.0, 0  # the last: bytes that an iteration loads
    for item in tile_ops(block):
        if item.kind is Kind.BOUNDARY:
            buffered += item.looped * prod(shapes[item.value]) * item.size
            moved += (not item.looped) * prod(shapes[item.value]) * item.size
        elif not item.looped:
            functions += item.functions * padded_elements(shapes[item.value])
    if max(held / register_bytes(MOST_THREADS), BUFFERS * buffered / SHARED_MEMORY) <= 1 / 2:
        return None
    return Ending(moved, int(functions), BUFFERS * buffered > SHARED_MEMORY)
