"""The roofline cost of a µGraph: per kernel the slowest of its resources, plus the launch (DESIGN §8).

A crude model on purpose: it ranks candidates before they are timed, and stands in for timing where there is no GPU.
"""

from dataclasses import dataclass
from math import ceil, prod

from mirage_eg.devices import Device
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind

_FUNCTIONS = frozenset({"exp", "log", "sqrt", "rsqrt", "silu", "sigmoid", "gelu", "tanh", "pow", "div"})


_SECTOR = 64  # bytes in a row below which a load fetches more than it uses


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted time of one kernel in microseconds and what bounds it; `dram_bytes` and `flops` are the work."""

    us: float
    bound: str
    dram_bytes: int
    flops: int


def predict(graph: Graph, device: Device) -> tuple[Cost, ...]:
    """The cost of every kernel of a kernel graph, in order."""
    costs = []
    for item, values in graph.numbered():
        kind = OPS[item.op].kind
        if kind is Kind.BOUNDARY or item.op in ("reshape", "broadcast"):
            continue  # views cost nothing
        if item.op == "block":
            costs.append(_block_cost(graph, item, values, device))
        else:
            costs.append(_library_cost(graph, item, values, device))
    return tuple(costs)


def predict_us(graph: Graph, device: Device) -> float:
    """The predicted time of a kernel graph in microseconds."""
    return sum(cost.us for cost in predict(graph, device))


def tile_flops(batch: int, m: int, n: int, k: int) -> int:
    """Operations of a product of tiles, padded as the lowering pads them."""
    return 2 * batch * prod(max(16, _padded(extent)) for extent in (m, n, k))


def _slowdown(dtype: DType) -> float:
    """How much slower matrix units are than in float16."""
    return 1.0 if dtype.itemsize == 2 else 8.0


def _library_cost(graph: Graph, item: Node, values: range, device: Device) -> Cost:
    operands = [graph.types[i] for i in dict.fromkeys(item.operands)]
    result = graph.types[values[0]]
    dram = sum(operand.nbytes for operand in operands) + result.nbytes
    times = {"memory": dram / device.memory_bandwidth}
    flops = 0
    if item.op == "matmul":
        left = graph.types[item.operands[0]]
        flops = 2 * prod(result.shape) * left.shape[-1]
        times["matrix units"] = flops / device.matrix_rate * _slowdown(left.dtype)
    return _cost(times, dram, flops, device)


def _cost(times: dict[str, float], dram: int, flops: int, device: Device) -> Cost:
    bound = max(times, key=times.__getitem__)
    return Cost(times[bound] * 1e6 + device.launch_us, bound, dram, flops)


def _block_cost(graph: Graph, item: Node, values: range, device: Device) -> Cost:
    block: Graph = item["graph"]
    blocks = prod(block.grid)
    dram = sum(graph.types[i].nbytes for i in dict.fromkeys(item.operands))
    dram += sum(graph.types[value].nbytes for value in values)
    return block_cost(_work(block), blocks, block.loop, dram, device)


def block_cost(work: "Work", blocks: int, loop: int, dram: int, device: Device) -> Cost:
    """The cost of a kernel of so many blocks that do `work` each in `loop` iterations, and move `dram` bytes in all."""
    # A kernel of few blocks cannot draw the whole bandwidth: a multiprocessor reaches about twice its share.
    busy = min(1.0, blocks / device.multiprocessors)
    balance = (
        blocks / device.multiprocessors / ceil(blocks / device.multiprocessors) if blocks > device.multiprocessors else busy
    )
    drawn = min(1.0, 2 * busy)
    waves = ceil(blocks / device.multiprocessors)
    times = {
        "memory": (dram + min(dram, blocks * work.wasted)) / (device.memory_bandwidth * drawn),
        "cache": blocks * (work.loaded + work.wasted) / (device.cache_bandwidth * drawn),
        "matrix units": blocks * work.flops / (device.matrix_rate * balance),
        "arithmetic": blocks * work.arithmetic / (device.arithmetic_rate * balance),
        "functions": blocks * work.functions / (device.function_rate * balance),
        "latency": max(1.0, waves / 4) * loop * device.iteration_us * 1e-6,
    }
    return _cost(times, dram, blocks * work.flops, device)


@dataclass(frozen=True, slots=True)
class Work:
    """What one block does over all iterations: bytes loaded (and fetched in vain, where rows of a tile are shorter than a
    memory sector), matrix operations, elementwise operations, functions."""

    loaded: int
    wasted: int
    flops: int
    arithmetic: int
    functions: int


def _work(block: Graph) -> Work:
    loaded = wasted = flops = arithmetic = functions = 0
    for item, values in block.numbered():
        if item.op == "output":
            continue
        kind = OPS[item.op].kind
        value = values[0]
        elements = prod(map(_padded, block.types[value].shape))
        operand_phase = max((block.phases[i] for i in item.operands), default=block.phases[value])
        times = block.loop if operand_phase is Phase.LOOP else 1
        match kind:
            case Kind.BOUNDARY:
                loaded += block.types[value].nbytes * times
                row = block.types[value].shape[-1] * block.types[value].dtype.itemsize if block.types[value].shape else _SECTOR
                tensor_row = item["shape"][-1] * block.types[value].dtype.itemsize if item["shape"] else _SECTOR
                if row < min(_SECTOR, tensor_row):
                    wasted += int(block.types[value].nbytes * times * (min(_SECTOR, tensor_row) / row - 1))
            case Kind.MATMUL:
                *batch, m, k = block.types[item.operands[0]].shape
                n = block.types[item.operands[1]].shape[-1]
                dtype = block.types[item.operands[0]].dtype
                flops += int(tile_flops(prod(batch), m, n, k) * times * _slowdown(dtype))
            case Kind.ELEMENTWISE if item.op in _FUNCTIONS:
                functions += elements * times
            case Kind.REARRANGEMENT:
                pass
            case _:
                operand = prod(map(_padded, block.types[item.operands[0]].shape))
                arithmetic += max(elements, operand) * times
    return Work(loaded, wasted, flops, arithmetic, functions)


def _padded(extent: int) -> int:
    return 1 << (extent - 1).bit_length()
