"""Every attribute of an ATen op is honoured, or the node stays outside with a reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as f

from mirage_eg.frontend.aten_call import Call, TorchType
from mirage_eg.frontend.aten_ops import HANDLERS
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import UnsupportedError
from property_tests.support.torch_import import imported, relative_error, widened


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def assert_equal(function: Callable[..., Any], *args: Any, tolerance: float = 1e-6) -> None:
    """The function is imported whole, and computes what torch computes in float64."""
    it = imported(function, *args)
    assert it.outside == () and len(it.segments) == 1
    assert relative_error(it.run(*args), function(*widened(args))) <= tolerance


def assert_outside(function: Callable[..., Any], *args: Any, reason: str) -> None:
    """One node of the function stays outside for this reason, and the whole still runs."""
    it = imported(function, *args)
    assert [reason in node.reason for node in it.outside] == [True], it.outside
    assert relative_error(it.run(*args), function(*args)) <= 1e-6


@pytest.mark.parametrize("alpha", [2, -1, 0.5])
def test_alpha_multiplies_the_second_operand(alpha: float) -> None:
    x, y = tensors((3, 4), (3, 4))
    assert_equal(lambda x, y: torch.add(x, y, alpha=alpha), x, y)
    assert_equal(lambda x, y: torch.sub(x, y, alpha=alpha), x, y)
    assert_equal(lambda x, y: torch.rsub(x, y, alpha=alpha), x, y)
    assert_equal(lambda x: torch.rsub(x, 3, alpha=alpha), x)
    a, b, c = tensors((3, 5), (3, 4), (4, 5))
    assert_equal(lambda a, b, c: torch.addmm(a, b, c, alpha=alpha, beta=0.25), a, b, c)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_has_two_forms(form: str) -> None:
    assert_equal(lambda x: f.gelu(x, approximate=form), *tensors((3, 40)))


def test_eps_is_added_where_torch_adds_it() -> None:
    x, w, b = tensors((3, 8), (8,), (8,))
    x = x * 1e-2  # so that eps matters
    assert_equal(lambda x, w, b: f.layer_norm(x, (8,), w, b, eps=1e-3), x, w, b)
    assert_equal(lambda x, w, b: f.layer_norm(x, (8,), w, None, eps=1e-3), x, w, b)
    assert_equal(lambda x, w, b: f.layer_norm(x, (3, 8), eps=1e-3), x, w, b)
    assert_equal(lambda x, w: f.rms_norm(x, (8,), w, eps=1e-3), x, w)
    assert_equal(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3), x)
    assert_equal(lambda x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-3), x)
    assert_equal(lambda x: x / (x.std(-1, keepdim=True) + 1e-3), x)
    images, scale = tensors((2, 6, 3, 5), (6,))
    assert_equal(lambda x, w: f.group_norm(x * 1e-2, 3, w, w, eps=1e-3), images, scale)
    assert_equal(lambda x, w: f.instance_norm(x * 1e-2, weight=w, bias=w, eps=1e-3), images, scale)
    assert_equal(lambda x, w: f.batch_norm(x * 1e-2, w, w * w, w, w, eps=1e-3), images, scale)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 1e-2)])
def test_eps_of_rms_norm_is_that_of_its_type_by_default(dtype: str, tolerance: float) -> None:
    [x] = tensors((3, 8))
    x = (x * 3e-4).to(getattr(torch, dtype))
    for norm in (lambda x: f.rms_norm(x, (8,)), lambda x: torch.ops.aten._fused_rms_norm(x, [8], None, None)[0]):
        it = imported(norm, x)
        assert it.outside == () and relative_error(it.run(x), norm(x)) <= tolerance


def test_softmax_may_compute_in_another_type() -> None:
    [x] = tensors((3, 8))
    assert_equal(lambda x: f.softmax(x, -1, dtype=torch.float32), x)
    assert_equal(lambda x: f.log_softmax(x, 0), x)
    assert_equal(lambda x: f.softmax(x, -1, dtype=torch.float32), x.half())
    assert_equal(lambda x: x.sum(-1, dtype=torch.float32) + x.mean((0, 1), dtype=torch.float32), x.half())
    assert_equal(lambda x: f.log_softmax(x, 0, dtype=torch.float64), x, tolerance=1e-12)


@pytest.mark.parametrize("keepdim", [True, False])
def test_a_reduction_keeps_or_drops_its_dims(keepdim: bool) -> None:
    [x] = tensors((3, 4, 5))
    for reduce in (torch.sum, torch.mean, torch.amax, torch.amin, torch.var, torch.std, torch.logsumexp):
        assert_equal(lambda x, reduce=reduce: reduce(x, (0, 2), keepdim=keepdim), x)
    assert_equal(lambda x: x.max(1, keepdim=keepdim).values, x)
    assert_equal(lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim), x)
    assert_equal(lambda x: x.sum() + x.mean() + x.max() - x.min(), x)


def test_negative_dims_count_from_the_end() -> None:
    [x] = tensors((2, 4, 6))
    assert_equal(lambda x: f.softmax(x, -2) + x.mean(-3), x)
    assert_equal(lambda x: x.transpose(-1, -3).exp(), x)
    assert_equal(lambda x: x.permute(-1, 0, -2).exp(), x)
    assert_equal(lambda x: torch.cat([x, x], -2) + torch.stack([x, x], -3).reshape(2, 8, 6), x)
    assert_equal(lambda x: x.unflatten(-1, (2, 3)).movedim(-1, 1).flatten(-2).exp(), x)
    assert_equal(lambda x: sum(part.exp() for part in x.chunk(3, -1)) + x.narrow(-1, -2, 2), x)
    assert_equal(lambda x: x[..., -2:].exp() + x.select(-1, -1).unsqueeze(-1) + x[:, :, 2:-2], x)


def test_interpolation_reads_the_elements_that_torch_reads() -> None:
    [x] = tensors((2, 3, 8, 10))
    for sizes, modes in (
        ({"scale_factor": 2.3}, ("nearest", "nearest-exact", "bilinear")),
        ({"scale_factor": 0.7}, ("nearest-exact", "bilinear", "bicubic")),
        ({"size": (5, 13)}, ("nearest", "bilinear")),
    ):
        for mode in modes:
            assert_equal(lambda x, options=sizes | {"mode": mode}: f.interpolate(x, **options).exp(), x, tolerance=1e-5)
    assert_equal(lambda x: f.interpolate(x, (5, 20), mode="bilinear", align_corners=True).exp(), x, tolerance=1e-5)
    assert_equal(lambda x: f.interpolate(x[0], 13, mode="linear") + f.interpolate(x[0], 13), x, tolerance=1e-5)
    assert_equal(lambda x: f.interpolate(x[None], (4, 5, 13), mode="trilinear").exp(), x, tolerance=1e-5)


def test_twice_as_many_elements_by_another_scale_stay_outside() -> None:
    [x] = tensors((1, 3, 4))  # by 2.1 torch reads each element twice on a CPU, and not on a GPU
    assert_outside(lambda x: f.interpolate(x, scale_factor=2.1).exp(), x, reason="kernels of torch differ")


@pytest.mark.parametrize("size", [(3, 7), (16, 7), (11, 5), (2, 30), (4, None)])
def test_adaptive_pooling_has_the_windows_of_torch(size: tuple[int, ...]) -> None:
    [x] = tensors((2, 3, 8, 10))
    assert_equal(lambda x: f.adaptive_avg_pool2d(x, size).exp() + f.adaptive_max_pool2d(x, size), x)
    assert_equal(lambda x: f.adaptive_avg_pool3d(x, (2, *size)).exp() + f.adaptive_max_pool3d(x, (2, *size)), x)
    assert_equal(lambda x: f.adaptive_avg_pool1d(x[0], size[0]).exp() + f.adaptive_max_pool1d(x[0], size[0]), x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_an_operand_without_dims_does_not_widen_the_type(dtype: str) -> None:
    [x] = tensors((3, 4))
    x, number = x.to(getattr(torch, dtype)), torch.tensor(0.1, dtype=torch.float32)
    for function in (
        lambda x, y: x * 2 + y,
        lambda x, y: torch.clamp(x * 2, -y, y),
        lambda x, y: torch.where(x * 2 < y, x, y),
        lambda x, y: torch.addcmul(x, x, y, value=0.5),
    ):
        it = imported(function, x, number)
        assert it.outside == ()
        torch.testing.assert_close(it.run(x, number), function(x, number))


@pytest.mark.parametrize("join", [torch.cat, torch.stack])
@pytest.mark.parametrize("types", [(torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16)])
def test_tensors_of_several_types_are_joined_in_that_of_the_result(join: Any, types: tuple[Any, Any]) -> None:
    x, y = (each.to(dtype) for each, dtype in zip(tensors((3, 4), (3, 4)), types, strict=True))
    assert_equal(lambda x, y: join([x, y], 1) * 2, x, y)
    assert imported(lambda x, y: join([x, y]), x, y).run(x, y)[0].dtype is torch.float32


def test_a_division_that_rounds_stays_outside() -> None:
    x, y = tensors((3, 4), (3, 4))
    assert_equal(lambda x, y: torch.div(x, y + 9, rounding_mode=None), x, y)
    for mode in ("floor", "trunc"):
        assert_outside(lambda x, y, mode=mode: torch.div(x, y + 9, rounding_mode=mode).exp(), x, y, reason=mode)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.25), (None, 0.25), (-0.5, None), (0, None), (None, 0)])
def test_a_bound_of_clamp_may_be_absent(low: float | None, high: float | None) -> None:
    [x] = tensors((3, 40))
    assert_equal(lambda x: torch.clamp(x, low, high), x)


QUERY, KEY = (2, 4, 5, 8), (2, 4, 7, 8)


@pytest.mark.parametrize("scale", [None, 0.2, 1.0])
def test_attention_scales_by_the_given_number_or_by_the_root(scale: float | None) -> None:
    assert_equal(lambda q, k, v: f.scaled_dot_product_attention(q, k, v, scale=scale), *tensors(QUERY, KEY, KEY))


def test_attention_shares_keys_among_the_heads_of_a_group() -> None:
    q, k, v = tensors((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    mask = torch.randn(2, 6, 5, 7)
    kept = mask > -1
    attend = f.scaled_dot_product_attention
    assert_equal(lambda q, k, v: attend(q, k, v, enable_gqa=True), q, k, v)
    assert_equal(lambda q, k, v, m: attend(q, k, v, attn_mask=m, enable_gqa=True), q, k, v, mask)
    assert_equal(lambda q, k, v, m: attend(q, k, v, attn_mask=m[0, 0], enable_gqa=True), q, k, v, mask)
    assert_equal(lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    assert_equal(lambda q, k, v, m: attend(q, k, v, attn_mask=m, enable_gqa=True), q, k, v, kept)


KERNELS = {
    "flash_attention": lambda q, k, v, causal: (q, k, v, 0.0, causal),
    "flash_attention_for_cpu": lambda q, k, v, causal: (q, k, v, 0.0, causal),
    "efficient_attention": lambda q, k, v, causal: (q, k, v, None, False, 0.0, causal),
    "cudnn_attention": lambda q, k, v, causal: (q, k, v, None, False, 0.0, causal),
}


@pytest.mark.parametrize("heads", [6, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_attention_share_keys_without_a_flag(name: str, causal: bool, heads: int) -> None:
    kernel, inputs = getattr(torch.ops.aten, f"_scaled_dot_product_{name}"), tensors((2, 6, 7, 8), *[(2, heads, 7, 8)] * 2)
    traced = [tensor.to("meta") for tensor in inputs]  # which every kernel takes, also without a GPU
    it = imported(lambda q, k, v: kernel(*KERNELS[name](q, k, v, causal))[0], *traced)
    assert it.outside == ()
    wanted = f.scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=True)
    assert relative_error(it.run(*inputs), wanted) <= 1e-6


def test_attention_adds_a_mask_of_numbers_and_drops_where_one_is_false() -> None:
    q, k, v = tensors(QUERY, KEY, KEY)
    numbers = torch.randn(5, 7)
    kept = torch.ones(5, 7).tril(2) > 0
    attend = f.scaled_dot_product_attention
    assert_equal(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, numbers)
    assert_equal(lambda q, k, v: attend(q, k, v, attn_mask=torch.ones(5, 7, dtype=torch.bool).tril(2)), q, k, v)
    assert_equal(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
    assert_equal(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, kept)
    row = torch.ones(5, 7) * torch.arange(5)[:, None] > 0
    assert not imported(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, row).run(q, k, v, row)[:, :, 0].any()
    assert_equal(lambda q, k, v: attend(q, k, v, attn_mask=row), q, k, v)  # torch too gives zeros for a row without scores


def test_a_bias_may_be_absent() -> None:
    x, w, b = tensors((2, 3, 4), (5, 4), (5,))
    assert_equal(lambda x, w, b: f.linear(x, w, None), x, w, b)
    assert_equal(lambda x, w, b: f.linear(x, w, b), x, w, b)
    assert_equal(lambda x, w, b: f.linear(x[0, 0], w, b), x, w, b)


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5))],
)
def test_a_vector_in_a_product_is_a_row_or_a_column(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert_equal(torch.matmul, *tensors(left, right))


def test_an_argument_that_no_handler_knows_leaves_the_node_outside() -> None:
    graph = KernelGraph()
    kind = TorchType((3, 4), "float32")
    arguments = {"self": graph.new_input((3, 4), "float32"), "approximate": "none"}
    for extra, refused in (({}, False), ({"accuracy": 0}, False), ({"accuracy": 1}, True)):
        unused = {
            "lift": lambda *rest: None,
            "causal_mask": lambda *rest: None,
            "known": lambda it: None,
            "tensor_of": lambda it: it,
        }
        call = Call(graph, arguments | extra, {"accuracy": 0}, {"self": kind}, [kind], **unused)
        HANDLERS["aten.gelu.default"](call)
        if refused:
            with pytest.raises(UnsupportedError, match="accuracy = 1 is not supported"):
                call.finish()
        else:
            call.finish()


def test_an_operand_that_gives_its_type_or_shape_alone_is_no_input() -> None:
    x, y = tensors((6, 1), (6, 8))
    it = imported(lambda x, y: x.expand_as(y).exp() + x.type_as(y) + torch.zeros_like(y), x, y)
    assert it.outside == () and [graph.input_names[:1] for graph in it.programs] == [("args_0",)]
    assert "args_1" not in it.programs[0].input_names


def test_an_op_without_a_handler_stays_outside_with_its_operands() -> None:
    [x] = tensors((3, 8))
    it = imported(lambda x: torch.fft.rfft(x.exp()).abs().tanh(), x)
    assert [(node.op, node.reason) for node in it.outside] == [
        ("aten._fft_r2c.default", "no op of the IR computes it"),
        ("aten.abs.default", "self has element type complex64, wanted one of float16, bfloat16, float32, float64"),
    ]
    assert relative_error(it.run(x), torch.fft.rfft(x.exp()).abs().tanh()) <= 1e-6


def written(x: Any) -> Any:
    """x with a column, a row and a block replaced in place."""
    y = x * 1
    y[:, 0] = x[:, 1] + 1
    y[-1] = x[0].half()
    y[1:3, -4:] = x[:2, :4].exp()
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x: f.leaky_relu(x, 0.2) + f.elu(x, 0.7) + f.celu(x, 0.7) + f.selu(x),
        lambda x: f.softplus(x) + f.softplus(x, beta=3, threshold=30) + f.mish(x) + f.logsigmoid(x),
        lambda x: f.hardtanh(x, -0.5, 0.5) + f.relu6(x * 9) + f.hardswish(x) + f.hardsigmoid(x),
        lambda x: x.abs().sqrt() + (x * x + 1).log() + (x * x + 1).reciprocal() + 2 / (x * x + 1),
        lambda x: (x * x + 1) ** 1.5 + (x * x + 1) ** -0.5 + x**3 + torch.square(x) + x.pow(1),
        lambda x: torch.maximum(x, -x) + torch.minimum(x, x * 2) - x.neg(),
        lambda x: torch.einsum("bij,bkj->bik", x.reshape(2, 3, 8), x.reshape(2, 3, 8)),
        lambda x: torch.roll(x, (1, -2), (0, 1)) + torch.roll(x, 5) + x.repeat(1, 1) + x.t().T,
        lambda x: torch.addcmul(x, x, x[0], value=0.3) + torch.addcdiv(x, x[1], x * x + 1, value=-2) + x.clamp(1, 0.5),
        lambda x: x.repeat_interleave(2, 1).reshape(6, 2, 8).sum(1) + x.repeat(2, 1)[:6],
        lambda x: (
            f.silu(x) * f.sigmoid(x) - f.tanh(x) + f.dropout(x, 0.5, training=False) + torch.native_dropout(x, 0.2, False)[0]
        ),
        lambda x: torch.baddbmm(x[None], x[None], x[:, None, :6].reshape(1, 6, 6)[..., :6].repeat(1, 2, 2)[:, :8, :8]),
        lambda x: torch.where(x > 0, 1.0, x) + 1e6 * torch.where(x > 0, 1.0000001, x),
        lambda x: torch.where(x > 0, x, 2 * x) + torch.where(x <= 0.5, 1.0, x) + torch.where(x.bool(), 3.0, -1.0),
        lambda x: x.masked_fill((x < 0.1) & ~(x >= 1) | (x == 0), 7) + (x != 0).float() + (x > x.t().reshape(6, 8)).to(x.dtype),
        lambda x: f.softmax(x.masked_fill(torch.ones(6, 8).triu(1) > 0, float("-inf")), -1),
        lambda x: f.softmax(torch.where(x > -1, x, float("-inf")), -1),
        lambda x: (
            x[:, [1, 2, 3, 0]] + x.index_select(1, torch.tensor([7, 6, 0, 1])) + f.pad(x, (-2, 0, 1, -1), value=2.5)[:, :4]
        ),
        lambda x: f.pad(x, (1, 2)).sum(1, keepdim=True) + f.adaptive_avg_pool1d(x[None], 1)[0],
        lambda x: torch.cat([x[:, :0], x, x[:0, :8].reshape(6, 0)], 1).exp(),
        lambda x: x.half().exp().float() + x.double().tanh().to(x),
        lambda x: f.glu(x, -1) + f.normalize(x, dim=-1)[:, :4],
        lambda x: torch.expm1(x) + torch.log1p(x.abs()) + torch.exp2(x) + torch.log2(x.abs() + 1) + torch.log10(x.abs() + 1),
        lambda x: (
            torch.floor(3 * x) + 10 * torch.ceil(2 * x) + 100 * torch.trunc(5 * x) + (x > 0) + torch.floor(x.round() + 0.5)
        ),
        lambda x: 2.5**x + torch.sign(x) + torch.sign(x * 0) + f.softshrink(x, 0.3) + f.prelu(x, torch.full((1,), 0.3).to(x)),
        lambda x: ((x > 0) ^ (x < 1)).to(x.dtype) + torch.clamp(x, max=x.abs() / 2) + torch.clamp_min(x, x.mean()),
        lambda x: torch.cdist(x, x[:4] + 1, compute_mode="donot_use_mm_for_euclid_dist") + torch.linalg.vector_norm(x, 3),
        lambda x: torch.addmv(x[0, :6], x, x[1], beta=0.5, alpha=2.0) + x.unsafe_split(4, 1)[1].sum(1),
        lambda x: torch.prod(x, 1) + torch.prod(x, 0, keepdim=True)[0, :6] + torch.prod(x[:, :3]) + x[:, :7].prod(-1),
        lambda x: f.batch_norm(x, None, None, training=True) + f.batch_norm(x, None, None, x[0], x[1], True, 0.3, 1e-3),
        lambda x: torch.erf(x) + torch.special.erf(2 * x) + torch.sin(9 * x) * torch.cos(x * x) + torch.tan(x.tanh()),
        lambda x: torch.einsum("ij,kj,k,i->jk", x, x[:, :8], x[0, :6], x[:, 1]) + torch.einsum("...ij,...kj", x, x)[0, 0],
        lambda x: torch.einsum("i,j", x[0], x[1]) + torch.einsum("ij->j", x) + torch.einsum("ij,kl->jl", x, x),
        lambda x: (
            x[[0, 5, -1], [7, 2, 1]] + x[torch.arange(6)[:, None], torch.arange(3) * 2].exp() + x[None].tile(2, 1, 1)[1, :, :3]
        ),
        lambda x: x[torch.tril_indices(6, 6, -1)[0], torch.tril_indices(6, 6, -1)[1]].exp(),
        lambda x: f.interpolate(x[None], scale_factor=2) + f.interpolate(x[None, None], size=(6, 16))[0] * 2,
        lambda x: x.unfold(1, 4, 4).exp() + x.unfold(1, 7, 1)[..., :4] + x.unfold(0, 2, 4).sum(),
        lambda x: torch.where(((x > 0) == False) | ((x > 1) == (x > 0)) | ((x > 0.5) != 1), x, 2 * x),  # noqa: E712
        lambda x: f.cosine_similarity(x, x.roll(1, 0)) + f.pairwise_distance(x, x.roll(1, 0)),
    ],
)
def test_an_op_computes_what_torch_computes(function: Callable[[Any], Any]) -> None:
    [x] = tensors((6, 8))
    it = imported(function, x)
    assert relative_error(it.run(x), function(x.double())) <= 1e-6
