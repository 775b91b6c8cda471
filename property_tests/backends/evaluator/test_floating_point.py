"""Sums in float32 are as exact along every axis as along the last one, which NumPy sums in pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.dtypes import DType


@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 64, 333]), min_size=1, max_size=3),
    st.data(),
    st.sampled_from(["sum", "mean"]),
    st.integers(0, 99),
)
def test_sums_in_float32_are_in_pairs_along_every_axis(shape: list[int], data: st.DataObject, kind: str, seed: int) -> None:
    axes = tuple(data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True)))
    x = np.random.default_rng(seed).random(shape, dtype=np.float32)
    got = FloatAlgebra(working=DType.float32).reduce(kind, x, axes)
    wanted = FloatAlgebra().reduce(kind, x.astype(np.float64), axes)
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=3e-7)  # 5 roundings; a sequential sum of 2,000 terms has 10 to 30
