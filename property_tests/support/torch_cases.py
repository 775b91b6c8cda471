"""Models and functions that a backend of torch.compile meets, each with arguments by a seed; one product occurs in all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WIDTH = 16
WEIGHT = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(7))


def norm(x: Any) -> Any:
    """RMS norm without a weight."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def projected(x: Any) -> Any:
    """The program of all cases."""
    return norm(x) @ WEIGHT


def with_an_op_outside(x: Any) -> Any:
    """The program, and an op that is left to torch."""
    return torch.special.bessel_j0(projected(x))


def sharing(tensors: Iterable[Any]) -> list[int]:
    """For each tensor the first one that has its memory."""
    places = [it.untyped_storage().data_ptr() for it in tensors]
    return [places.index(place) for place in places]


class WrittenCache(nn.Module):
    """Writes rows of a buffer by index, and reads the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, WIDTH))

    def forward(self, x: Any, places: Any) -> Any:
        self.keys.index_copy_(0, places, x[:2] + 1)
        return projected(self.keys)


class Tied(nn.Module):
    """One weight for tokens in and tokens out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WIDTH, WIDTH)
        self.logits = nn.Linear(WIDTH, WIDTH, bias=False)
        self.logits.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        return self.logits(projected(self.tokens(tokens)))


def branches(x: Any) -> Any:
    """A branch on data, between two products."""
    y = projected(x)
    y = y + 1 if y.sum() > 0 else y - 1
    return projected(y)


def breaks(x: Any) -> Any:
    """A call that Dynamo leaves to Python."""
    y = projected(x)
    torch._dynamo.graph_break()
    return projected(y)


def writes(x: Any) -> Any:
    """Changes its argument and a result in place."""
    y = projected(x)
    y.add_(1)
    x.mul_(2)
    return y


def aliases(x: Any) -> Any:
    """Results that are the argument, each other, or views."""
    y = projected(x)
    return y, y, x, y.t(), y[:, :4], x.view(-1), y.view(2, 4, WIDTH)


def reads_views(x: Any) -> Any:
    """A value, views of it that another op reads, and its result."""
    y = projected(x)
    (whole,) = y.split(8)
    heads = whole.view(2, 4, WIDTH)
    return y, whole, heads, torch.tanh(heads)


def scales_by_number(x: Any, factor: Any) -> Any:
    """A tensor without dims, and a result without dims."""
    return projected(x * factor), x.sum()


def indexes(x: Any, place: int) -> Any:
    """An int that indexes and multiplies."""
    return projected(x) * place, x[place]


@dataclass(frozen=True)
class Case:
    """A model or function, and its arguments."""

    make: Callable[[], Callable[..., Any]]
    arguments: Callable[[torch.Generator], tuple[Any, ...]]


def _tensor(generator: torch.Generator) -> Any:
    return torch.randn(8, WIDTH, generator=generator)


CASES: Mapping[str, Case] = {
    "cache written by index": Case(WrittenCache, lambda it: (_tensor(it), torch.tensor([1, 3]))),
    "tied weights": Case(Tied, lambda it: (torch.randint(WIDTH, (8,), generator=it),)),
    "branch on data": Case(lambda: branches, lambda it: (_tensor(it),)),
    "graph break": Case(lambda: breaks, lambda it: (_tensor(it),)),
    "in-place ops": Case(lambda: writes, lambda it: (_tensor(it),)),
    "aliased outputs and views": Case(lambda: aliases, lambda it: (_tensor(it),)),
    "views that are read": Case(lambda: reads_views, lambda it: (_tensor(it),)),
    "non-contiguous input": Case(lambda: projected, lambda it: (torch.randn(WIDTH, 8, generator=it).t(),)),
    "expanded input": Case(lambda: projected, lambda it: (torch.randn(1, WIDTH, generator=it).expand(8, WIDTH),)),
    "input without dims": Case(lambda: scales_by_number, lambda it: (_tensor(it), torch.tensor(2.0))),
    "int input": Case(lambda: indexes, lambda it: (_tensor(it), 3)),
    "slice of a larger tensor": Case(
        lambda: projected, lambda it: (torch.randn(9, 2 * WIDTH, generator=it)[1:, 3 : WIDTH + 3],)
    ),
}
