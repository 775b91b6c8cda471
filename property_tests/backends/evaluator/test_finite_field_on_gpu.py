"""On a GPU the field, the floats and the verdicts are those of the CPU: one code path for NumPy and CuPy."""

import numpy as np
import pytest

from mirage_eg.backends.evaluator import array_module
from mirage_eg.backends.evaluator.array_module import evaluator_device
from mirage_eg.backends.evaluator.field_semantics import Randomness
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES, Modulus
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.float_check import float_checks
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.backends.evaluator.test_elementwise_kernels import CALLS
from property_tests.support.library_programs import LIBRARY_PROGRAMS
from property_tests.support.small_programs import attention, normed_linear, split_attention

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("right", [True, False])
def test_a_verdict_on_the_gpu_is_that_of_the_cpu(right: bool) -> None:
    cupy = pytest.importorskip("cupy")
    on_cpu = Reference(attention()).check(split_attention(right))
    on_gpu = Reference(attention(), xp=cupy).check(split_attention(right))
    assert on_gpu.verdict is on_cpu.verdict is (Equality.EQUAL if right else Equality.NOT_EQUAL)
    assert on_gpu.coverage == on_cpu.coverage


def test_a_float_check_on_the_gpu_is_that_of_the_cpu() -> None:
    cupy = pytest.importorskip("cupy")
    [on_cpu] = float_checks(Reference(attention()), [split_attention(True)])
    [on_gpu] = float_checks(Reference(attention(), xp=cupy), [split_attention(True)])
    assert (on_gpu.ok, on_gpu.overflows, on_gpu.tolerance) == (on_cpu.ok, on_cpu.overflows, on_cpu.tolerance)
    assert np.isclose(on_gpu.error, on_cpu.error, atol=on_cpu.tolerance)


@pytest.mark.parametrize("name", LIBRARY_PROGRAMS)
def test_library_programs_on_the_gpu_are_those_of_the_cpu(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    program = LIBRARY_PROGRAMS[name].graph()
    on_cpu, on_gpu = (Reference(program, xp=xp) for xp in (np, cupy))
    assert on_gpu.check(program) == on_cpu.check(program)
    assert float_checks(on_gpu, [program])[0].ok is float_checks(on_cpu, [program])[0].ok


def test_verification_of_a_large_program_runs_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(array_module, "FEW", 0)
    result = optimize("norm", normed_linear(), Options(device="cpu", jobs=1, top=2))
    assert result.report.verify.computed_on == evaluator_device(cupy) != "CPU"


@pytest.mark.parametrize("prime", PRIMES)
def test_every_kernel_on_the_gpu_is_equal_to_its_numpy_form(prime: int) -> None:
    cupy = pytest.importorskip("cupy")
    generator = np.random.default_rng(prime)
    x, y = (generator.integers(0, prime, shape).astype(np.float64) for shape in ((30, 500), (500,)))
    x[0, :3], y[:3] = (0, prime - 1, 1), (prime - 1, prime - 1, 0)
    for call in CALLS.values():
        theirs = call(Modulus(prime, cupy), cupy.asarray(x), cupy.asarray(y))
        np.testing.assert_array_equal(cupy.asnumpy(theirs), call(Modulus(prime), x, y))
    keyed = Randomness(3, 0, cupy).keyed(cupy.asarray(x), 0, "tanh")
    np.testing.assert_array_equal(cupy.asnumpy(keyed), Randomness(3, 0).keyed(x, 0, "tanh"))
