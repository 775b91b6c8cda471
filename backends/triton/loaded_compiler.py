"""Triton's compiler, and the hash of its files for its cache: a process that compiles imports this at its start."""

import triton.compiler  # noqa: F401
from triton.runtime.cache import triton_key

triton_key()  # of half a gigabyte: 0.4 s
