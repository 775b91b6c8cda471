"""Compilation in a process of its own: a kernel that takes too long is dropped, and its compiler ends with all its children.

LLVM's passes cannot be interrupted, nor does anything bound them. What was compiled is in Triton's cache.
"""

import os
from collections.abc import Mapping
from math import ceil
from threading import current_thread, main_thread

from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.triton.bounded_ptxas import SECONDS
from mirage_eg.backends.triton.compile import KernelCompile, by_kernel, compile_kernel, compiled_texts, loaded, target_of
from mirage_eg.backends.triton.targets import Target
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import LimitError

_KEPT: list[Worker] = []  # that of the main thread


def compiler_process() -> Worker:
    """A process that compiles: one for all runs of the main thread, since a process ends with the thread that started it.

    It may map all the memory that there is: the more cores a machine has, the more LLVM maps.
    """
    if current_thread() is not main_thread():
        return Worker(address_space=0)
    if not _KEPT or not _KEPT[0].is_ready:
        _KEPT[:] = [Worker(address_space=0)]
    return _KEPT[0]


def compile_within(source: str, target: str, process: Worker, until: Deadline = NEVER) -> list[KernelCompile]:
    """`compile_source` in a process: each kernel has half of the time that is left, and at most `SECONDS` of the processor.

    A kernel that takes longer is a record with `ok` false; so are the others if no time is left for them.
    """
    device = target_of(target)
    with loaded(source) as module:
        names = [*compiled_texts(module, device)]
    return by_kernel(_compiled(source, name, device, process, until) for name in names)


def _compiled(source: str, name: str, target: Target, process: Worker, until: Deadline) -> KernelCompile:
    if until.passed():
        return not_compiled(name, target.name, "the budget was spent")
    share = until.halfway()
    seconds = ceil(min(SECONDS, share.left()))
    try:
        record: KernelCompile = process.call(
            compile_for, source, name, target, seconds, _settings_of_triton(), seconds=SECONDS, task="the compiler", until=share
        )
    except LimitError as error:
        return not_compiled(name, target.name, str(error))
    return record


def _settings_of_triton() -> dict[str, str]:
    """The variables of the environment that Triton reads: they may have changed since the process began."""
    return {name: value for name, value in os.environ.items() if name.startswith("TRITON_") or name == "HOME"}


def compile_for(source: str, name: str, target: Target, seconds: int, settings: Mapping[str, str]) -> KernelCompile:
    """Compile a kernel under these variables of the environment, with so many seconds of the processor for ptxas."""
    for known in _settings_of_triton().keys() - settings.keys():
        del os.environ[known]
    os.environ.update(settings)
    return compile_kernel(source, name, target, seconds, resources=True)


def not_compiled(name: str, target: str, why: str) -> KernelCompile:
    """The record of a kernel that was not compiled."""
    return KernelCompile(name, target, False, None, None, None, why, 0.0)
