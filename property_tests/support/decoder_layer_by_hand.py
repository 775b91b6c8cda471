"""What a good engineer would write for a decoder layer while decoding: six kernels, each a block graph by hand.

Norm and QKV; attention split over the cache; its combination; output projection and residual; norm, gate, up and their product;
down projection and residual.
"""

from math import sqrt

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM
from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph

KEYS = 4096
KEPT, COLUMNS, ROWS = (-1,), (1,), 0


def six_kernels(batch: int) -> Graph:
    """`decoder_layer` as six kernels."""
    program = new_kernel_graph()
    x = program.new_input((batch, 4096), name="x")
    g1 = program.new_input((4096,), name="g1")
    wq, wk, wv = (program.new_input((4096, n), name=name) for n, name in ((4096, "Wq"), (1024, "Wk"), (1024, "Wv")))
    keys = program.new_input((batch, 8, 128, KEYS), name="K")
    values = program.new_input((batch, 8, KEYS, 128), name="V")
    wo = program.new_input((4096, 4096), name="Wo")
    q, k_new, v_new = _normed_products(program, x, g1, [wq, wk, wv], grid=64, loop=32)
    attended = _attention(program, q, keys, values, batch)
    r = _product_and_residual(program, attended, wo, x, grid=128, loop=16)
    g2 = program.new_input((4096,), name="g2")
    gate, up = program.new_input((4096, 14336), name="Wgate"), program.new_input((4096, 14336), name="Wup")
    [hidden] = _normed_products(program, r, g2, [gate, up], grid=448, loop=32, gated=True)
    down = program.new_input((14336, 4096), name="Wdown")
    program.mark_output(_product_and_residual(program, hidden, down, r, grid=128, loop=56), name="y")
    program.mark_output(k_new, name="k_new")
    program.mark_output(v_new, name="v_new")
    return program.graph()


def _normed_products(
    program: KernelGraph, x: Tensor, g: Tensor, weights: list[Tensor], grid: int, loop: int, gated: bool = False
) -> list[Tensor]:
    """(x · g) W / rms(x) for every weight; the statistics are gathered beside the products."""
    block = new_threadblock_graph((grid,), forloop_range=loop)
    tile, scales = block.new_input(x, KEPT, 1), block.new_input(g, KEPT, 0)
    tiles = [block.new_input(weight, COLUMNS, ROWS) for weight in weights]
    scaled = block.mul(tile, scales)
    products = [block.forloop_accum(block.matmul(scaled, weight)) for weight in tiles]
    rms = block.forloop_accum(tile, "rms", 1)
    results = [block.div(product, rms) for product in products]
    if gated:
        results = [block.mul(block.silu(results[0]), results[1])]
    for result in results:
        block.new_output(result, COLUMNS)
    return program.customized([x, g, *weights], block)


def _attention(program: KernelGraph, q: Tensor, keys: Tensor, values: Tensor, batch: int) -> Tensor:
    """Sums of exponentials and of weighted values over parts of the cache, then their quotient."""
    heads = program.reshape(q, (batch, 8, 4, 128))
    row = (0, 1, -1) if batch > 1 else (-1, 1, -1)
    splits = max(2, 128 // (8 * batch))  # a block for every multiprocessor
    split = new_threadblock_graph((batch, 8, splits), forloop_range=KEYS // splits // 128)
    scores = split.matmul(split.new_input(heads, row), split.new_input(keys, (*row[:2], 3), 3))
    weights = split.exp(split.scale(scores, 1 / sqrt(128)))
    total = split.forloop_accum(weights, "sum", 3)
    weighted = split.forloop_accum(split.matmul(weights, split.new_input(values, (*row[:2], 2), 2)))
    for partial in (weighted, total):
        split.new_output(partial, (*row[:2], NEW_DIM), dtype=DType.float32)
    partials = program.customized([heads, keys, values], split)
    combine = new_threadblock_graph((batch, 8))
    sums = [combine.sum(_load(combine, partial, batch), 0) for partial in partials]
    combine.new_output(combine.reshape(combine.div(*sums), sums[0].shape[1:]), row[:2], dtype=DType.float16)
    [attended] = program.customized(list(partials), combine)
    return program.reshape(attended, (batch, 4096))


def _load(block: ThreadblockGraph, partial: Tensor, batch: int) -> Tensor:
    return block.new_input(partial, (1, 2) if batch > 1 else (-1, 2))


def _product_and_residual(program: KernelGraph, x: Tensor, weight: Tensor, residual: Tensor, grid: int, loop: int) -> Tensor:
    block = new_threadblock_graph((grid,), forloop_range=loop)
    product = block.forloop_accum(block.matmul(block.new_input(x, KEPT, 1), block.new_input(weight, COLUMNS, ROWS)))
    block.new_output(block.add(block.new_input(residual, COLUMNS), product), COLUMNS)
    [result] = program.customized([x, weight, residual], block)
    return result
