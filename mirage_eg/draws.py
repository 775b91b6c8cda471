"""The random inputs of a program, in the field and as numbers, and what it computes from them. Part of the trusted core.

Each is made once for all candidates. Those of large programs stand in memory one at a time, in the same place: whoever asks for
one may no longer use the one before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.evaluate import SLICE_ELEMENTS, evaluate, evaluate_while
from mirage_eg.backends.field import FieldAlgebra, FieldValue
from mirage_eg.backends.floats import FloatAlgebra
from mirage_eg.backends.known import KnownNumbers, KnownResidues
from mirage_eg.backends.meanings import Component
from mirage_eg.backends.randoms import fill
from mirage_eg.backends.scales import input_scales
from mirage_eg.compare import compare_residues, sizes_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, TensorType

KEPT_ELEMENTS = 1 << 26  # inputs of a program up to this many elements are kept for all draws, larger ones for one at a time
KEPT_ON_GPU = 1 << 29  # the same in a GPU's memory
TOGETHER_ELEMENTS = 1 << 16  # inputs and outputs of so many elements are drawn and computed together
TOGETHER_ON_GPU = 1 << 27  # where what a computation costs is to launch it
SLICE_ON_GPU = 1 << 27  # values of so many elements are computed whole
LEAST_COVERAGE = 0.5  # of the elements of an output that must be defined on both sides
MAGNITUDES = (64.0, 8.0, 2.0, 1.0)  # of large inputs, tried in this order


@dataclass(frozen=True, slots=True)
class FieldDraw:
    """Inputs and outputs in the field."""

    algebra: FieldAlgebra
    inputs: list[FieldValue]
    outputs: list[Component]
    unfaithful: frozenset[str]
    known: KnownResidues | None = None  # what was made of the inputs, for all graphs that make it again


@dataclass(frozen=True, slots=True)
class FloatDraw:
    """Inputs as their types hold them, in float32 (on a GPU also in float64, for small programs), and outputs in float64."""

    inputs: list[Array]
    outputs: list[Array]
    sizes: list[Array]  # of the outputs: what errors are relative to
    magnitude: float = 1.0
    known: KnownNumbers | None = None  # of what is made in float64


class Draws:
    """What is drawn for one program and one seed."""

    def __init__(self, program: Graph, seed: int, xp: Any = np) -> None:
        self._program, self._seed, self._xp = program, seed, xp
        self._primitive = expand(program)
        self._keep = sum(prod(kind.shape) for kind in program.input_types) <= (KEPT_ELEMENTS if xp is np else KEPT_ON_GPU)
        self._memory: dict[tuple[int, int], Array] = {}
        self.slice_elements = SLICE_ELEMENTS if xp is np else SLICE_ON_GPU
        self._fields: dict[tuple[int, ...], FieldDraw] = {}
        self._floats: dict[str, FloatDraw] = {}
        self._wide: dict[str, FloatDraw] = {}
        self._scales: Sequence[float] | None = None

    def together(self, draws: int) -> int:
        """How many of so many draws are to be computed together."""
        if not self._keep:
            return 1
        types = (*self._program.input_types, *self._program.output_types)
        most = TOGETHER_ELEMENTS if self._xp is np else TOGETHER_ON_GPU
        return max(1, min(draws, most // sum(prod(kind.shape) for kind in types)))

    def ahead(self, draws: int) -> None:
        """Make what many candidates will be compared with, as far as it stands in memory together."""
        together = self.together(draws)
        for first in range(0, draws if self._keep else 1, together):
            self.field(first, min(together, draws - first), share=True)
        if self._keep:
            self.numbers("zero-mean", share=True)
            self.large()

    def field(self, first: int, count: int = 1, share: bool = False) -> FieldDraw:
        """Draw `first` in the field, and those behind it if several are to be computed together.

        With `share`, what the program makes inside is kept for the graphs that make it too.

        Raises:
            UnsupportedError: the program divides by zero almost everywhere.
        """
        numbers = tuple(range(first, first + count))
        if numbers not in self._fields:
            self._make_room()
            algebra = FieldAlgebra.of(self._seed, first if count == 1 else numbers, self._xp)
            inputs = [
                algebra.input(place, kind.shape, lambda k, count, place=place: self._array(place, k, count))  # type: ignore[misc]
                for place, kind in enumerate(self._program.input_types)
            ]
            known = KnownResidues(algebra) if share and self._xp is np else None
            values = evaluate(self._primitive, inputs, algebra, self.slice_elements, stack=algebra.stack, known=known)
            outputs = algebra.read(values)
            for name, output in zip(self._program.output_names, outputs, strict=True):
                defined, _ = compare_residues(self._xp, name, output, output, algebra.stack)()
                if defined < LEAST_COVERAGE * output.residues.size:
                    raise UnsupportedError(
                        f"got a program whose output {name} divides by zero at most of its elements in the field; "
                        "wanted one that can be tested (is something divided by the difference of equal values?)"
                    )
            unfaithful = frozenset[str]().union(*(value.unfaithful for value in values))
            self._fields[numbers] = FieldDraw(algebra, inputs, outputs, unfaithful, known)
        return self._fields[numbers]

    def numbers(self, name: str, share: bool = False) -> FloatDraw:
        """`zero-mean` or `positive` inputs of usual size (`backends.scales`); `share` as for `field`."""
        if name not in self._floats:
            self._make_room()
            if self._scales is None:
                self._scales = input_scales(self._program)
            places = enumerate(zip(self._program.input_types, self._scales, strict=True))
            inputs = [self._numbers(name, place, kind, scale) for place, (kind, scale) in places]
            known = KnownNumbers() if share and self._xp is np else None
            outputs = evaluate(self._primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, known=known)
            self._floats[name] = FloatDraw(inputs, outputs, sizes_of(self._xp, outputs), known=known)
        return self._floats[name]

    def wide_numbers(self, name: str, share: bool = False) -> FloatDraw:
        """`numbers` for float64: on a GPU the inputs of small programs stand in it, so that no µGraph has to widen them."""
        draw = self.numbers(name, share)
        if self._xp is np or sum(x.size for x in draw.inputs) > TOGETHER_ON_GPU:
            return draw
        if name not in self._wide:
            self._wide[name] = replace(draw, inputs=[x.astype(np.float64) for x in draw.inputs])
        return self._wide[name]

    def large(self) -> FloatDraw:
        """The zero-mean inputs times the largest magnitude tried at which the program's outputs fit their types.

        Magnitudes are powers of two: the products need no rounding.
        """
        if "large" not in self._floats:
            inputs = self.numbers("zero-mean").inputs
            if self._keep:
                inputs = [x.copy() for x in inputs]
            else:
                self._make_room()
            current = 1.0
            for magnitude in MAGNITUDES:
                for x in inputs:
                    x *= np.float32(magnitude / current)
                current = magnitude
                fits = partial(_fit, self._program.output_types) if magnitude > MAGNITUDES[-1] else _always
                outputs = evaluate_while(self._primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, fits)
                if outputs is not None:
                    break
            assert outputs is not None
            self._floats["large"] = FloatDraw(inputs, outputs, [], current)
        return self._floats["large"]

    def _make_room(self) -> None:
        if not self._keep:
            self._fields.clear()
            self._floats.clear()

    def _array(self, place: int, number: int, count: int) -> Array:
        """Memory for an array of input `place`."""
        if self._keep:
            return np.empty(count, np.float32)
        if (place, number) not in self._memory:
            self._memory[place, number] = np.empty(count, np.float32)
        return self._memory[place, number]

    def _numbers(self, name: str, place: int, kind: TensorType, scale: float) -> Array:
        """Uniform numbers in ½ … 1½ for `positive`, else in ±√3: mean 0, variance 1; times the scale, rounded to the type."""
        rounding = FloatAlgebra(np, DType.float32, rounds=True)
        width, centre = (1.0, 1.0) if name == "positive" else (2 * sqrt(3), 0.0)

        def write(generator: np.random.Generator, piece: Array) -> None:
            generator.random(out=piece, dtype=np.float32)
            piece -= np.float32(0.5)
            piece *= np.float32(width * scale)
            piece += np.float32(centre * scale)
            piece[:] = rounding.cast(piece, kind.dtype)

        flat = self._array(place, 0, prod(kind.shape))
        fill(flat, [self._seed, place, *name.encode()], write)
        return self._xp.asarray(flat.reshape(kind.shape))


def _fit(types: Sequence[TensorType], outputs: Sequence[Array]) -> bool:
    """Whether these outputs, or slices of them, hold nothing beyond the range of their types."""
    return all(bool((abs(x) <= kind.dtype.largest).all()) for x, kind in zip(outputs, types, strict=True))


def _always(outputs: Sequence[Array]) -> bool:
    return True
