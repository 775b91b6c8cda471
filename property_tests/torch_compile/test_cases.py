"""The backend gives what eager torch gives wherever eager torch works, with segments in our kernels."""

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, graph_records
from property_tests.support.parameters import AMPLE, few
from property_tests.support.torch_cases import CASES, projected, sharing


def leaves(*values: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def clone(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same values in the same layout, in other memory."""

    def copy(it: Any) -> Any:
        if not isinstance(it, torch.Tensor):
            return it
        base = torch.as_strided(it, (it.untyped_storage().size() // it.element_size(),), (1,), 0).clone()
        return base.as_strided(it.shape, it.stride(), it.storage_offset())

    return pytree.tree_map(copy, arguments)


_DEAR = ("input without dims", "int input")  # a search of their own
_QUICK = [("eager", name) for name in CASES if name not in _DEAR] + [("inductor", "in-place ops"), ("inductor", "graph break")]
_RUNS = [(rest, name) for rest in ("eager", "inductor") for name in CASES]


@pytest.mark.parametrize(
    ("rest", "name"), few([run if run in _QUICK else pytest.param(*run, marks=pytest.mark.slow) for run in _RUNS], 1)
)
def test_a_case_gives_eager_results_and_effects_with_our_kernels(name: str, rest: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    plain = case.make()
    torch.manual_seed(0)
    compiled = torch.compile(case.make(), backend=backend, options={"budget": AMPLE, "rest": rest, "gate": "cost"})
    buffers = [list(it.buffers()) if isinstance(it, torch.nn.Module) else [] for it in (plain, compiled)]
    with torch.no_grad():
        for seed in range(2):
            arguments = case.arguments(torch.Generator().manual_seed(seed))
            copies = clone(arguments)
            wanted, got = plain(*copies), compiled(*arguments)
            pairs = zip(leaves(got, arguments, buffers[1]), leaves(wanted, copies, buffers[0]), strict=True)
            for mine, theirs in pairs:
                torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
                assert mine.stride() == theirs.stride()
            assert sharing(leaves(got, arguments)) == sharing(leaves(wanted, copies))
    assert [record.fallback for record in graph_records()] == [None] * len(graph_records())
    assert sum(record.used for record in graph_records()) >= 1
    assert not any(
        it.decision in (Decision.WRONG, Decision.FAILED, Decision.BUDGET)
        for record in graph_records()
        for it in record.segments
    )


def halves_of_columns(x: Any) -> Any:
    """A part of a transposed value, which has gaps between its rows, and another value of the region."""
    first, second = torch.tanh(projected(x)).transpose(1, 2).chunk(2, -1)
    return first, torch.nn.functional.silu(first) * second


@torch.no_grad()
def test_a_result_with_gaps_has_the_views_that_it_has_in_eager_torch() -> None:
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(halves_of_columns, backend=backend, options={"budget": AMPLE, "rest": "eager", "gate": "off"})
    first, product = compiled(x)
    wanted, other = halves_of_columns(x)
    assert sum(record.used for record in graph_records()) >= 1
    torch.testing.assert_close((first.transpose(1, 2).view(2, 48), product), (wanted.transpose(1, 2).view(2, 48), other))
