"""Kernels in Helion for the programs of the GPU benchmark, as plain functions: `helion_baselines` makes kernels of them.

Helion reads their sources. It chooses tile sizes, the order of loops, warps, stages and the kind of loads; a slice `:` of a
row becomes a loop if that is faster. m, n, k, d are the sizes of the program's dims; sums are float32.
"""

from typing import Any

import helion.language as hl
import torch


def norm_linear(x: Any, g: Any, w: Any) -> Any:
    """(x · g) w, with the sum of squares in the same loop, and 1 / rms(x) after it."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        product = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            wide = rows.to(torch.float32)
            squares = squares + (wide * wide).sum(-1)
            product = hl.dot(rows * g[tile_k][None, :], w[tile_k, tile_n], acc=product)
        out[tile_m, tile_n] = (product * torch.rsqrt(squares / k)[:, None]).to(x.dtype)
    return out


def norm(x: Any, g: Any) -> Any:
    """x · g / rms(x)."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        wide = x[tile, :].to(torch.float32)
        scale = torch.rsqrt((wide * wide).mean(-1))
        out[tile, :] = (wide * scale[:, None] * g[:].to(torch.float32)[None, :]).to(x.dtype)
    return out


def gated_mlp(x: Any, w1: Any, w2: Any) -> Any:
    """silu(x w1) · (x w2), both products in one loop."""
    m, k = x.size()
    n = w1.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        gate = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        up = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            gate = hl.dot(rows, w1[tile_k, tile_n], acc=gate)
            up = hl.dot(rows, w2[tile_k, tile_n], acc=up)
        out[tile_m, tile_n] = (gate * torch.sigmoid(gate) * up).to(x.dtype)
    return out


def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    """x w + (x a) b, both products of x in one loop."""
    m, k = x.size()
    n = w.size(1)
    rank = hl.specialize(a.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        product = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            product = hl.dot(rows, w[tile_k, tile_n], acc=product)
            low = hl.dot(rows, a[tile_k, :], acc=low)
        product = hl.dot(low.to(x.dtype), b[:, tile_n], acc=product)
        out[tile_m, tile_n] = product.to(x.dtype)
    return out


def _with_keys(scores: Any, values: Any, maximum: Any, total: Any, weighted: Any) -> tuple[Any, Any, Any]:
    """The running maximum, sum and weighted values of softmax with the keys of a tile; Helion traces calls of functions."""
    larger = torch.maximum(maximum, torch.amax(scores, -1))
    weights = torch.exp2(scores - larger.unsqueeze(-1))
    factor = torch.exp2(maximum - larger)
    weighted = hl.dot(weights.to(values.dtype), values, acc=weighted * factor.unsqueeze(-1))
    return larger, total * factor + torch.sum(weights, -1), weighted


def attention(q: Any, k: Any, v: Any, scale: float) -> Any:
    """softmax(scale · q kᵀ) v with a running maximum; q is heads × m × d, k and v are heads × n × d; scale is by log2 e."""
    heads, m, d_ = q.size()
    n = k.size(1)
    d = hl.specialize(d_)
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        head = tile_h.begin
        queries = q[head, tile_m, :]
        maximum = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        weighted = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(queries, k[head, tile_n, :].T) * scale
            maximum, total, weighted = _with_keys(scores, v[head, tile_n, :], maximum, total, weighted)
        out[head, tile_m, :] = (weighted / total[:, None]).to(out.dtype)
    return out


def causal_attention(q: Any, k: Any, v: Any, scale: float) -> Any:
    """`attention` of each query to the keys up to its own: tiles below the diagonal, then those on it, with a mask."""
    heads, m, d_ = q.size()
    d = hl.specialize(d_)
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        head = tile_h.begin
        queries = q[head, tile_m, :]
        maximum = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        weighted = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.begin):
            scores = hl.dot(queries, k[head, tile_n, :].T) * scale
            maximum, total, weighted = _with_keys(scores, v[head, tile_n, :], maximum, total, weighted)
        for tile_n in hl.tile(tile_m.begin, tile_m.end):
            scores = hl.dot(queries, k[head, tile_n, :].T) * scale
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            maximum, total, weighted = _with_keys(scores, v[head, tile_n, :], maximum, total, weighted)
        out[head, tile_m, :] = (weighted / total[:, None]).to(out.dtype)
    return out


def attention_parts(q: Any, k: Any, v: Any, scale: float, parts: hl.constexpr) -> Any:
    """Split-K of `attention`: its result for each part of the keys, with the logarithm of its sum, to base 2."""
    heads, m, d_ = q.size()
    n = k.size(1)
    d = hl.specialize(d_)
    length = n // parts
    out = torch.empty([heads, parts, m, d], dtype=q.dtype, device=q.device)
    logarithms = torch.empty([heads, parts, m], dtype=torch.float32, device=q.device)
    for tile_h, tile_p, tile_m in hl.tile([heads, parts, m], block_size=[1, 1, None]):
        head = tile_h.begin
        part = tile_p.begin
        queries = q[head, tile_m, :]
        maximum = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        weighted = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(part * length, part * length + length):
            scores = hl.dot(queries, k[head, tile_n, :].T) * scale
            maximum, total, weighted = _with_keys(scores, v[head, tile_n, :], maximum, total, weighted)
        out[head, part, tile_m, :] = (weighted / total[:, None]).to(q.dtype)
        logarithms[head, part, tile_m] = maximum + torch.log2(total)
    return out, logarithms


def joined_parts(parts: Any, logarithms: Any, like: Any) -> Any:
    """The result of `attention` from those of `attention_parts`; `like` has its type and shape."""
    heads, m, _ = like.size()
    out = torch.empty_like(like)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        head = tile_h.begin
        logs = logarithms[head, :, tile_m]
        weights = torch.exp2(logs - torch.amax(logs, 0)[None, :])
        weighted = torch.sum(parts[head, :, tile_m, :].to(torch.float32) * weights[:, :, None], 0)
        out[head, tile_m, :] = (weighted / torch.sum(weights, 0)[:, None]).to(out.dtype)
    return out


def normal_attention_parts(q: Any, k: Any, v: Any, scale: float, parts: hl.constexpr) -> Any:
    """`attention_parts` on rows of q and k divided by their rms: those of k are scaled as scores."""
    heads, m, d_ = q.size()
    n = k.size(1)
    d = hl.specialize(d_)
    length = n // parts
    out = torch.empty([heads, parts, m, d], dtype=q.dtype, device=q.device)
    logarithms = torch.empty([heads, parts, m], dtype=torch.float32, device=q.device)
    for tile_h, tile_p, tile_m in hl.tile([heads, parts, m], block_size=[1, 1, None]):
        head = tile_h.begin
        part = tile_p.begin
        wide = q[head, tile_m, :].to(torch.float32)
        queries = (wide * torch.rsqrt((wide * wide).mean(-1))[:, None]).to(q.dtype)
        maximum = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        weighted = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(part * length, part * length + length):
            keys = k[head, tile_n, :]
            wide_keys = keys.to(torch.float32)
            norms = torch.rsqrt((wide_keys * wide_keys).mean(-1)) * scale
            scores = hl.dot(queries, keys.T) * norms[None, :]
            maximum, total, weighted = _with_keys(scores, v[head, tile_n, :], maximum, total, weighted)
        out[head, part, tile_m, :] = (weighted / total[:, None]).to(q.dtype)
        logarithms[head, part, tile_m] = maximum + torch.log2(total)
    return out, logarithms


def ntrans(h: Any, x: Any, alpha: Any) -> Any:
    """rms(x + alpha · (rms(h) − x)), a row at a time."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        wide = h[tile, :].to(torch.float32)
        normal = wide * torch.rsqrt((wide * wide).mean(-1))[:, None]
        rows = x[tile, :].to(torch.float32)
        moved = rows + alpha[tile, :].to(torch.float32) * (normal - rows)
        out[tile, :] = (moved * torch.rsqrt((moved * moved).mean(-1))[:, None]).to(x.dtype)
    return out


def softmax(x: Any) -> Any:
    """Softmax of each row."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :].to(torch.float32)
        powers = torch.exp(rows - torch.amax(rows, -1)[:, None])
        out[tile, :] = (powers / torch.sum(powers, -1)[:, None]).to(x.dtype)
    return out


def _log_sum_exp(rows: Any) -> Any:
    maximum = torch.amax(rows, -1)
    return torch.log(torch.sum(torch.exp(rows - maximum.unsqueeze(-1)), -1)) + maximum


def log_softmax(x: Any) -> Any:
    """Logarithms of the softmax of each row."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :].to(torch.float32)
        out[tile, :] = (rows - _log_sum_exp(rows)[:, None]).to(x.dtype)
    return out


def cross_entropy(x: Any, target: Any) -> Any:
    """The negative log likelihood of the target of each row."""
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    flat = x.view(-1)
    for tile in hl.tile(m):
        rows = x[tile, :].to(torch.float32)
        chosen = hl.load(flat, [tile.index * n + target[tile]]).to(torch.float32)
        out[tile] = (_log_sum_exp(rows) - chosen).to(x.dtype)
    return out


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Each row with mean 0 and variance 1, then weight and bias."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :].to(torch.float32)
        centred = rows - rows.mean(-1)[:, None]
        normal = centred * torch.rsqrt((centred * centred).mean(-1) + 1e-5)[:, None]
        out[tile, :] = (normal * weight[:].to(torch.float32)[None, :] + bias[:].to(torch.float32)[None, :]).to(x.dtype)
    return out


def group_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Sums in one loop, results in another; x is (images · groups) × (channels · pixels), weight is groups × channels."""
    rows, size = x.size()
    groups, channels = weight.size()
    pixels = size // channels
    out = torch.empty_like(x)
    for tile in hl.tile(rows, block_size=1):
        row = tile.begin
        total = hl.zeros([tile], dtype=torch.float32)
        squares = hl.zeros([tile], dtype=torch.float32)
        for tile_n in hl.tile(size):
            values = x[tile, tile_n].to(torch.float32)
            total = total + values.sum(-1)
            squares = squares + (values * values).sum(-1)
        mean = total / size
        scale = torch.rsqrt(squares / size - mean * mean + 1e-5)
        for tile_n in hl.tile(size):
            channel = tile_n.index // pixels
            normal = (x[tile, tile_n].to(torch.float32) - mean[:, None]) * scale[:, None]
            moved = normal * weight[row % groups, channel][None, :] + bias[row % groups, channel][None, :]
            out[tile, tile_n] = moved.to(x.dtype)
    return out


def add_rms_norm(x: Any, r: Any, g: Any) -> Any:
    """x + r divided by its rms, times g; and x + r."""
    out = torch.empty_like(x)
    residual = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = x[tile, :] + r[tile, :]
        residual[tile, :] = total
        wide = total.to(torch.float32)
        scale = torch.rsqrt((wide * wide).mean(-1))
        out[tile, :] = (wide * scale[:, None] * g[:].to(torch.float32)[None, :]).to(x.dtype)
    return out, residual
