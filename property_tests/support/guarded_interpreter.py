"""Triton's interpreter with every address checked, by `interpreter(run_guarded)`.

Each tensor that a program takes or makes has its own memory with a wide guard on both sides. An address that is loaded or
stored under a true mask and lies in no tensor ends the program, as does a store into an input, and what is
a race on a GPU: a block that reads what another block of the same launch wrote, or two blocks that store different values in
one place.
"""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from mirage_eg.backends.triton.interpreter import Array, as_arrays

_GUARD = 1 << 20  # bytes on each side


class AddressError(Exception):
    """A kernel reads or writes where it should not."""


class _Region:
    """The memory of one tensor, and which block stored each byte in the launch that runs."""

    def __init__(self, name: str, first: int, nbytes: int, writable: bool) -> None:
        self.name, self.first, self.nbytes, self.writable = name, first, nbytes, writable
        self.writer = np.zeros(nbytes if writable else 0, np.int32)


class Guard:
    """Stands in the place of the interpreter's access to memory."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self._regions: list[_Region] = []
        self._block = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def watch(self, regions: Sequence[_Region]) -> None:
        """These tensors, and nothing else, from now on."""
        self._regions = list(regions)

    def begin_launch(self) -> None:
        """A new kernel: what was written before is there for all."""
        for region in self._regions:
            region.writer[:] = 0

    def begin_block(self, number: int) -> None:
        """Accesses are this block's."""
        self._block = number + 1

    def _located(self, pointers: Array, mask: Array, itemsize: int, what: str) -> list[tuple[_Region, Array, Array]]:
        """By tensor: which of the accesses lie there, and the bytes at which they begin."""
        addresses = np.asarray(pointers, np.uint64).astype(np.int64)
        left = np.array(np.broadcast_to(mask, addresses.shape), bool)
        found = []
        for region in self._regions:
            offsets = addresses - region.first
            here = left & (offsets >= 0) & (offsets + itemsize <= region.nbytes)
            if here.any():
                found.append((region, here, offsets[here]))
                left &= ~here
        if left.any():
            address = int(addresses[left].flat[0])
            near = min(self._regions, key=lambda region: abs(address - region.first))
            raise AddressError(
                f"block {self._block - 1} {what} at byte {address - near.first} of {near.name}, {near.nbytes} bytes"
            )
        return found

    def load(self, pointers: Array, mask: Array, other: Array, dtype: Any) -> Any:
        """Checked, then as before."""
        for region, _, offsets in self._located(pointers, mask, np.dtype(dtype).itemsize, "loads"):
            if region.writable:
                writers = region.writer[offsets]
                if ((writers != 0) & (writers != self._block)).any():
                    raise AddressError(f"block {self._block - 1} loads of {region.name} what another block stores")
        return self._plain.load(pointers, mask, other, dtype)

    def store(self, pointers: Array, value: Array, mask: Array) -> Any:
        """Checked, then as before."""
        size = value.dtype.itemsize
        for region, here, offsets in self._located(pointers, mask, size, "stores"):
            if not region.writable:
                raise AddressError(f"block {self._block - 1} stores into {region.name}")
            writers = region.writer[offsets]
            again = (writers != 0) & (writers != self._block)
            if again.any():
                old = self._plain.load(pointers, mask, value, value.dtype)[here]
                if (old[again] != np.broadcast_to(value, pointers.shape)[here][again]).any():
                    raise AddressError(f"block {self._block - 1} stores into {region.name} other values than another block")
            for byte in range(size):
                region.writer[offsets + byte] = self._block
        return self._plain.store(pointers, value, mask)


@cache
def installed() -> Guard:
    """From now on the interpreter's accesses are checked."""
    from triton.runtime import interpreter

    guard = Guard(interpreter._interpreter)
    interpreter._interpreter = guard
    builder = interpreter.InterpreterBuilder
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx

    def set_grid_dim(self: Any, *grid: int) -> None:
        guard.begin_launch()
        set_dim(self, *grid)

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        guard.begin_block((x * self.grid_dim[1] + y) * self.grid_dim[2] + z)
        set_index(self, x, y, z)

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx
    return guard


def run_guarded(source: str | Path, arrays: Sequence[Array]) -> list[Array]:
    """The results of a program on arrays."""
    import torch

    from mirage_eg.backends.triton.compile import loaded
    from mirage_eg.backends.triton.file_tables import tables_of

    regions: list[_Region] = []

    def place(name: str, layout: tuple[Sequence[int], str, Sequence[int]], writable: bool) -> Any:
        shape, dtype, strides = layout
        kind = getattr(torch, dtype)
        elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        if writable:  # with the gap behind the last row
            elements = max(elements, 1, *(extent * stride for extent, stride in zip(shape, strides, strict=True)))
        nbytes = elements * kind.itemsize
        memory = torch.full((nbytes + 2 * _GUARD,), 255, dtype=torch.uint8)  # read as numbers: NaN
        inside = memory[_GUARD : _GUARD + nbytes].view(kind).as_strided(shape, strides)
        regions.append(_Region(name, inside.data_ptr(), nbytes, writable))
        return inside

    with loaded(source) as module:
        tensors = []
        tables = tables_of(module, [array.shape for array in arrays])
        for array, (name, kind) in zip(arrays, tables.inputs.items(), strict=True):
            tensors.append(place(name, kind, False).copy_(torch.from_numpy(np.ascontiguousarray(array))))
        made = module.prepared(*(tensors[at] for at in module.WEIGHTS)) if hasattr(module, "prepared") else ()
        for number, tensor in enumerate(made):
            layout = (tensor.shape, str(tensor.dtype).removeprefix("torch."), tensor.stride())
            tensors.append(place(f"prepared {number}", layout, False).copy_(tensor))
        for name, kind in tables.buffers.items():
            tensors.append(place(name, kind, True))
        installed().watch(regions)
        library = {"torch": torch} if "torch" in signature(module.launch).parameters else {}
        return as_arrays(module.launch(*tensors, *tables.sizes.values(), **library))
