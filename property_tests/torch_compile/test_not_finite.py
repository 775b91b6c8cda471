"""Values of a model that are one number for all numbers: constants unless the setting keeps what is not finite."""

import pytest

torch = pytest.importorskip("torch")

from mirage_eg.torch_compile.backend import backend  # noqa: E402
from mirage_eg.torch_compile.records import graph_records  # noqa: E402


class Capped(torch.nn.Module):  # type: ignore[misc]
    """A product whose elements are at most and at least 0: the number is a tensor in the source."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return torch.clamp(torch.min(self.linear(x), torch.tensor(0.0)), min=0.0, max=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_a_clamped_minimum_is_no_product_unless_nan_is_kept(kept: bool) -> None:
    torch._dynamo.reset()
    options = {"gate": "cost", "rest": "eager", "min_ops": 1, "cache": "off", "not_finite": "keep" if kept else "lose"}
    model, x, before = Capped(), torch.randn(4, 16), len(graph_records())
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, options=options, dynamic=False)
        assert torch.equal(compiled(x), model(x))
        [record] = graph_records()[before:]
        assert record.used == 1
        x[0, 0] = torch.nan
        assert bool(compiled(x)[0].isnan().all()) is kept and bool(model(x)[0].isnan().all())
