"""How wrong a candidate may be when it is timed: by a tolerance, or by the program's own error in its types."""

from math import inf, isnan

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.measure.candidate_timer import (
    ERROR_RATIO,
    MOST_DIFFERENT,
    TOLERANCE,
    allowed_error,
    errors_of_form,
    judging_inputs,
    largest_errors,
)
from mirage_eg.backends.measure.tf32 import rounded_operands
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.graph import Graph

torch = pytest.importorskip("torch")


def attended(transposed: bool = False) -> Graph:
    """Attention behind a product, whose keys may lie transposed in memory."""
    p = new_kernel_graph()
    x, w = p.new_input((64, 64), name="X"), p.new_input((64, 64), name="W")
    k = p.new_input((64, 64), name="K", strides=(1, 64) if transposed else None)
    v = p.new_input((64, 64), name="V")
    p.mark_output(p.softmax((x @ w) @ k, 1) @ v)
    return p.graph()


@pytest.mark.parametrize("transposed", [False, True])
def test_where_roundings_decide_the_program_says_how_wrong_is_allowed(transposed: bool) -> None:
    program = attended(transposed)
    with loaded(emit(program, program=program)) as module:

        def own(magnitude: float, seed: int) -> float:
            generator = torch.Generator().manual_seed(seed)
            tensors = [(magnitude * torch.randn(64, 64, generator=generator)).half() for _ in range(4)]
            [error] = errors_of_form(module, tensors, [it.double() for it in module.reference(*tensors)])
            return float(error)

        usual, large = (max(own(magnitude, seed) for seed in range(4)) for magnitude in (0.1, 1.5))
    assert usual < 1e-3 and allowed_error(torch.float16, usual) == TOLERANCE["float16"]
    assert large > TOLERANCE["float16"]
    assert ERROR_RATIO * large < allowed_error(torch.float16, large) < (ERROR_RATIO + 0.1) * large


def test_what_tf32_alone_makes_wrong_is_measured_without_it() -> None:
    p = new_kernel_graph()
    p.mark_output(p.new_input((4, 4), "float32", name="X"))
    x, on = torch.ones(4, 4), torch.device("cuda")
    with loaded(emit(p.graph(), program=p.graph())) as module:
        module.run = lambda given: given * (2.0 if rounded_operands(on) else 1.001)
        assert rounded_operands(on)
        assert errors_of_form(module, [x], [x.double()]) == [pytest.approx(0.001, rel=0.1)]
        module.run = lambda given: given * (1.05 if rounded_operands(on) else 1.001)
        assert errors_of_form(module, [x], [x.double()]) == [pytest.approx(0.05, rel=0.1)]


def test_a_program_that_is_not_finite_or_does_not_run_allows_no_more() -> None:
    p = new_kernel_graph()
    p.mark_output(p.new_input((64, 64), name="X") @ p.new_input((64, 64), name="W"))
    with loaded(emit(p.graph(), program=p.graph())) as module:
        tensors, wanted = [torch.full((64, 64), 300.0).half() for _ in range(2)], [torch.ones(64, 64).double()]
        assert isnan(*errors_of_form(module, tensors, wanted))
        assert isnan(*errors_of_form(module, [it / 100 for it in tensors], wanted))  # 576 in place of 1
        module.run = lambda *given: torch.ones(2) @ torch.ones(3)
        [error] = errors_of_form(module, tensors, wanted)
    assert isnan(error) and allowed_error(torch.float16, error) == TOLERANCE["float16"]


def test_smaller_inputs_judge_where_the_library_form_is_no_measure() -> None:
    p = new_kernel_graph()
    p.mark_output(p.new_input((64, 64), "float32", name="X"))
    with loaded(emit(p.graph(), program=p.graph())) as module:
        module.run = lambda x: x * (2.0 if x.abs().max() > 20 else 1.001)
        [x], _, [error] = judging_inputs(module, [((64, 64), "float32", (64, 1))], 8.0, 0, device="cpu")
        assert 10 < x.abs().max() < 20 and error == pytest.approx(0.001, rel=0.1)
        module.run = lambda x: x * 2.0
        [x], _, [error] = judging_inputs(module, [((64, 64), "float32", (64, 1))], 8.0, 0, device="cpu")
        assert x.abs().max() < 10 and isnan(error)


def test_overflows_are_equal_and_no_number_is_infinitely_wrong() -> None:
    got = torch.tensor([inf, 1.0]).half()
    assert largest_errors([got], [torch.tensor([1e6, 1.0]).double()])[0] < 1e-3
    assert largest_errors([torch.tensor([float("nan"), 1.0]).half()], [torch.ones(2).double()]) == [inf]


def test_numbers_that_are_none_are_right_where_the_program_has_none() -> None:
    wanted = torch.tensor([float("nan"), 2.0]).double()
    assert largest_errors([torch.tensor([float("nan"), 2.0])], [wanted]) == [0.0]
    assert largest_errors([torch.tensor([1.0, 2.0])], [wanted]) == [inf]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_whole_numbers_are_as_wrong_as_many_of_them_differ(dtype: object) -> None:
    wanted = (torch.arange(100) % 2).to(dtype)
    got = wanted.clone()
    got[:3] = 1 - got[:3].int()
    assert largest_errors([wanted, got], [wanted.double()] * 2) == [0.0, pytest.approx(0.03)]
    assert allowed_error(dtype, 0.0) == MOST_DIFFERENT < 0.03 <= allowed_error(dtype, 0.02)


def ordered() -> Graph:
    """The rows of a table in the order of a score, and their places."""
    p = new_kernel_graph()
    x = p.new_input((64, 1), name="X")
    p.mark_output(p.argsort(p.exp(x), 0))
    return p.graph()


def test_places_that_the_library_form_mostly_misses_judge_no_candidate() -> None:
    program = ordered()
    with loaded(emit(program, program=program)) as module:
        x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)).half()
        [right] = module.reference(x)
        assert errors_of_form(module, [x], [right.double()]) == [0.0]
        assert errors_of_form(module, [x], [right.double().flip(0)]) == [inf] and allowed_error(torch.int64, inf) == inf
