"""Complex numbers, as rotary embeddings have them, are computed inside as pairs of real ones, with the numbers of torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from property_tests.support.torch_import import exported, imported, relative_error

GENERATOR = torch.Generator().manual_seed(5)
TOKENS, HEADS, WIDTH = 3, 2, 8
X = torch.randn(1, TOKENS, HEADS, WIDTH, generator=GENERATOR)
ANGLES = torch.randn(TOKENS, WIDTH // 2, generator=GENERATOR)
ROTATION = torch.polar(torch.ones_like(ANGLES), ANGLES)


def as_complex(x: Any) -> Any:
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


def real(x: Any) -> Any:
    return torch.view_as_real(x).flatten(-2) * 2


def llama4(x: Any, angles: Any) -> Any:
    rotation = torch.polar(torch.ones_like(angles), angles) * 1.5
    return real(as_complex(x) * rotation[None, :, None, :]).type_as(x) * 2


def deepseek(x: Any, angles: Any) -> Any:
    """Rotated by each token, with heads before tokens."""
    rotation = torch.polar(torch.ones_like(angles), angles).unsqueeze(-3).to(x.device)
    return real(as_complex(x.transpose(1, 2)) * rotation)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "llama 4": (llama4, ANGLES),
    "deepseek": (deepseek, ANGLES),
    "parts": (
        lambda x, a: (lambda y: torch.cat([y.real, y.imag], -1))(as_complex(x) * torch.complex(a, a * 2)[:, None]),
        ANGLES,
    ),
    "an exponential": (lambda x, a: real(as_complex(x) * torch.exp(1j * a)[None, :, None]), ANGLES),
    "a conjugate": (lambda x, a: real(torch.conj_physical(as_complex(x)) * a[:, None] + as_complex(x)), ANGLES),
    "a difference": (lambda x, a: real((as_complex(x) - as_complex(x * 2)).transpose(1, 2)[:, 0]), ANGLES),
    "shapes": (lambda x, a: real(as_complex(x).view(TOKENS, -1).permute(-1, 0).reshape(2, -1)[:, 1:4].expand(2, 3)), ANGLES),
    "a number of float64": (lambda x, a: real(as_complex(x) * a.double()[0, 0]), ANGLES),
    "a complex number without dims": (lambda x, a: real(as_complex(x[0, 0, 0, :2]).squeeze(0) * a), ANGLES),
    "a view of columns": (
        lambda x, a: real(torch.polar(a.transpose(0, 1), a.transpose(0, 1)).transpose(0, 1).view(-1)),
        ANGLES,
    ),
    "squeezed": (lambda x, a: real(as_complex(x).squeeze(0).select(-2, 1)), ANGLES),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_viewed_as_real_is_inside_with_the_numbers_of_torch(name: str) -> None:
    function, angles = CASES[name]
    it, wanted = imported(function, X, angles), function(X, angles)
    assert it.outside == ()
    got = it.run(X, angles)
    assert got.dtype == wanted.dtype and relative_error(got, wanted) <= 1e-6


def test_a_complex_argument_is_viewed_as_real_and_all_else_is_inside() -> None:
    def rotated(x: Any, rotation: Any) -> Any:
        return real(as_complex(x) * rotation[:, None])

    it = imported(rotated, X, ROTATION)
    assert [one.op for one in it.outside] == ["aten.view_as_real.default"]
    assert relative_error(it.run(X, ROTATION), rotated(X, ROTATION)) <= 1e-6


def test_an_op_without_pairs_stays_with_torch() -> None:
    def function(x: Any) -> Any:
        broadcast = real(torch.complex(x[0], x[0, :1]))
        return real(torch.sqrt(as_complex(x)) * 2), as_complex(x).abs() + 1, broadcast

    it, wanted = imported(function, X), function(X)
    assert {"aten.sqrt.default", "aten.abs.default", "aten.complex.default"} <= {one.op for one in it.outside}
    assert relative_error(it.run(X), wanted) <= 1e-6


def test_the_cast_of_a_transform_says_that_torch_reads_complex_numbers() -> None:
    it = imported(lambda x: torch.fft.fft(x.softmax(-1).to(torch.complex64)).real.softmax(-1), torch.randn(4, 8))
    [cast] = [one for one in it.outside if one.op == "aten._to_copy.default"]
    assert cast.reason == "a cast from float32 to complex64: an op of torch reads the complex numbers, not their pairs"


def test_the_program_of_a_user_stays_as_it_was() -> None:
    from mirage_eg.frontend.torch_export import import_program

    program = exported(llama4, X, ANGLES)
    before = str(program.graph)
    import_program(program)
    assert str(program.graph) == before
