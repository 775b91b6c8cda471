"""Functions and models with unusual types, structures, transforms and writes, which eager torch allows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from property_tests.support.torch_cases import WEIGHT, WIDTH, norm, projected

Made = tuple[Callable[..., Any], tuple[Any, ...]]  # a model, and its arguments
UNUSUAL: dict[str, Callable[[], Made]] = {}


def unusual(make: Callable[[], Made]) -> Callable[[], Made]:
    """Add a model under the name of the function that makes it."""
    UNUSUAL[make.__name__.replace("_", " ")] = make
    return make


def rows(count: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Normal rows of the width of all cases."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Pair(NamedTuple):
    """Two tensors."""

    first: Any
    second: Any


@dataclass
class Outcome:
    """A result that is a record."""

    value: Any
    missing: Any = None


@unusual
def complex_numbers() -> Made:
    return lambda z: (projected(z.real) + projected(z.imag), (z * z.conj()).real + 1), (rows().to(torch.complex64),)


@unusual
def several_types() -> Made:
    def function(x: Any, half: Any, whole: Any, flags: Any) -> Any:
        double = norm(x.double()) @ WEIGHT.double()
        sums = whole * 3 + 1, (whole % 5).float()[:, None] * projected(x), whole.sum(), x[whole.flip(0)]
        return double, F.layer_norm(half, (WIDTH,)) * 3, sums, torch.where(flags, projected(x), -1.0), ~flags, flags.any(-1)

    return function, (rows(), rows(dtype=torch.bfloat16), torch.arange(8), rows() > 0)


@unusual
def constants_of_the_shapes_of_values() -> Made:
    def function(x: Any) -> Any:
        rates = projected(x).sigmoid()
        left = torch.cat([torch.ones_like(rates[:, :1]), 1 - rates], -1).cumprod(-1)
        turned = torch.full_like(rates.t(), 2)
        return left[:, 1:] * rates, turned, turned * rates.t() + rates.new_zeros(len(x)), torch.zeros_like(x) + left.sum()

    return function, (rows(),)


@unusual
def empty_tensors() -> Made:
    return lambda none, x: (projected(none).relu() + 1, projected(torch.cat([x, none])) * 2), (rows(0), rows())


@unusual
def numbers_that_are_none() -> Made:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0]).repeat(8, 4)
    return lambda x: (torch.maximum(x, -x), x.relu(), x.clamp(0, 5), x.softmax(-1), torch.nan_to_num(x) + x.exp()), (x,)


@unusual
def nested_structures() -> Made:
    def function(it: dict[str, Any], pair: Pair, several: list[Any]) -> Any:
        first, (second, nothing) = it["list"]
        results = {"x": projected(first) + second, "none": nothing, "same": it["x"], "list": [projected(second), 3, "s"]}
        return results, Pair(projected(pair.first) + 1, pair.second), [projected(x) + i for i, x in enumerate(several)]

    return function, ({"x": rows(), "list": [rows(8, 1), (rows(8, 2), None)]}, Pair(rows(8, 3), rows(8, 4)), [rows(), rows()])


@unusual
def a_record_and_no_result() -> Made:
    return lambda x: Outcome(projected(x) + 1, [x, None]), (rows(),)


@unusual
def batch_norm_in_training() -> Made:
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    return layers.train(), (rows(),)


@unusual
def dropout_in_training() -> Made:
    return lambda x: F.dropout(projected(x), 0.5, training=True) * 2 + projected(x), (rows(),)


@unusual
def random_numbers() -> Made:
    return lambda x: projected(x) + torch.rand_like(x) * torch.bernoulli(torch.full((8, WIDTH), 0.5)), (rows(),)


@unusual
def autocast_inside() -> Made:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return projected(x) * 2

    return function, (rows(),)


@unusual
def checkpointed_layer() -> Made:
    return lambda x: checkpoint(lambda y: projected(y).relu(), x, use_reentrant=False) + x, (rows(),)


@unusual
def function_transforms() -> Made:
    def function(x: Any) -> Any:
        gradient = torch.func.grad(lambda y: projected(y).square().sum())(x)
        return torch.vmap(projected)(x[None]) + 1, gradient, torch.func.jvp(projected, (x,), (x * 2,))

    return function, (rows(),)


@unusual
def module_hooks() -> Made:
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda module, given, result: result * 2)
    layer.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    return nn.Sequential(layer, nn.RMSNorm(WIDTH)).eval(), (rows(),)


@unusual
def writes_through_views() -> Made:
    def function(x: Any, y: Any) -> Any:
        z = projected(x).clone()
        z[:, :4] = 0
        z[2] += 3
        z.t()[1].mul_(2)
        part = y[2:5]
        part.add_(projected(x)[2:5])
        return z, z.view(4, 2, WIDTH).sum(-1), part, projected(y)

    return function, (rows(), rows(8, 1))


@unusual
def one_tensor_for_two_arguments() -> Made:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return projected(y) + x

    x = rows()
    return function, (x, x)


@unusual
def results_in_given_memory() -> Made:
    def function(x: Any) -> Any:
        y = torch.empty(8, WIDTH)
        torch.matmul(norm(x), WEIGHT, out=y)
        return torch.add(y, 1, out=y)

    return function, (rows(),)


@unusual
def a_slice_of_a_cache_by_position() -> Made:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 16, WIDTH))

        def forward(self, x: Any, place: int) -> Any:
            self.keys[:, place : place + 4] = x
            mask = torch.arange(16)[None] <= torch.arange(4)[:, None] + place
            return F.scaled_dot_product_attention(projected(x), self.keys, self.keys, attn_mask=mask)

    return Attention().eval(), (rows().view(2, 4, WIDTH), 2)


@unusual
def a_number_read_and_a_generator() -> Made:
    def steps(x: Any) -> Iterator[Any]:
        for add in range(3):
            x = projected(x) + add
            yield x

    def function(x: Any) -> Any:
        *_, y = steps(x)
        count = int(y.abs().sum().item()) % 3
        return y[: count + 1] * count, count, y[y.sum(-1) > 0]

    return function, (rows(),)


@unusual
def a_branch_in_the_graph() -> Made:
    return lambda x: torch.cond(x.sum() > 0, lambda y: projected(y) + 1, lambda y: projected(y) - 1, (x,)) * 2, (rows(),)


@unusual
def a_sparse_tensor() -> Made:
    return lambda s, x: torch.sparse.mm(s, x.t()) + projected(x)[:, :8], (rows().to_sparse(), rows())


@unusual
def images_channels_last() -> Made:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    layers = layers.to(memory_format=torch.channels_last)
    return layers, (torch.randn(2, 3, 5, 6).to(memory_format=torch.channels_last),)


@unusual
def attention_of_three_dims() -> Made:
    mask = torch.tensor([[True, False, True, True]]).expand(4, 4)

    def function(x: Any) -> Any:
        own = [F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=causal) for causal in (True, False)]
        return *own, F.scaled_dot_product_attention(x, x, x, attn_mask=mask & mask.t().roll(1, 0)) * 2

    return function, (rows().view(2, 4, WIDTH),)


@unusual
def a_module_of_attention_with_padding() -> Made:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, x: Any, padding: Any) -> Any:
            return self.layer(x, x, x, key_padding_mask=padding)

    return Padded().eval(), (rows().view(2, 4, WIDTH), torch.tensor([[False] * 4, [False, False, True, True]]))


@unusual
def gathers_and_scatters() -> Made:
    def function(x: Any, places: Any) -> Any:
        added = torch.zeros_like(x).scatter_add(0, places, projected(x))
        return x.gather(0, places), added, torch.zeros(8, WIDTH).index_add_(0, places[:, 0], norm(x)), x[places[:, 0]]

    return function, (rows(), torch.arange(8 * WIDTH).reshape(8, WIDTH) % 8)


@unusual
def the_largest_experts() -> Made:
    def function(x: Any) -> Any:
        values, places = projected(x).softmax(-1).topk(2)
        chosen = F.one_hot(places, WIDTH).float().sum(1)
        return (chosen * x) @ WEIGHT, values / values.sum(-1, keepdim=True), places, x.sort(-1).values.cumsum(-1)

    return function, (rows(),)


@unusual
def recurrent_cells() -> Made:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.long, self.gated = nn.LSTMCell(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            state = memory = other = torch.zeros(8, WIDTH)
            for add in range(2):
                state, memory = self.long(x + add, (state, memory))
                other = self.gated(state, other)
            return state, memory, other

    return Cells().eval(), (rows(),)


@unusual
def arguments_changed_through_views() -> Made:
    def function(x: Any, several: list[Any]) -> Any:
        x[::2].mul_(2)
        x.t()[0].add_(1)
        several.append(projected(x))
        several[0].sub_(1)
        return sum(several)

    return function, (rows(), [rows(8, 1)])
