"""Too little memory on the GPU is bad input."""

import pytest

from mirage_eg.backends.measure.timing import memory_errors_reported
from mirage_eg.ir.errors import MirageError

ERRORS = (
    "CUDA out of memory. Tried to allocate 90.00 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.00 GiB is free.",
    "HIP out of memory. Tried to allocate 90.00 GiB.\nFurther lines",
)


@pytest.mark.parametrize("message", ERRORS)
def test_too_little_memory_on_a_gpu_is_one_line(message: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(MirageError) as raised, memory_errors_reported():
        raise torch.OutOfMemoryError(message)
    [line] = str(raised.value).splitlines()
    assert line.startswith("timing: ") and "90.00 GiB" in line and line.endswith("try: smaller sizes")


def test_other_errors_of_the_gpu_stay_errors() -> None:
    pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="illegal"), memory_errors_reported():
        raise RuntimeError("an illegal memory access")
