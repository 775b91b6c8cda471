"""Emitted programs whose kernels are compiled ahead of their first launch, and launched without the checks of Triton's JIT."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.ir.errors import UnsupportedError


class CompiledKernel:
    """Replaces a `@triton.jit` function of an emitted program: `kernel[grid](*tensors)` launches at once."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._launches: dict[tuple[int, ...], Callable[..., None]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        launch = self._launches.get(grid)
        if launch is None:
            run = self._compiled[grid]

            def launch(*tensors: Any, **options: Any) -> None:  # the options have been used by the compiler
                run(*tensors)

            self._launches[grid] = launch
        return launch


def steady(module: ModuleType, arguments: Sequence[Any]) -> Callable[[], Any]:
    """`run` of an emitted program on these arguments, with its buffers allocated once."""
    if not hasattr(module, "allocate"):
        return partial(module.run, *arguments)
    return partial(module.run, *arguments, buffers=module.allocate(arguments[0].device))


@contextmanager
def ready(source: str | Path, target: str) -> Iterator[ModuleType]:
    """An emitted program, imported and compiled for `target`, which must be the GPU at hand.

    Raises:
        UnsupportedError: a kernel that does not compile or does not fit; the message says which and why.
        MirageError: the source is no emitted program.
    """
    with loaded(source) as module:
        for record, compiled in compile_module(module, target, resources=False):
            if not record.ok:
                raise UnsupportedError(f"{record.kernel}: {record.error}")
            setattr(module, record.kernel, CompiledKernel(compiled))
        yield module
