"""The launches of an emitted program as data, recorded by a call of its `launch` with recording kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mirage_eg.backends.runtime.array_library import ArrayLayout
from mirage_eg.backends.triton.file_tables import tables_of
from mirage_eg.backends.triton.kernel_binaries import binary_of


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """One kernel of a program: the name of its binary, its grid, the values that are its arguments, then the sizes."""

    kernel: str
    grid: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches of a program; values are its inputs, what it prepares of weights, then its buffers.

    `results` are the values that it returns. `inputs` are those of the caller, then the prepared ones.

    `arena` has the internal buffers, each with its offset in a memory of `arena_bytes`. `sizes` are those for which it holds.

    A program that calls a library between its kernels has no fixed sequence: `launches` and `results` are None.
    """

    inputs: tuple[ArrayLayout, ...]
    buffers: tuple[ArrayLayout, ...]
    launches: tuple[RecordedLaunch, ...] | None
    results: tuple[int, ...] | None
    arena: tuple[tuple[int, int], ...] = ()
    arena_bytes: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[ArrayLayout, ...]:
        """Inputs and buffers."""
        return (*self.inputs, *self.buffers)


class _PlacedSize(int):
    """A size with its place after the values."""

    place: int

    @classmethod
    def at(cls, place: int, size: int) -> "_PlacedSize":
        placed = cls(size)
        placed.place = place
        return placed


class _RecordingKernel:
    """The replacement of a kernel that records its launches."""

    def __init__(self, name: str, types: Sequence[str], launches: list[tuple[str, tuple[int, ...], tuple[Any, ...]]]) -> None:
        self._name, self._types, self._launches = name, types, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def record(*values: int, **options: Any) -> None:
            binary, given = binary_of(self._name, self._types, values)
            places = tuple(value.place if isinstance(value, _PlacedSize) else value for value in given)
            self._launches.append((binary, grid, places))

        return record


def launch_plan_of(module: ModuleType, shapes: Sequence[Sequence[int]] = ()) -> LaunchPlan:
    """The plan of an emitted program: its `launch` is called with the numbers of its values, and recorded.

    `shapes` are those of its inputs; a program that takes sizes reads them there.
    """
    tables = tables_of(module, shapes)
    inputs = tuple(ArrayLayout(name, *kind) for name, kind in (*tables.inputs.items(), *tables.prepared.items()))
    buffers = tuple(ArrayLayout(name, *kind) for name, kind in tables.buffers.items())
    sizes = tuple(tables.sizes.values())
    positions = {layout.name: len(inputs) + place for place, layout in enumerate(buffers)}
    arena = tuple((positions[name], offset) for name, offset in getattr(module, "ARENA", {}).items())
    size = getattr(module, "ARENA_BYTES", 0)
    launch = getattr(module, "launch", None)
    if launch is None or "torch" in launch.__code__.co_varnames:  # imported there by programs that call it
        return LaunchPlan(inputs, buffers, None, None, arena, size, sizes)
    launches: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = []
    kernels = {name: getattr(module, name) for name in module.SIGNATURES}
    try:
        for name in kernels:
            setattr(module, name, _RecordingKernel(name, module.SIGNATURES[name], launches))
        count = len(inputs) + len(buffers)
        returned = launch(*range(count), *(_PlacedSize.at(place, one) for place, one in enumerate(sizes, count)))
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)
    results = returned if isinstance(returned, tuple) else (returned,)
    return LaunchPlan(inputs, buffers, tuple(RecordedLaunch(*record) for record in launches), results, arena, size, sizes)
