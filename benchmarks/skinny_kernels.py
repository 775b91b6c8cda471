"""Gluon kernels of `skinny_clusters.py`: a product of few rows, and RMSNorm, in thread blocks and in clusters (Triton 3.9).

Each thread block of a cluster has a tile of the weight. All of them need the same x. It is loaded once a thread block, or once
a cluster by a multicast of the tensor memory accelerator. The statistics of RMSNorm are factors of the rows of the result. Each
thread block sums the squares of whole rows, or of a part, and the parts are added up through distributed shared memory.
"""

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

WARPS = 4


@gluon.jit
def load_tiles(x_desc, w_desc, xs, ws, full, k, start, pred, STAGES: gl.constexpr, MULTICAST: gl.constexpr):
    """Iteration `k` into its buffers."""
    slot, columns = k % STAGES, k * x_desc.block_shape[1]
    mbarrier.expect(full.index(slot), x_desc.nbytes_per_cta + w_desc.nbytes_per_cta, pred=pred)
    tma.async_load(w_desc, [start, columns], full.index(slot), ws.index(slot), pred=pred)
    tma.async_load(x_desc, [0, columns], full.index(slot), xs.index(slot), pred=pred, multicast=MULTICAST)


@gluon.jit
def mean_squares(x, ROWS: gl.constexpr, K: gl.constexpr, SHARED: gl.constexpr):
    """Of the rows of x. `SHARED`: each thread block of the cluster reads a part of each row."""
    parts: gl.constexpr = gl.num_ctas() if SHARED else 1
    split: gl.constexpr = ((0, 1), (0, 2), (0, 4), (0, 8)) if SHARED else ((0, 0), (0, 0), (0, 0), (0, 0))
    cga: gl.constexpr = split[: gl.num_ctas().bit_length() - 1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps(), 1], [1, 0], cga)
    width: gl.constexpr = 256 * parts
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None] * K
    pointers = x + rows + gl.arange(0, width, gl.SliceLayout(0, layout))[None, :]
    squares = gl.zeros([ROWS, width], gl.float32, layout)
    for i in gl.static_range(K // width):
        part = gl.load(pointers + i * width).to(gl.float32)
        squares += part * part
    return gl.sum(squares, 1) / K


@gluon.jit
def product_kernel(
    x_desc,
    w_desc,
    x,
    out,
    N: gl.constexpr,
    K: gl.constexpr,
    STAGES: gl.constexpr,
    MULTICAST: gl.constexpr,
    STATISTICS: gl.constexpr,
):
    """out = x Wᵀ, or RMSNorm(x) Wᵀ with `STATISTICS` of "whole" rows, or "shared" by the cluster."""
    ROWS: gl.constexpr = x_desc.block_shape[0]
    WIDTH: gl.constexpr = x_desc.block_shape[1]
    TILE: gl.constexpr = w_desc.block_shape[0]
    bits: gl.constexpr = gl.num_ctas().bit_length() - 1
    by_rows: gl.constexpr = ((1, 0), (2, 0), (4, 0), (8, 0))[:bits]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 16], by_rows)
    start = gl.program_id(0) * TILE
    xs = gl.allocate_shared_memory(x_desc.dtype, [STAGES, ROWS, WIDTH], x_desc.layout)
    ws = gl.allocate_shared_memory(w_desc.dtype, [STAGES, TILE, WIDTH], w_desc.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    for buffer in gl.static_range(STAGES):
        mbarrier.init(full.index(buffer), count=1)
    if MULTICAST:  # a barrier of the whole cluster, in its first block
        one: gl.constexpr = ((0,), (0,), (0,), (0,))[:bits]
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout(one))
        for buffer in gl.static_range(STAGES):
            mbarrier.init(empty.index(buffer), count=1)
    for first in gl.static_range(STAGES - 1):
        load_tiles(x_desc, w_desc, xs, ws, full, first, start, True, STAGES, MULTICAST)
    accumulator = gl.zeros([TILE, ROWS], gl.float32, mma)
    if STATISTICS is not None:
        means = mean_squares(x, ROWS, K, STATISTICS == "shared")
        scale = gl.convert_layout(gl.rsqrt(means), gl.SliceLayout(0, mma))[None, :]
    steps: gl.constexpr = K // WIDTH
    for k in range(steps):
        slot = k % STAGES
        mbarrier.wait(full.index(slot), (k // STAGES) & 1)
        accumulator = warpgroup_mma(ws.index(slot), xs.index(slot).permute((1, 0)), accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=(accumulator,))
        if MULTICAST:  # the first block loads x for all when all have read the last x in this buffer
            mbarrier.arrive(empty.index(slot), count=1, pred=k + STAGES < steps)
        ahead = k + STAGES - 1
        if MULTICAST:
            again = (ahead >= STAGES) & (ahead < steps)
            mbarrier.wait(empty.index(ahead % STAGES), (ahead // STAGES - 1) & 1, pred=again)
        load_tiles(x_desc, w_desc, xs, ws, full, ahead, start, ahead < steps, STAGES, MULTICAST)
    if STATISTICS is not None:
        accumulator = accumulator * scale
    columns = start + gl.arange(0, TILE, gl.SliceLayout(1, mma))[:, None]
    gl.store(out + gl.arange(0, ROWS, gl.SliceLayout(0, mma))[None, :] * N + columns, accumulator.to(gl.float16))


@gluon.jit
def norm_kernel(x, out, K: gl.constexpr):
    """RMSNorm of a row in each thread block, or in each cluster."""
    cga: gl.constexpr = ((1,), (2,), (4,), (8,))[: gl.num_ctas().bit_length() - 1]
    each: gl.constexpr = min(8, K // (32 * gl.num_warps() * gl.num_ctas()))
    layout: gl.constexpr = gl.BlockedLayout([each], [32], [gl.num_warps()], [0], cga)
    at = gl.program_id(0) * K + gl.arange(0, K, layout)
    row = gl.load(x + at).to(gl.float32)
    gl.store(out + at, (row * gl.rsqrt(gl.sum(row * row, 0) / K)).to(gl.float16))


def compile_product(
    rows: int, k: int, n: int, cluster: int, tile: int, width: int, stages: int, multicast: bool, statistics: str | None
) -> Any:
    """Triton's compiled kernel for sm_90; `tile` rows of the weight a block, of `width` columns an iteration."""
    bits = cluster.bit_length() - 1
    layouts = [
        gl.NVMMASharedLayout.get_default_for([rows, width], gl.float16, cga_layout=[[0, 0]] * bits),
        gl.NVMMASharedLayout.get_default_for(
            [tile * cluster, width], gl.float16, cga_layout=[[1 << i, 0] for i in range(bits)]
        ),
    ]
    descriptors = [
        TensorDescriptor.from_tensor(torch.empty(shape, dtype=torch.float16), block, layout).__mangle__()
        for shape, block, layout in zip(((rows, k), (n, k)), ((rows, width), (tile * cluster, width)), layouts, strict=True)
    ]
    constants = {"N": n, "K": k, "STAGES": stages, "MULTICAST": multicast, "STATISTICS": statistics}
    signature = dict(zip(("x_desc", "w_desc"), descriptors, strict=True)) | {"x": "*fp16", "out": "*fp16"}
    return _compiled(product_kernel, signature, constants, cluster)


def compile_norm(k: int, cluster: int) -> Any:
    """Triton's compiled kernel for sm_90."""
    return _compiled(norm_kernel, {"x": "*fp16", "out": "*fp16"}, {"K": k}, cluster)


def _compiled(kernel: Any, signature: dict[str, str], constants: dict[str, Any], cluster: int) -> Any:
    names = kernel.arg_names
    signature = signature | dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(
        kernel,
        {name: signature[name] for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if signature[name].startswith("*")},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS, "num_ctas": cluster})
