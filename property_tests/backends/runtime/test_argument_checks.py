"""The quick check of a call's arrays takes nothing that a close look refuses, and takes at once what is just right."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.backends.runtime.argument_checks import ArgumentChecker
from mirage_eg.backends.runtime.array_library import ArrayLayout, Library
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.backends.runtime.torch_arrays import Torch
from mirage_eg.ir.errors import GraphError

DTYPES = ("float16", "bfloat16", "float32", "float64")
HINTS = ("shape", "wanted float", "wanted bfloat", "device", "strides", "multiple of 16", "no_grad", "layout", "shares memory")


@st.composite
def layouts(draw: st.DrawFn) -> ArrayLayout:
    """Dense, transposed, padded, broadcast, and with extents of one."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=3)))
    strides, stride = [0] * len(shape), 1
    for dim in draw(st.permutations(range(len(shape)))):
        strides[dim] = stride * draw(st.sampled_from((1, 1, 1, 2, 0)))
        stride *= shape[dim]
    return ArrayLayout("x", shape, draw(st.sampled_from(DTYPES)), tuple(strides))


@cache
def tensor_type(device: int) -> Any:
    """Of tensors of the host that say they are on a device."""
    import torch

    return type(f"On{device}", (torch.Tensor,), {"is_cuda": True, "get_device": lambda self: device})


def tensor(layout: ArrayLayout, offset: int, device: int, tracked: bool) -> Any:
    """One of those."""
    import torch

    memory = torch.zeros(64 + offset, dtype=getattr(torch, layout.dtype))
    return memory.as_strided(layout.shape, layout.strides, offset).requires_grad_(tracked).as_subclass(tensor_type(device))


def cupy_array(layout: ArrayLayout, offset: int, device: int, tracked: bool) -> Any:
    """What CuPy says of an array; it has no bfloat16, and no gradients."""
    dtype = np.dtype("float64" if layout.dtype == "bfloat16" else layout.dtype)
    data = SimpleNamespace(ptr=(1 << 20) + offset * dtype.itemsize, device_id=device)
    strides = tuple(stride * dtype.itemsize for stride in layout.strides)
    return SimpleNamespace(dtype=dtype, shape=layout.shape, strides=strides, itemsize=dtype.itemsize, data=data)


@contextmanager
def cupy_library() -> Iterator[Library]:
    with mock.patch.dict(sys.modules, {"cupy": SimpleNamespace(dtype=np.dtype)}):
        yield Cupy()


@contextmanager
def torch_library() -> Iterator[Library]:
    yield Torch()


@contextmanager
def another_torch() -> Iterator[Library]:
    """One without what is not public: each tensor is compared."""
    with mock.patch.dict(sys.modules, {"torch._C._dynamo.guards": None}):
        yield Torch()


LIBRARIES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "torch": (torch_library, tensor),
    "another torch": (another_torch, tensor),
    "cupy": (cupy_library, cupy_array),
}


@st.composite
def variants(draw: st.DrawFn, wanted: ArrayLayout) -> tuple[ArrayLayout, int, int, bool]:
    """What `tensor` and `cupy_array` take: just right, or not."""
    layout = wanted if draw(st.booleans()) else draw(layouts())
    return layout, draw(st.sampled_from((0, 0, 1, 8))), draw(st.sampled_from((1, 1, 1, 2))), draw(st.booleans())


@pytest.mark.parametrize("name", LIBRARIES)
@given(data=st.data(), wanted=layouts(), gradients=st.lists(st.booleans(), min_size=1, max_size=4))
def test_what_the_quick_check_takes_a_close_look_takes(
    name: str, data: st.DataObject, wanted: ArrayLayout, gradients: list[bool]
) -> None:
    import torch

    enter, make = LIBRARIES[name]
    first = ArrayLayout("w", (3,), "float32", (1,))
    border = ArgumentChecker(["w", "x"], [first, wanted], [])
    with enter() as library:
        check = library.checker([first, wanted])
        for enabled in gradients:
            arrays = [make(first, 0, 1, False), make(*data.draw(variants(wanted)))]
            with torch.set_grad_enabled(enabled):
                quick = check(arrays)
                if quick is not None:
                    assert border.check_slow(arrays, library) == quick
                    assert quick == ([library.address(array) for array in arrays], 1)


@pytest.mark.parametrize("name", LIBRARIES)
@given(wanted=layouts(), device=st.integers(0, 3))
def test_what_is_just_right_needs_no_close_look(name: str, wanted: ArrayLayout, device: int) -> None:
    assume(name != "cupy" or wanted.dtype != "bfloat16")
    enter, make = LIBRARIES[name]
    with enter() as library:
        array = make(wanted, 0, device, False)
        check = library.checker([wanted])
        for _ in range(2):
            assert check([array]) == ([library.address(array)], device)


def test_kinds_of_arguments_that_take_turns_are_compared_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    library, guards = Torch(), list[Any]()
    make = library._guard
    monkeypatch.setattr(library, "_guard", lambda *tensors: guards.append(tensors) or make(*tensors))
    check = library.checker([ArrayLayout("x", (2, 1, 3), "float32", (3, 3, 2))])
    memory = torch.zeros(64).as_subclass(tensor_type(0))
    of_one_element = memory.as_strided((2, 1, 3), (3, 1, 2))
    for _ in range(3):
        for each in (memory.as_strided((2, 1, 3), (3, 3, 2)), of_one_element):
            assert check([each]) == ([each.data_ptr()], 0)
    assert len(guards) == 2 and check([memory.as_strided((2, 1, 3), (3, 3, 1))]) is None


@pytest.mark.parametrize("name", LIBRARIES)
@given(wanted=layouts(), other=layouts(), offset=st.sampled_from((0, 1, 8)), device=st.integers(0, 2), tracked=st.booleans())
def test_what_is_refused_is_named_and_explained(
    name: str, wanted: ArrayLayout, other: ArrayLayout, offset: int, device: int, tracked: bool
) -> None:
    enter, make = LIBRARIES[name]
    arrays = [make(wanted, 0, 1, False), make(other, offset, device, tracked)]
    border = ArgumentChecker(["v", "x"], [wanted, wanted], [])
    with enter() as library:
        try:
            addresses, where = border.check(arrays, library)
        except GraphError as error:
            assert str(error).startswith(("argument x: ", "argument v: " if wanted.dtype == "bfloat16" else "argument x: "))
            assert any(hint in str(error) for hint in HINTS)
        else:
            assert (other.shape, device, where) == (wanted.shape, 1, 1) and not addresses[1] % 16


def test_cupy_has_no_bfloat16_and_float64_is_not_taken_for_it() -> None:
    layout = ArrayLayout("x", (3,), "bfloat16", (1,))
    with cupy_library() as library, pytest.raises(GraphError, match="argument x: got float64, wanted bfloat16"):
        ArgumentChecker(["x"], [layout], []).check([cupy_array(layout, 0, 0, False)], library)


@given(first=st.integers(0, 64), second=st.integers(0, 64))
def test_a_buffer_lies_over_an_argument_just_if_they_have_a_byte_in_common(first: int, second: int) -> None:
    x, y = ArrayLayout("x", (8,), "float32", (1,)), ArrayLayout("y", (16,), "float32", (1,))
    arrays = [cupy_array(layout, 4 * place, 0, False) for layout, place in ((x, first), (y, second))]
    common = {*range(first, first + 2)} & {*range(second, second + 4)}  # in steps of 16 bytes
    border = ArgumentChecker(["x"], [x], [y])
    with cupy_library() as library:
        if not common:
            assert border.check(arrays[:1], library, arrays[1:]) == ([array.data.ptr for array in arrays], 0)
        else:
            with pytest.raises(GraphError, match="out y: shares memory with argument x"):
                border.check(arrays[:1], library, arrays[1:])


def test_a_sparse_tensor_is_refused_by_name() -> None:
    import torch

    layout = ArrayLayout("x", (3, 3), "float32", (3, 1))
    with pytest.raises(GraphError, match=r"argument x: .*layout torch\.sparse_coo"):
        ArgumentChecker(["x"], [layout], []).check([torch.eye(3).to_sparse()], Torch())
