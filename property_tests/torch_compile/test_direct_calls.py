"""Graphs that call segments alone: no code of Inductor's, no wrapper of AOTAutograd's, and what eager gives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch

from mirage_eg.torch_compile import direct_calls
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.direct_calls import enabled, needs_no_wrapper
from mirage_eg.torch_compile.records import graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.parameters import few
from property_tests.support.torch_cases import WEIGHT, WIDTH, norm, projected, sharing, with_an_op_outside

Case = Callable[[Any, Any], Any]
PLACE = torch.tensor([3])
ALONE: dict[str, Case] = {
    "one result": lambda x, y: projected(x),
    "several results, one twice": lambda x, y: (z := projected(x + y), torch.exp(z) * 2, z),
    "a view of a result": lambda x, y: projected(x)[:, None].transpose(0, 2),
    "views of one result": lambda x, y: (z := projected(x), z[1:]),
    "one argument twice": lambda x, y: projected(x) * x,
    "an argument is a result": lambda x, y: (x, projected(x)),  # Dynamo gives it back
}
WRAPPED: dict[str, Case] = {
    "a view of an argument is a result": lambda x, y: (x[1:], projected(x)),
    "an argument is written": lambda x, y: norm(x.index_copy_(0, PLACE, projected(y)[:1])),
}


@contextmanager
def watched() -> Iterator[list[bool]]:
    """Whether each graph of segments alone that is compiled meanwhile is called without the wrapper."""
    found: list[bool] = []

    def noted(*given: Any) -> bool:
        found.append(needs_no_wrapper(*given))
        return found[-1]

    with torch.no_grad(), library_segments(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_calls, "needs_no_wrapper", noted)
        yield found


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(
        function, dynamic=False, backend=backend, options={"gate": "off", "cache": "off", "min_ops": 1} | options
    )


def tensors(rows: int = 8) -> list[Any]:
    return list(torch.randn(2, rows, WIDTH, generator=torch.Generator().manual_seed(rows)))


def flat(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple) else [results]


@pytest.mark.parametrize("name", few([*ALONE, *WRAPPED], 2))
def test_results_their_memory_and_what_is_written_are_those_of_eager(name: str) -> None:
    function = (ALONE | WRAPPED)[name]
    with watched() as direct:
        fast = compiled(function)
        for rows in (8, 8, 4):  # of another shape, too
            ours, plain = tensors(rows), tensors(rows)
            if "twice" in name:
                ours[1], plain[1] = ours[0], plain[0]
            got, wanted = [[*given, *flat(run(*given))] for run, given in ((fast, ours), (function, plain))]
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
            assert sharing(got) == sharing(wanted) and [it.stride() for it in got] == [it.stride() for it in wanted]
            assert [it._version > 0 for it in ours] == [it._version > 0 for it in plain]
    assert direct and set(direct) == {name in ALONE} and not any(it.fallback for it in graph_records())


def test_a_view_of_a_product_that_changes_in_place_shares_its_memory() -> None:
    def scaled(x: Any) -> Any:
        y = torch.relu(x) @ WEIGHT
        return y.mul_(2), y.view(-1)

    x = torch.randn(2, 4, WIDTH)
    with watched():
        got, wanted = compiled(scaled)(x), scaled(x)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert sharing([*got]) == sharing([*wanted])


def test_inductor_compiles_graphs_that_have_an_op_besides_segments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    inner, kept = compile_fx.compile_fx_inner, list[Any]()
    monkeypatch.setattr(
        compile_fx, "compile_fx_inner", lambda *given, **keywords: kept.append(given) or inner(*given, **keywords)
    )
    x, _ = tensors()
    with watched() as direct:
        torch.testing.assert_close(compiled(projected)(x), projected(x), atol=1e-5, rtol=1e-5)
        assert direct == [True] and not kept
        compiled(with_an_op_outside)(x)
        assert direct == [True] and kept
        compiled(projected, mode="reduce-overhead")(x)  # Inductor records the CUDA graph
        assert direct == [True] and len(kept) == 2


def writes_outside(x: Any) -> Any:
    """A segment that writes an argument, and an op that stays with torch."""
    return torch.special.bessel_j0(norm(x.index_copy_(0, PLACE, projected(x)[:1])))


@pytest.mark.parametrize("function", [with_an_op_outside, pytest.param(writes_outside, marks=pytest.mark.slow)])
def test_code_of_inductor_calls_segments_without_the_dispatcher(function: Case) -> None:
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.utils import run_and_get_code

    x, _ = tensors()
    with watched(), functorch.patch(enable_autograd_cache=False), inductor.patch(fx_graph_cache=False):
        wanted = function(x.clone())
        got, codes = run_and_get_code(compiled(function), x.clone())
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    code = "".join(codes)
    assert "import run_" in code and "= torch.ops.mirage_eg" not in code and " torch.ops.mirage_eg.segment.default(" not in code


def test_dynamo_hides_compiled_code_from_itself_once() -> None:
    assert enabled(torch._dynamo.disable(projected)) is projected is enabled(projected)
    hidden: list[Any] = []

    def noted(gm: Any, inputs: Any) -> Any:
        function = backend(gm, inputs, options={"search": "offline", "cache": "off"})
        while function is not None:
            hidden.append(hasattr(function, "_torchdynamo_orig_callable"))
            function = getattr(function, "__wrapped__", None)
        return gm.forward

    with torch.no_grad():
        torch.compile(with_an_op_outside, backend=noted)(tensors()[0])
    assert len(hidden) > 2 and not any(hidden[:3])  # the notes of calls, then Inductor's code


def test_autocast_and_its_end_give_what_eager_gives() -> None:
    with watched() as direct:
        fast = compiled(lambda x: projected(x) @ WEIGHT)
        x, _ = tensors()
        plain = fast(x)
        with torch.autocast("cpu", torch.bfloat16):
            wanted, got = projected(x) @ WEIGHT, fast(x)
        assert (got.dtype, fast(x).dtype) == (wanted.dtype, plain.dtype) == (torch.bfloat16, torch.float32)
        torch.testing.assert_close(got, wanted, atol=0.1, rtol=0.1)
        torch.testing.assert_close(fast(x), plain, atol=0, rtol=0)
    assert direct == [True]


def test_a_tensor_that_requires_a_gradient_later_gets_it() -> None:
    with watched() as direct:
        fast = compiled(projected)
        x, _ = tensors()
        fast(x)
        assert direct == [True]
        with torch.enable_grad():
            fast(x)
            ours, plain = (x.clone().requires_grad_() for _ in range(2))
            fast(ours).sum().backward()
            projected(plain).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad)
    assert [it.fallback is None for it in graph_records()][-1:] == [False]


def test_other_types_and_strides_are_other_graphs() -> None:
    x, y = tensors()
    with watched():
        fast = compiled(lambda x: x * 2 + 1)
        for given in (x, x.t(), torch.cat([x, y], 1)[:, ::2], x.to(torch.int32)):
            torch.testing.assert_close(fast(given), given * 2 + 1)


def test_threads_share_a_compiled_function() -> None:
    inputs = [tensors()[0] * (place + 1) for place in range(4)]
    results: list[Any] = [None] * len(inputs)
    with watched():
        fast = compiled(projected)
        fast(inputs[0])

        def run(place: int) -> None:
            with torch.no_grad():
                for _ in range(3):
                    results[place] = fast(inputs[place])

        threads = [Thread(target=run, args=[place]) for place in range(len(inputs))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for got, given in zip(results, inputs, strict=True):
        torch.testing.assert_close(got, projected(given), atol=1e-5, rtol=1e-5)


class Plain(torch.Tensor):
    """A subclass without a meaning of its own."""


@pytest.mark.parametrize("rest", few(["inductor", "eager"], 1))
@pytest.mark.parametrize("function", few([projected, with_an_op_outside], 1))
def test_a_subclass_of_tensor_is_what_it_is_in_eager(function: Callable[[Any], Any], rest: str) -> None:
    x, _ = tensors()
    with watched():
        fast = compiled(function, rest=rest)
        for given in (x.as_subclass(Plain), x, x.as_subclass(Plain)):  # type: ignore[no-untyped-call]
            got, wanted = fast(given), function(given)
            assert type(got) is type(wanted) is type(given)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert all(it.used and not it.fallback for it in graph_records())
