"""The random inputs of a program, in the field and as numbers, and what it computes from them. Part of the trusted core.

Each is made once for all candidates, from the seed and the program. Those of large programs stand in memory one at a time, in
the same place: whoever asks for one may no longer use the one before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.evaluate import SLICE_ELEMENTS, evaluate, evaluate_while
from mirage_eg.backends.evaluator.field_semantics import Component, Draw
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.input_scales import input_scales
from mirage_eg.backends.evaluator.memoization import MEMO_BYTES, FieldMemo, MemoBudget, NumericMemo
from mirage_eg.backends.evaluator.random_fill import Write, fill
from mirage_eg.backends.triton.numerics import ShiftedFloats
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, TensorType
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.verify.compare import LEAST_COVERAGE, compare_residues, sizes_of
from mirage_eg.verify.far_inputs import FAR, indicators, mask

KEPT_ELEMENTS = 1 << 26  # inputs of a program up to this many elements are kept for all draws, larger ones for one at a time
KEPT_ON_GPU = 1 << 29  # the same in a GPU's memory
TOGETHER_ELEMENTS = 1 << 16  # inputs and outputs of so many elements are drawn and computed together
TOGETHER_ON_GPU = 1 << 27  # where what a computation costs is to launch it
SLICE_ON_GPU = 1 << 27  # values of so many elements are computed whole
SMALL_ELEMENTS = 1 << 22  # inputs of so many elements are kept for all kinds of numbers
USUAL = ("zero-mean", "positive", "negative", "small")  # inputs of usual size, tried in this order until the program is defined


@dataclass(frozen=True, slots=True)
class FieldTrial:
    """Inputs and outputs in the field."""

    algebra: FieldAlgebra
    inputs: list[FieldValue]
    outputs: list[Component]
    unfaithful: frozenset[str]
    known: FieldMemo | None = None  # what was made of the inputs, for all graphs that make it again


@dataclass(frozen=True, slots=True)
class FloatTrial:
    """Inputs as their types hold them, in float32 (on a GPU also in float64, for small programs), and outputs in float64."""

    name: str
    inputs: list[Array]
    outputs: list[Array]
    sizes: list[Array]  # of the outputs: what errors are relative to
    magnitude: float = 1.0
    known: NumericMemo | None = None  # of what is made in float64


class RandomInputs:
    """What is drawn for one program and one seed."""

    def __init__(self, program: Graph, seed: int, xp: Any = np) -> None:
        self._program, self._xp = program, xp
        self._seed = int.from_bytes(blake2b(repr((seed, program)).encode(), digest_size=8).digest(), "little")
        self.primitive = expand(program)
        self.written = without_far_logarithms(self.primitive)  # the same, for numbers of any size
        self._keep = sum(prod(kind.shape) for kind in program.input_types) <= (KEPT_ELEMENTS if xp is np else KEPT_ON_GPU)
        self._room = MemoBudget(MEMO_BYTES)  # for what graphs make of all draws
        self._memory: dict[tuple[int, int], Array] = {}
        self.slice_elements = SLICE_ELEMENTS if xp is np else SLICE_ON_GPU
        self._fields: dict[tuple[bool, tuple[int, ...]], FieldTrial] = {}
        self._floats: dict[str, FloatTrial] = {}
        self._wide: dict[str, FloatTrial] = {}

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
            self.far("large")

    def field(self, first: int, count: int = 1, share: bool = False, joins: bool = False) -> FieldTrial:
        """Draw `first` in the field, and those behind it if several are to be computed together.

        With `share`, what the program makes inside is kept for the graphs that make it too; `joins` as `meanings.Draw` has it.

        Raises:
            UnsupportedError: the program divides by zero almost everywhere.
        """
        numbers = tuple(range(first, first + count))
        if (joins, numbers) not in self._fields:
            self._make_room()
            algebra = FieldAlgebra(Draw(self._seed, first if count == 1 else numbers, self._xp, joins))
            inputs = [
                algebra.input(place, kind.shape, lambda k, count, place=place: self._array(place, k, count))  # type: ignore[misc]
                for place, kind in enumerate(self._program.input_types)
            ]
            known = FieldMemo(algebra, self._room) if share and self._xp is np else None
            values = evaluate(self.primitive, inputs, algebra, self.slice_elements, stack=algebra.stack, known=known)
            outputs = algebra.read(values)
            for name, output in zip(self._program.output_names, outputs, strict=True):
                compared = compare_residues(self._xp, name, output, output, algebra.stack)()
                if compared.defined < LEAST_COVERAGE * output.residues.size:
                    raise UnsupportedError(
                        f"got a program whose output {name} divides by zero at most of its elements in the field; "
                        "wanted one that can be tested (is something divided by the difference of equal values?)"
                    )
            unfaithful = frozenset[str]().union(*(value.unfaithful for value in values))
            self._fields[joins, numbers] = FieldTrial(algebra, inputs, outputs, unfaithful, known)
        return self._fields[joins, numbers]

    def numbers(self, name: str, share: bool = False) -> FloatTrial:
        """Inputs of usual size (`backends.evaluator.input_scales`) as `_NUMBERS` says, or far ones; `share` as for `field`."""
        if name in FAR:
            draw = self.far(name)
            known = NumericMemo(self._room) if share and self._xp is np else None
            if not any(item.op == "exp" for item in self.primitive.nodes):
                return replace(draw, known=known)
            outputs = evaluate(self.primitive, draw.inputs, FloatAlgebra(self._xp), self.slice_elements, known=known)
            return replace(draw, outputs=outputs, sizes=sizes_of(self._xp, outputs), known=known)
        if name in self._floats:
            return self._floats[name]
        self._make_room()
        places = enumerate(zip(self._program.input_types, input_scales(self._program), strict=True))
        inputs = [self._numbers(name, place, kind, scale) for place, (kind, scale) in places]
        known = NumericMemo(self._room) if share and self._xp is np else None
        outputs = evaluate(self.primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, known=known)
        return self._kept(FloatTrial(name, inputs, outputs, sizes_of(self._xp, outputs), known=known))

    @cached_property
    def usual(self) -> str:
        """The first of USUAL on which every output of the program has a finite element; if there is none, the first."""
        finite = (name for name in USUAL if all(map(self._any_finite, self.numbers(name).outputs)))
        return next(finite, USUAL[0])

    def _any_finite(self, x: Array) -> bool:
        return bool(self._xp.isfinite(x).any())

    def many(self, number: int, count: int) -> FloatTrial:
        """`count` draws of zero-mean inputs, the first dim of all arrays; each `number` gives others."""
        scales = input_scales(self._program)
        places = enumerate(zip(self._program.input_types, scales, strict=True))
        stacked = [(place, TensorType((count, *kind.shape), kind.dtype), scale) for place, (kind, scale) in places]
        inputs = [
            self._drawn("zero-mean", f"many {number}", place, kind, scale, np.empty(prod(kind.shape), np.float32))
            for place, kind, scale in stacked
        ]
        outputs = evaluate(self.primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, stack=1)
        return FloatTrial(f"{count} draws, number {number}", inputs, outputs, sizes_of(self._xp, outputs))

    def wide_numbers(self, name: str, share: bool = False) -> FloatTrial:
        """`numbers` for float64: on a GPU the inputs of small programs stand in it, so that no µGraph has to widen them."""
        draw = self.numbers(name, share)
        if self._xp is np or sum(x.size for x in draw.inputs) > TOGETHER_ON_GPU:
            return draw
        if name not in self._wide:
            self._wide[name] = replace(draw, inputs=[x.astype(np.float64) for x in draw.inputs])
        return self._wide[name]

    def far(self, name: str) -> FloatTrial:
        """Usual inputs moved by `far_inputs`; outputs are exact though an exponential leaves the range of float64."""
        if name in self._floats:
            return self._floats[name]
        far, usual, exact = FAR[name], self.usual, ShiftedFloats(FloatAlgebra(self._xp))
        inputs, moving = self._to_move(name, usual)
        last, before = far.sizes[-1], far.usual
        for size in far.sizes:
            for x, kind, scale in moving:
                far.move(x, size, before, scale)
                if far.rounds:
                    x[...] = FloatAlgebra(self._xp, DType.float32, rounds=True).cast(x, kind.dtype)
            before = size
            fits = _always if size == last else partial(_fit, self._program.output_types, exact)
            values = evaluate_while(self.written, inputs, exact, self.slice_elements, fits)
            if values is None:
                continue
            outputs = [exact.number(x) for x in values]
            draw = FloatTrial(name, inputs, outputs, sizes_of(self._xp, outputs), size)
            if size == last or not far.holds or all(map(isfinite, self.own_errors(draw))):
                break
        return self._kept(draw)

    def own_errors(self, draw: FloatTrial) -> list[float]:
        """How wrong each output of the program is in its own types, op by op; infinite where they cannot hold it."""
        algebra = ShiftedFloats(FloatAlgebra(self._xp, self.primitive.working_dtype, rounds=True))
        made = evaluate(self.written, draw.inputs, algebra, self.slice_elements, rounded=True)
        errors = []
        for x, want in zip(map(algebra.number, made), draw.outputs, strict=True):
            with np.errstate(all="ignore"):
                wrong = self._xp.where(self._xp.isfinite(want), abs(x - want), 0)
            errors.append(float(self._xp.where(self._xp.isnan(wrong), np.inf, wrong).max()))
        return errors

    def _to_move(self, name: str, usual: str) -> tuple[list[Array], list[tuple[Array, TensorType, float]]]:
        """Usual inputs in memory of their own, with masks where `far` wants some, and those that are to be moved."""
        kinds, scales = self._program.input_types, input_scales(self._program)
        if self._keep:
            inputs = [x.copy() for x in self.numbers(usual).inputs]
        else:  # where the last ones stood
            self._make_room()
            inputs = [self._numbers(usual, place, *pair) for place, pair in enumerate(zip(kinds, scales, strict=True))]
        moving = []
        for place, (x, kind, scale, is_mask) in enumerate(zip(inputs, kinds, scales, indicators(self.primitive), strict=True)):
            if FAR[name].masks and is_mask:
                generator = np.random.Generator(np.random.SFC64([self._seed, place, *name.encode()]))
                x[...] = self._xp.asarray(mask(generator, kind.shape))
            else:
                moving.append((x, kind, scale))
        return inputs, moving

    def _kept(self, draw: FloatTrial) -> FloatTrial:
        """The draw, noted if it will be asked for again or is small."""
        if draw.name in (USUAL[0], "large") or sum(x.size for x in draw.inputs) <= SMALL_ELEMENTS:
            self._floats[draw.name] = draw
        return draw

    def _make_room(self) -> None:
        if not self._keep:
            fields = [draw.known for draw in self._fields.values()]
            numbers = [draw.known for draw in self._floats.values()]
            for known in (*fields, *numbers):
                if known is not None:
                    known.forget()
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
        return self._drawn(name, name, place, kind, scale, self._array(place, 0, prod(kind.shape)))

    def _drawn(self, name: str, key: str, place: int, kind: TensorType, scale: float, memory: Array) -> Array:
        """Numbers by `_NUMBERS`, times the scale, rounded to the type."""
        rounding, distribution = FloatAlgebra(np, DType.float32, rounds=True), _NUMBERS[name]

        def write(generator: np.random.Generator, piece: Array) -> None:
            distribution(generator, piece)
            piece *= np.float32(scale)
            piece[:] = rounding.cast(piece, kind.dtype)

        fill(memory, [self._seed, place, *key.encode()], write)
        return self._xp.asarray(memory.reshape(kind.shape))


def _uniform(low: float, high: float) -> Write:
    def write(generator: np.random.Generator, piece: Array) -> None:
        generator.random(out=piece, dtype=np.float32)
        piece *= np.float32(high - low)
        piece += np.float32(low)

    return write


def _tails(generator: np.random.Generator, piece: Array) -> None:
    """Both signs, magnitudes from 2^-14 to 2^14, the range of float16; each octave as likely as another."""
    _uniform(-14, 14)(generator, piece)
    np.exp2(piece, out=piece)
    piece *= generator.choice(np.array([-1, 1], np.float32), piece.size)


_NUMBERS = {
    "zero-mean": _uniform(-sqrt(3), sqrt(3)),  # variance 1
    "positive": _uniform(0.5, 1.5),
    "negative": _uniform(-1.5, -0.5),
    "small": _uniform(-1 / 16, 1 / 16),
    "tails": _tails,
}


def _fit(types: Sequence[TensorType], exact: ShiftedFloats, outputs: Sequence[Any]) -> bool:
    """Whether these outputs, or slices of them, hold nothing beyond the range of their types; what is undefined is left out."""
    pairs = zip(map(exact.number, outputs), types, strict=True)
    return not any(bool((abs(x) > kind.dtype.largest).any()) for x, kind in pairs)


def _always(outputs: Sequence[Any]) -> bool:
    return True
