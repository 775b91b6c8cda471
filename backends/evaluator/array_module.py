"""The array module of the evaluator: CuPy for large programs where there is a usable GPU, NumPy elsewhere."""

from math import prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.exact_numbers import work_of
from mirage_eg.ir.graph import Graph

BYTES_PER_ELEMENT = 64  # of the tensors of a program: residues of several components, float64, and temporaries
FEW = 1 << 27  # elements that NumPy evaluates sooner than CuPy compiles its kernels, which takes 25 s where none is cached
_TERMS = 1 << 7  # of products, which take NumPy as long as one element takes it through all algebras


def usable_cupy() -> Any:
    """CuPy, or None where it is not installed or sees no GPU."""
    try:
        import cupy
    except ImportError:
        return None
    return cupy if cupy.cuda.is_available() else None


def array_module(program: Graph) -> Any:
    """CuPy where the program has many elements or terms and the GPU enough free memory for them, else NumPy."""
    count = element_count(program)
    cupy = usable_cupy() if evaluation_size(program) > FEW else None
    if cupy is None:
        return np
    free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    return cupy if count * BYTES_PER_ELEMENT <= free else np


def element_count(program: Graph) -> int:
    """The elements of all values of a program."""
    return sum(prod(kind.shape) for kind in program.types)


def evaluation_size(program: Graph) -> int:
    """The elements of all values that take as long as the evaluation, with the terms of products."""
    return element_count(program) + work_of(program) // _TERMS


def evaluator_device(xp: Any) -> str:
    """The device that computes the arrays of this module."""
    return "CPU" if xp is np else str(xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode())


def release(xp: Any) -> None:
    """Give the free memory of the evaluator back to the device, so that kernels can use it."""
    if xp is not np:
        xp.get_default_memory_pool().free_all_blocks()
