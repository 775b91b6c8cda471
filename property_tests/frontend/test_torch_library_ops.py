"""Imported library ops, pooling and batch norm: the same numbers and types as torch's, or outside with a reason."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
f = torch.nn.functional

from mirage_eg.ir.ops import OPS, Kind  # noqa: E402
from property_tests.support.torch_import import imported  # noqa: E402

X = torch.arange(30.0).reshape(6, 5).remainder(7) / 3 + torch.linspace(0, 1, 30).reshape(6, 5)
ROWS, J = torch.tensor([3, 0, 5]), torch.tensor([[1, 0], [4, 2], [3, 3], [0, 1], [2, 2], [1, 4]])
M = X > 1
IMAGE = torch.linspace(-1, 1, 60).reshape(2, 5, 6).sin()


def _put(x: Any, i: Any, value: Any) -> Any:
    y = x.clone()
    y[:, i] = value
    return y * 2


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "embedding": (lambda i, w: f.embedding(i, w).sum(-1), (ROWS, X), "gather"),
    "embedding of one row": (lambda x: f.embedding(torch.full((2, 3), 4), x) * x[1], (X,), "mul"),
    "embedding of neighbours": (lambda x: f.embedding(torch.arange(1, 4), x).exp(), (X,), "exp"),
    "one row from the end": (lambda x: x[torch.full((4,), -2)] * x[:4], (X,), "mul"),
    "one column": (lambda x: x.index_select(1, torch.full((5,), 3)) * x, (X,), "mul"),
    "rows": (lambda x, i: x[i] * 2, (X, ROWS), "gather"),
    "rows from the end": (lambda x, i: x[i] * 2, (X, ROWS - 6), "gather"),
    "columns": (lambda x, i: x[:, i] * 2, (X, ROWS.clamp(0, 4)), "gather"),
    "index_select": (lambda x, i: torch.index_select(x, 0, i).exp(), (X, ROWS), "gather"),
    "gather": (lambda x, j: torch.gather(x, 1, j).exp(), (X, J), "take_along_dim"),
    "gather of fewer rows": (lambda x, j: torch.gather(x, 1, j[:3]).exp(), (X, J), "take_along_dim"),
    "sort": (lambda x: torch.sort(x, 1, descending=True), (X,), "argsort"),
    "topk": (lambda x: torch.topk(x, 2, 0), (X,), "argsort"),
    "smallest": (lambda x: torch.topk(x, 2, 0, largest=False).values, (X,), "argsort"),
    "maximum and place": (lambda x: x.max(1), (X,), "argsort"),
    "argmin of all": (lambda x: x.argmin(), (X,), "argsort"),
    "argmax that keeps its dim": (lambda x: x.argmax(0, keepdim=True), (X,), "argsort"),
    "cumsum from the end": (lambda x: torch.flip(torch.cumsum(torch.flip(x, [1]), 1), [1]), (X,), "cumsum"),
    "cumsum under a mask": (lambda x, m: torch.cumsum(x * m, 1), (X, M), "cumsum"),
    "cumprod": (lambda x: torch.cumprod(x, 1), (X,), "mul"),
    "running maximum": (lambda x: torch.cummax(x, 0).values, (X,), "maximum"),
    "running minimum": (lambda x: torch.cummin(x, -1).values, (X,), "minimum"),
    "diagonal": (lambda x: torch.diag(x[:, 0]) @ x, (X,), "matmul"),
    "a diagonal of each matrix": (lambda x: torch.diagonal(x, 1, -1, 0) * 2, (IMAGE,), "transpose"),
    "a diagonal below": (lambda x: x.diagonal(-2).exp(), (X,), "exp"),
    "trace": (lambda x: torch.trace(x) * x, (X,), "mul"),
    "einsum of diagonals": (lambda x: torch.einsum("aabb,ab->ba", x[:, :, None, None] * x, x), (X[:5, :5],), "mul"),
    "index_copy": (lambda x, i, v: x.index_copy(0, i, v) * 2, (X, ROWS, X[:3] + 9), "index_write"),
    "written columns": (_put, (X, torch.tensor([1, 4]), X[:, :2] + 9), "index_write"),
    "written numbers": (lambda x, i: _put(x, i, 0.0), (X, torch.tensor([1, 4])), "index_write"),
    "scatter": (lambda x, j: x.scatter(1, j[:, :1], x[:, :1] + 9) * 2, (X, J), "scatter"),
    "cross entropy": (lambda x, i: f.cross_entropy(x, i), (X[:3], ROWS.clamp(0, 4)), "take_along_dim"),
    "cross entropy of pixels": (
        lambda x, j: f.nll_loss(x[None].permute(0, 2, 1), j[None, :, 0], ignore_index=2),
        (X, J),
        "take_along_dim",
    ),
    "likelihoods": (lambda x, i: f.nll_loss(x, i, reduction="none", ignore_index=3), (X[:3], ROWS.clamp(0, 4)), "where"),
    "a sum of likelihoods": (lambda x, i: f.nll_loss(x, i, reduction="sum"), (X[:3], ROWS.clamp(0, 4)), "take_along_dim"),
    "xlogy": (lambda x, m: torch.xlogy(x * m, x + 1), (X, M), "where"),
    "distances": (lambda x: f.pairwise_distance(x[:3], x[3:]), (X,), "sqrt"),
    "order of integers": (lambda i: torch.sort(i, descending=True), (ROWS,), "argsort"),
    "place of the largest integer": (lambda j: j.argmax(1), (J,), "argsort"),
    "a counter": (lambda i: i + 1, (ROWS,), "add"),
    "max_pool2d": (lambda x: f.max_pool2d(x, 2), (IMAGE,), "max"),
    "avg_pool1d": (lambda x: f.avg_pool1d(x, 3), (IMAGE,), "mean"),
    "conv2d": (lambda x: f.conv2d(x[None], x[:, None, :3, :2], None, (2, 1), (1, 2), (1, 2), 2), (IMAGE,), "conv2d"),
    "conv2d without a batch": (lambda x, b: f.conv2d(x, x[None, :, :3, :2], b), (IMAGE, IMAGE[0, 0, :1]), "conv2d"),
    "conv2d of the same extents": (
        lambda x: f.conv2d(x, x[None, :, :3, :5], padding="same", dilation=(2, 1)),
        (IMAGE,),
        "conv2d",
    ),
    "conv2d without padding": (lambda x: f.conv2d(x, x[None, :, :4, :2], padding="valid"), (IMAGE,), "conv2d"),
    "conv1d": (lambda x, w: f.conv1d(x, w, w[:, 0, 0], 2, 2, 2), (IMAGE, IMAGE[:1, :5, :2]), "conv2d"),
    "conv1d of groups": (lambda x, w: f.conv1d(x, w, padding="same", groups=5), (IMAGE, IMAGE[0, :5, None, :3]), "conv2d"),
    "conv3d": (
        lambda x, b: f.conv3d(x[None, :, None], x[:, None, None, :2, :2], b, (1, 2, 1), (0, 1, 1), 1, 2),
        (IMAGE, IMAGE[:, 0, 0]),
        "conv3d",
    ),
    "conv3d without a batch": (lambda x: f.conv3d(x[None], x[None, None, :1, :3, :3], padding="same"), (IMAGE,), "conv3d"),
    "conv_transpose1d": (
        lambda x, w: f.conv_transpose1d(x, w, w[0, :, 0], 2, 1, 1, 1, 1),
        (IMAGE, IMAGE[0, :, None, :2]),
        "conv_transpose2d",
    ),
    "conv_transpose2d": (
        lambda x: f.conv_transpose2d(x[None], x[:, None, :2, :2], None, (2, 1), 1, (1, 0), 2, (1, 2)),
        (IMAGE,),
        "conv_transpose2d",
    ),
    "conv_transpose3d": (
        lambda x, b: f.conv_transpose3d(x[None, :, None], x[:, None, None, :3, :1], b, 2, (0, 1, 0), (0, 1, 1)),
        (IMAGE, IMAGE[0, 0, :1]),
        "conv_transpose3d",
    ),
    "max_pool3d that overlaps": (
        lambda x: f.max_pool3d(x[None], (2, 3, 2), 1, (1, 1, 0), ceil_mode=True),
        (IMAGE,),
        "max_pool3d",
    ),
    "avg_pool3d without its padding": (
        lambda x: f.avg_pool3d(x[None], (2, 3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
        (IMAGE,),
        "avg_pool3d",
    ),
    "avg_pool3d with ceil_mode": (
        lambda x: f.avg_pool3d(x[None], (2, 3, 2), 2, 1, ceil_mode=True),
        (IMAGE[:, :, :5],),
        "avg_pool3d",
    ),
    "avg_pool3d with a divisor": (lambda x: f.avg_pool3d(x[None], 2, 1, 1, divisor_override=3), (IMAGE,), "avg_pool3d"),
    "max_pool2d that overlaps": (lambda x: f.max_pool2d(x, 3, 2, 1), (IMAGE,), "max_pool2d"),
    "max_pool2d with dilation and ceil_mode": (
        lambda x: f.max_pool2d(x, 2, (2, 3), 1, (2, 1), ceil_mode=True),
        (IMAGE,),
        "max_pool2d",
    ),
    "max_pool1d that leaves gaps": (lambda x: f.max_pool1d(x, 2, 3, 1), (IMAGE,), "max_pool2d"),
    "avg_pool2d that overlaps": (lambda x: f.avg_pool2d(x, (3, 2), 1, 1), (IMAGE,), "avg_pool2d"),
    "avg_pool2d without its padding": (
        lambda x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        (IMAGE,),
        "avg_pool2d",
    ),
    "avg_pool2d with ceil_mode": (lambda x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE[:, :, :5],), "avg_pool2d"),
    "avg_pool2d beyond the edge": (lambda x: f.avg_pool2d(x, 4, ceil_mode=True), (IMAGE,), "avg_pool2d"),
    "avg_pool2d with a divisor": (
        lambda x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        (IMAGE,),
        "avg_pool2d",
    ),
    "avg_pool1d with padding": (lambda x: f.avg_pool1d(x, 3, 2, 1, True), (IMAGE,), "avg_pool2d"),
    "pad": (lambda x: f.pad(x, (1, 2, 0, 1), value=0.5) * 2, (IMAGE,), "pad"),
    "pad that cuts": (lambda x: f.pad(x, (-1, 2, 1, -2)) * 2, (IMAGE,), "pad"),
    "flip": (lambda x: torch.flip(x, (0, -1)) * 2, (IMAGE,), "flip"),
    "batch norm": (
        lambda x, m, v: f.batch_norm(x[None], m, v.square(), v, m, eps=0.5),
        (IMAGE, IMAGE[:, 0, 0], IMAGE[:, 1, 0]),
        "batch_norm",
    ),
    "batch norm of a batch": (lambda x, m: f.batch_norm(x[0], m, m.square(), eps=0.5), (IMAGE, IMAGE[0, 0]), "batch_norm"),
    "adaptive_avg_pool2d": (lambda x: f.adaptive_avg_pool2d(x, (5, 2)), (IMAGE,), "mean"),
    "adaptive_avg_pool2d to one": (lambda x: f.adaptive_avg_pool2d(x, 1), (IMAGE,), "mean"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_library_op_of_torch_is_imported_with_its_numbers_and_types(name: str) -> None:
    function, arguments, op = CASES[name]
    it = imported(function, *arguments)
    assert it.outside == ()
    assert op in {item.op for program in it.programs for item in program.ops}
    results, wanted = it.run(*arguments), function(*arguments)
    pairs = zip(results, wanted, strict=True) if isinstance(wanted, tuple) else [(results, wanted)]
    for result, one in pairs:
        assert result.dtype is one.dtype and result.shape == one.shape
        torch.testing.assert_close(result, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("places", "op"), [([4, 4], "broadcast"), ([1, 2, 3], "slice"), ([0, 1, 4], "gather"), ([6, 6], "gather")]
)
def test_an_embedding_of_constants_is_a_slice_where_one_suffices(places: list[int], op: str) -> None:
    it = imported(lambda x: f.embedding(torch.tensor(places) + 0, x).exp(), X)
    assert [item.op for program in it.programs for item in program.nodes if item.op != "input"][-3] == op


@pytest.mark.parametrize(("width", "reads"), [(8, 1), (1, 1), (8, 2)])
def test_rows_of_a_table_of_parameters_are_constants_unless_they_are_larger(width: int, reads: int) -> None:
    class Typed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(2, width))
            self.register_buffer("types", torch.arange(24).remainder(2))

        def forward(self, x: Any) -> Any:
            rows = f.embedding(self.types, self.table)
            return sum([torch.exp(x + number) * rows for number in range(reads)])

    from mirage_eg.frontend.torch_export import import_program

    model, x = Typed(), torch.randn(24, width)
    it = import_program(torch.export.export(model, (x,), strict=False))
    assert ("gather" in {item.op for program in it.programs for item in program.nodes}) == (width > 1 and reads == 1)
    torch.testing.assert_close(it.run(x), model(x))


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (lambda x: f.max_pool3d(x[None], 2, return_indices=True)[1] * 1.0, (IMAGE,), "the places of the maxima"),
        (lambda x: f.max_pool2d(x, 3, 2, return_indices=True)[1] * 1.0, (IMAGE,), "the places of the maxima"),
        (lambda x: f.adaptive_avg_pool1d(x.reshape(1, 1, -1), 67), (IMAGE,), "windows of several sizes"),
        (lambda x, i: torch.index_put(x, (i,), x[:3], accumulate=True), (X, ROWS), "atomic additions"),
        (
            lambda x, i: torch.ops.aten.index_put(x[None] * 2, [i * 0, None, i], x[0, 0]),
            (X, ROWS.clamp(0, 4)),
            "for neighbours",
        ),
    ],
)
def test_what_library_ops_do_not_express_stays_outside(function: Any, arguments: Any, reason: str) -> None:
    it = imported(lambda *given: function(*given).exp(), *arguments)
    assert any(reason in node.reason for node in it.outside), it.outside
    wanted = function(*arguments).exp()
    torch.testing.assert_close(it.run(*arguments), wanted, rtol=1e-5, atol=1e-6)


def test_batch_norm_in_training_uses_the_batch_and_moves_its_statistics() -> None:
    model = torch.nn.BatchNorm2d(2, momentum=0.3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([0.5, 2.0]))
        program = torch.export.export(model, (IMAGE[:, None].expand(2, 2, 5, 6),), strict=False)
    from mirage_eg.frontend.torch_export import import_program

    it = import_program(program)
    assert it.outside == ()
    means = [item["dim"] for written in it.programs for item in written.nodes if item.op == "mean"]
    assert means == [2, 3, 0] * 2  # positions follow each other
    own = torch.nn.BatchNorm2d(2, momentum=0.3)
    own.load_state_dict(model.state_dict())
    for scale in (1, 3):
        x = scale * IMAGE[:, None].expand(2, 2, 5, 6)
        torch.testing.assert_close(it.run(x), own(x).detach(), rtol=1e-5, atol=1e-6)
    for name, tensor in own.named_buffers():
        torch.testing.assert_close(program.state_dict[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batch_norm_in_training_in_half_precision_computes_in_float32(dtype: Any) -> None:
    x = (16 + torch.randn(4, 3, 5, 6)).to(dtype)
    model, own = torch.nn.BatchNorm2d(3).to(dtype), torch.nn.BatchNorm2d(3).to(dtype)
    with torch.no_grad():
        model.bias.fill_(0.5)
    own.load_state_dict(model.state_dict())
    from mirage_eg.frontend.torch_export import import_program

    program = torch.export.export(model, (x,), strict=False)
    it = import_program(program)
    assert it.outside == ()
    exact = torch.nn.BatchNorm2d(3).double()(x.double()).detach() + 0.5
    rounding = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(it.run(x).double(), exact, rtol=rounding, atol=rounding)  # a mean of 16 is no whole half
    own(x)
    for name, tensor in own.named_buffers():
        torch.testing.assert_close(program.state_dict[name], tensor, rtol=rounding, atol=rounding)


def test_a_library_op_of_weights_alone_is_a_constant() -> None:
    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(8, 4))

        def forward(self, x: Any) -> Any:
            return x + f.embedding(torch.arange(3), self.table)

    from mirage_eg.frontend.torch_export import import_program

    model, x = Positions(), torch.randn(3, 4)
    it = import_program(torch.export.export(model, (x,), strict=False))
    [program] = it.programs
    assert all(OPS[item.op].kind is not Kind.LIBRARY for item in program.nodes)
    torch.testing.assert_close(it.run(x), model(x).detach())
