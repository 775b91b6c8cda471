"""The kernels that CuPy runs compute what the NumPy forms do, and there is one launch for each op."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.meanings import Draw
from mirage_eg.backends.modular import PRIMES, Modulus
from mirage_eg.backends.passes import KERNELS
from mirage_eg.verdict import Equality
from mirage_eg.verify import Reference
from property_tests.fake_cupy import FakeCupy
from property_tests.graphs import as_program
from property_tests.test_verify import attention, fused_norm_block, normed_linear, split_attention

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def cupy(tmp_path_factory: pytest.TempPathFactory) -> FakeCupy:
    return FakeCupy(Path(tmp_path_factory.mktemp("kernels")))


CALLS: dict[str, Callable[[Modulus, Any, Any], Any]] = {
    "multiply": Modulus.multiply,
    "add": Modulus.add,
    "subtract": Modulus.subtract,
    "affine": lambda modulus, x, y: modulus.affine(x, 12345, 678),
    "sum": lambda modulus, x, y: modulus.total(x.repeat(50, axis=0), (0,)),
    "look_up": lambda modulus, x, y: modulus.inverse(x),
    "power": lambda modulus, x, y: modulus.power(x, 3),
    "exponential": lambda modulus, x, y: modulus.exponential(x % 1000, 77),
}


@given(st.sampled_from(PRIMES), SEEDS)
def test_every_kernel_is_equal_to_its_numpy_form(cupy: FakeCupy, prime: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = (generator.integers(0, prime, shape).astype(np.float64) for shape in ((3, 50), (50,)))
    x[0, :3], y[:3] = (0, prime - 1, 1), (prime - 1, prime - 1, 0)
    ours, theirs = Modulus(prime), Modulus(prime, cupy)
    for call in CALLS.values():
        np.testing.assert_array_equal(call(theirs, x, y), call(ours, x, y))
    keyed = [Draw(seed, 0, xp).keyed(x, 0, "tanh") for xp in (np, cupy)]
    np.testing.assert_array_equal(*keyed)


def test_the_kernels_compared_are_all_that_there_are() -> None:
    assert CALLS.keys() | {"keyed"} == KERNELS.keys()


def test_operands_that_stand_in_float32_need_no_copy(cupy: FakeCupy) -> None:
    x = np.arange(40.0).reshape(8, 5)
    product = Modulus(PRIMES[0], cupy).multiply(x.astype(np.float32), x)
    assert product.dtype == np.float64
    np.testing.assert_array_equal(product, Modulus(PRIMES[0]).multiply(x, x))


def test_an_op_is_one_launch(cupy: FakeCupy) -> None:
    for name, call in CALLS.items():
        cupy.launches.clear()
        call(Modulus(PRIMES[0], cupy), np.ones((4, 4)), np.ones((4, 4)))
        assert cupy.launches == {f"mirage_{name}": 1}


@pytest.mark.parametrize("right", [True, False])
def test_verdicts_with_the_kernels_are_those_of_numpy(cupy: FakeCupy, right: bool) -> None:
    verdict = Reference(attention(), xp=cupy).check(split_attention(right))
    assert verdict == Reference(attention()).check(split_attention(right))
    assert verdict.verdict is (Equality.EQUAL if right else Equality.NOT_EQUAL)
    fused = as_program(fused_norm_block().graph())
    assert Reference(normed_linear(), xp=cupy).check(fused) == Reference(normed_linear()).check(fused)
