"""The tables of an imported program: layouts of its inputs and of what its kernels write, at given sizes if it takes sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from mirage_eg.ir.shapes import Shape

Kind = tuple[Shape, str, Shape]  # shape, element type, strides in elements


@dataclass(frozen=True, slots=True)
class FileTables:
    """Layouts by name, and the sizes for which they hold, in the order of the arguments of `launch`.

    `prepared`: those of the results of `prepare`, which `launch` takes after the inputs.
    """

    inputs: Mapping[str, Kind]
    prepared: Mapping[str, Kind]
    buffers: Mapping[str, Kind]
    sizes: Mapping[str, int]


def tables_of(module: ModuleType, shapes: Sequence[Sequence[int]] = ()) -> FileTables:
    """The tables of a program; one that takes sizes has them for inputs of these shapes."""
    if not hasattr(module, "SIZES"):
        return FileTables(module.INPUTS, getattr(module, "PREPARED", {}), getattr(module, "BUFFERS", {}), {})
    sizes = {name: shapes[place][dim] for name, (place, dim, *_) in module.SIZES.items()}
    inputs, buffers = module.layouts(**sizes)
    return FileTables(inputs, {}, buffers, sizes)
