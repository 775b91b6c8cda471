"""Programs of models that slice and concatenate: rotary embedding by halves, joined weights, keys and values with a cache."""

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.graph import Graph


def rotated(p: KernelGraph, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x · cos + rotate_half(x) · sin with rotate_half [a, b] = [−b, a] in the last dim."""
    dim, half = len(x.shape) - 1, x.shape[-1] // 2
    turned = p.concat([-p.slice(x, dim, half, 2 * half), p.slice(x, dim, 0, half)], dim)
    return p.add(p.mul(x, cos), p.mul(turned, sin))


def rotary_scores(
    kv_heads: int = 2, group: int = 2, tokens: int = 4, keys: int = 8, size: int = 8, dtype: str = "float32"
) -> Graph:
    """Attention of grouped queries with rotary embeddings of queries and keys, without the sum over values."""
    p = new_kernel_graph()
    q = p.new_input((kv_heads, group * tokens, size), dtype, "Q")
    k = p.new_input((kv_heads, keys, size), dtype, "K")
    tables = [
        p.new_input((rows, size), dtype, name)
        for rows, name in [(group * tokens, "q"), (keys, "k")]
        for name in (f"cos_{name}", f"sin_{name}")
    ]
    scores = p.matmul(rotated(p, q, *tables[:2]), p.transpose(rotated(p, k, *tables[2:]), (0, 2, 1)))
    p.mark_output(p.softmax(scores, 2), "weights")
    return p.graph()


def joined_weights(
    tokens: int = 4, width: int = 16, kv_heads: int = 2, keys: int = 8, size: int = 8, dtype: str = "float32"
) -> Graph:
    """A product with the joined weights of queries, keys and values; attention of the queries to a cache."""
    p = new_kernel_graph()
    x, w = p.new_input((tokens, width), dtype, "X"), p.new_input((width, 4 * kv_heads * size), dtype, "W")
    old_keys, values = (p.new_input((kv_heads, keys, size), dtype, name) for name in ("K", "V"))
    product, half = p.matmul(x, w), 2 * kv_heads * size
    q = p.transpose(p.reshape(p.slice(product, 1, 0, half), (tokens, kv_heads, 2, size)), (1, 2, 0, 3))
    scores = p.matmul(p.reshape(q, (kv_heads, 2 * tokens, size)), p.transpose(old_keys, (0, 2, 1)))
    weights = p.softmax(p.scale(scores, 1 / 16), 2)
    p.mark_output(p.matmul(weights, values), "O")
    for name, part in zip(("k", "v"), p.split(p.slice(product, 1, half, 2 * half), 2, 1), strict=True):
        p.mark_output(part, name)
    return p.graph()


def rotary_cache(past: int = 3, tokens: int = 4, width: int = 16, heads: int = 2, size: int = 8) -> Graph:
    """Attention of projected tokens to a cache and to themselves; the joined keys and values are outputs, too."""
    p = new_kernel_graph()
    x = p.new_input((tokens, width), "float32", "X")
    cos, sin = (p.new_input((tokens, size), "float32", name) for name in ("cos", "sin"))
    projected = [p.matmul(x, p.new_input((width, heads * size), "float32", f"W{name}")) for name in "qkv"]
    q, k, v = (p.transpose(p.reshape(each, (tokens, heads, size)), (1, 0, 2)) for each in projected)
    caches = [p.new_input((heads, past, size), "float32", f"{name} cache") for name in ("K", "V")]
    keys = p.concat([caches[0], rotated(p, k, cos, sin)], 1)
    values = p.concat([caches[1], v], 1)
    scores = p.matmul(rotated(p, q, cos, sin), p.transpose(keys, (0, 2, 1)))
    p.mark_output(p.matmul(p.softmax(p.scale(scores, 1 / 8), 2), values), "O")
    p.mark_output(keys, "K")
    p.mark_output(values, "V")
    return p.graph()
