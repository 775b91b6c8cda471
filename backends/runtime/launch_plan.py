"""The launches of an emitted program as data, recorded by a call of its `launch` with recording kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mirage_eg.backends.runtime.array_library import ArrayLayout


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a program: its name, its grid, the values that are its arguments."""

    kernel: str
    grid: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches of a program; values are its inputs, then its buffers. `results` are the values that it returns.

    `arena` has the internal buffers, each with its offset in a memory of `arena_bytes`.

    A program that calls a library between its kernels has no fixed sequence: `launches` and `results` are None.
    """

    inputs: tuple[ArrayLayout, ...]
    buffers: tuple[ArrayLayout, ...]
    launches: tuple[Launch, ...] | None
    results: tuple[int, ...] | None
    arena: tuple[tuple[int, int], ...] = ()
    arena_bytes: int = 0

    @property
    def values(self) -> tuple[ArrayLayout, ...]:
        """Inputs and buffers."""
        return (*self.inputs, *self.buffers)


class _RecordingKernel:
    """The replacement of a kernel that records its launches."""

    def __init__(self, name: str, launches: list[tuple[str, tuple[int, ...], tuple[Any, ...]]]) -> None:
        self._name, self._launches = name, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def record(*values: int, **options: Any) -> None:
            self._launches.append((self._name, grid, values))

        return record


def launch_plan_of(module: ModuleType) -> LaunchPlan:
    """The plan of an emitted program: its `launch` is called with the numbers of its values, and recorded."""
    inputs = tuple(ArrayLayout(name, *kind) for name, kind in module.INPUTS.items())
    buffers = tuple(ArrayLayout(name, *kind) for name, kind in getattr(module, "BUFFERS", {}).items())
    positions = {layout.name: len(inputs) + place for place, layout in enumerate(buffers)}
    arena = tuple((positions[name], offset) for name, offset in getattr(module, "ARENA", {}).items())
    size = getattr(module, "ARENA_BYTES", 0)
    launch = getattr(module, "launch", None)
    if launch is None or "torch" in launch.__code__.co_varnames:  # imported there by programs that call it
        return LaunchPlan(inputs, buffers, None, None, arena, size)
    launches: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = []
    kernels = {name: getattr(module, name) for name in module.SIGNATURES}
    try:
        for name in kernels:
            setattr(module, name, _RecordingKernel(name, launches))
        returned = launch(*range(len(inputs) + len(buffers)))
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)
    results = returned if isinstance(returned, tuple) else (returned,)
    return LaunchPlan(inputs, buffers, tuple(Launch(*record) for record in launches), results, arena, size)


__all__ = ["Launch", "LaunchPlan", "launch_plan_of"]
