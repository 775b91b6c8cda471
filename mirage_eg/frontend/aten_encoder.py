"""Layers that ATen has as one op for inference: an encoder layer of `torch.nn`, its attention, and bags of embeddings."""

from collections.abc import Mapping
from math import inf

from mirage_eg.frontend.aten_call import Call, Handler, Lazy, first_of, reshaped
from mirage_eg.frontend.aten_indicators import truth
from mirage_eg.frontend.aten_layers import product, scale_of_heads
from mirage_eg.frontend.aten_rearrangements import cut, permuted, swapped, without
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError


def _linear(call: Call, x: Tensor, weight: str, bias: str) -> Tensor:
    return product(x, swapped(call.tensor(weight), 0, 1)) + call.tensor(bias)


def _self_attention(call: Call, x: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention whose queries, keys and values one weight projects: the result, and the probabilities of each head."""
    g, width = call.graph, call.whole("embed_dim")
    joint = _linear(call, x, "qkv_weight", "qkv_bias")
    parts = [cut(joint, 2, place * width, (place + 1) * width) for place in range(3)]
    q, k, v = (permuted(reshaped(part, (*x.shape[:2], heads, width // heads)), [0, 2, 1, 3]) for part in parts)
    scores = (q @ swapped(k, 2, 3)) * scale_of_heads(width // heads)
    if call.take("mask") is not None:
        hidden = truth(call, "mask")
        match call.take("mask_type"):
            case 0:  # of queries and keys
                hidden = reshaped(hidden, (1, 1, *hidden.shape))
            case 1:  # of keys
                hidden = reshaped(hidden, (hidden.shape[0], 1, 1, hidden.shape[1]))
            case 2:
                pass
            case other:
                raise UnsupportedError(f"mask_type = {other!r}, wanted 0, 1 or 2")
        scores = g.where(hidden, call.constant(-inf, str(scores.dtype)), scores)
    call.ignore("mask_type")
    probabilities = g.softmax(scores, 3)
    joined = reshaped(permuted(probabilities @ v, [0, 2, 1, 3]), x.shape)
    return _linear(call, joined, "proj_weight", "proj_bias"), probabilities


def _attention(call: Call) -> list[Lazy | str]:
    x = call.tensor("query")
    if not call.tensor("key") is call.tensor("value") is x:
        raise UnsupportedError("query, key and value differ")
    z, probabilities = _self_attention(call, x, call.whole("num_head"))
    averaged = call.take("average_attn_weights")
    call.ignore("need_weights")  # then nothing reads the second result
    return [lambda: z, lambda: without(call.graph.mean(probabilities, 1), 1) if averaged else probabilities]


def _encoder_layer(call: Call) -> Tensor:
    g, x, eps = call.graph, call.tensor("src"), call.number("eps")

    def normal(x: Tensor, place: int) -> Tensor:
        return g.layer_norm(x, x.shape[-1:], call.tensor(f"norm_weight_{place}"), call.tensor(f"norm_bias_{place}"), eps=eps)

    def attended(x: Tensor) -> Tensor:
        return _self_attention(call, x, call.whole("num_heads"))[0]

    def perceptron(x: Tensor) -> Tensor:
        inner = _linear(call, x, "ffn_weight_1", "ffn_bias_1")
        return _linear(call, g.gelu(inner) if call.take("use_gelu") else g.relu(inner), "ffn_weight_2", "ffn_bias_2")

    if call.take("norm_first"):
        x = x + attended(normal(x, 1))
        return x + perceptron(normal(x, 2))
    x = normal(x + attended(x), 1)
    return normal(x + perceptron(x), 2)


_MODES = ("sum", "mean", "max")


def _embedding_bag(call: Call) -> Tensor:
    """Bags of one size, as of a matrix of indices: a gather, and a reduction of each bag."""
    call.require("padding_idx", None, -1)
    starts = call.known_array("offsets")
    if starts is None:
        raise UnsupportedError("offsets are no constant")
    indices, weight, mode = call.integers("indices"), call.tensor("weight"), _MODES[call.whole("mode")]
    count, total = call.result.shape[0], indices.shape[0]
    size = total // count
    if starts.tolist() != list(range(0, total + bool(call.take("include_last_offset")), size)) or size * count != total:
        raise UnsupportedError(f"offsets of {count} bags of {total} indices, wanted bags of one size")
    rows = call.graph.gather(weight, indices)
    if call.take("per_sample_weights") is not None:
        rows = rows * reshaped(call.tensor("per_sample_weights"), (total, 1))
    return without(call.graph.op(mode, reshaped(rows, (count, size, weight.shape[1])), dim=1), 1)


_BAGS = ("_embedding_bag.default", "_embedding_bag_forward_only.default", "embedding_bag.default", "embedding_bag.padding_idx")
_OTHERS = ("the sizes and places of bags serve the backward pass",) * 3

HANDLERS: Mapping[str, Handler] = {
    "aten._native_multi_head_attention.default": _attention,
    "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
    **{f"aten.{name}": first_of(_embedding_bag, *_OTHERS) for name in _BAGS},
}
