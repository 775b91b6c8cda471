"""The random inputs of a program, in the field and in floating point, and its outputs on them. Part of the trusted core.

Each trial is computed once for all candidates, from the seed and the program. Trials of large programs share one buffer: a new
trial overwrites the previous one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from math import inf, isfinite, prod, sqrt
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.array_module import release
from mirage_eg.backends.evaluator.evaluate import SLICE_ELEMENTS, evaluate, evaluate_while
from mirage_eg.backends.evaluator.field_semantics import Component, Randomness
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra, MaskingFloats
from mirage_eg.backends.evaluator.input_scales import input_scales
from mirage_eg.backends.evaluator.memoization import MEMO_BYTES, FieldMemo, MemoBudget, NumericMemo
from mirage_eg.backends.evaluator.random_fill import Write, fill
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.integer_ranges import place_ranges, with_wraps
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.whole_inputs import root_inputs, whole_inputs
from mirage_eg.verify.compare import LEAST_COVERAGE, compare_residues, sizes_of
from mirage_eg.verify.far_inputs import FAR, NOT_A_NUMBER, mask, mask_inputs
from mirage_eg.verify.index_cover import IndexCover
from mirage_eg.verify.zeros import holds_zeros, set_zeros

KEPT_ELEMENTS = 1 << 26  # programs with at most this many input elements keep all trials in memory, larger ones a single one
KEPT_ON_GPU = 1 << 29  # the same in a GPU's memory
STACKED_ELEMENTS = 1 << 16  # trials are stacked up to this many elements of inputs and outputs
STACKED_ON_GPU = 1 << 27  # the same on a GPU, where launches are the cost
SLICE_ON_GPU = 1 << 27  # values up to this many elements are computed without slicing
SMALL_ELEMENTS = 1 << 22  # inputs up to this many elements are kept for every kind of numbers
ATTEMPTS, MASK_ATTEMPTS = 3, 16  # random inputs of a trial, until results are defined: one of 100,000 divisors may be zero
# inputs of usual size, tried in this order until the program is defined
USUAL = ("zero-mean", "masks", "positive", "negative", "small")


@dataclass(frozen=True, slots=True)
class FieldTrial:
    """Inputs and outputs in the field, of one trial or of several stacked ones."""

    algebra: FieldAlgebra
    inputs: list[FieldValue]
    outputs: list[Component]
    unfaithful: frozenset[str]
    memo: FieldMemo | None = None  # the memo of values computed from these inputs, for all graphs


@dataclass(frozen=True, slots=True)
class FloatTrial:
    """Inputs rounded to their types, in float32 (in float64 for small programs on a GPU), and outputs in float64."""

    name: str
    inputs: list[Array]
    outputs: list[Array]
    sizes: list[Array]  # of the outputs, that errors are relative to
    magnitude: float = 1.0
    memo: NumericMemo | None = None  # the memo of float64 values
    indices: tuple[tuple[str, Array], ...] = ()  # those of stacked trials that differ in them, by the names of the inputs

    def only(self, number: int) -> "FloatTrial":
        """The trial `number` of stacked ones."""
        taken = [
            [x if len(x) == 1 else x[number : number + 1] for x in arrays] for arrays in (self.inputs, self.outputs, self.sizes)
        ]
        indices = tuple((name, found[number : number + 1]) for name, found in self.indices)
        return replace(self, inputs=taken[0], outputs=taken[1], sizes=taken[2], indices=indices)

    def shown(self, number: int) -> str:
        """The trial `number` of stacked ones in a message."""
        shown = [f"{name} = {found[number].ravel()[:8].astype(int).tolist()}" for name, found in self.indices]
        return ", ".join(shown) or self.name


class RandomInputs:
    """The random inputs of one program and one seed, trial by trial."""

    def __init__(self, program: Graph, seed: int, xp: Any = np) -> None:
        self._program, self._xp = program, xp
        self._seed = int.from_bytes(blake2b(repr((seed, program)).encode(), digest_size=8).digest(), "little")
        primitive = expand(program)
        self._ranges = place_ranges(primitive)
        self.primitive = self.with_wraps(primitive)
        self._whole = whole_inputs(primitive)
        self._roots = root_inputs(primitive)
        self._masks = mask_inputs(primitive)
        self.written = without_far_logarithms(self.primitive)  # the same function, for numbers of any size
        self._keep = sum(prod(kind.shape) for kind in program.input_types) <= (KEPT_ELEMENTS if xp is np else KEPT_ON_GPU)
        self._budget = MemoBudget(MEMO_BYTES)  # for the memos of all trials
        self._own_errors: dict[tuple[str, float, bool], list[float]] = {}
        self.sampled_errors: dict[tuple[str, float], list[float]] = {}  # of the program under random roundings, by trials
        self._memory: dict[tuple[int, int], Array] = {}
        self.slice_elements = SLICE_ELEMENTS if xp is np else SLICE_ON_GPU
        self._fields: dict[tuple[bool, bool, tuple[int, ...]], FieldTrial] = {}
        self._floats: dict[str, FloatTrial] = {}
        self._wide: dict[str, FloatTrial] = {}

    def with_wraps(self, graph: Graph) -> Graph:
        """A graph on these inputs with its integers wrapped where they may leave their types."""
        return with_wraps(graph, self._ranges)

    def stacked(self, trials: int) -> int:
        """How many of so many trials are stacked."""
        if not self._keep:
            return 1
        types = (*self._program.input_types, *self._program.output_types)
        most = STACKED_ELEMENTS if self._xp is np else STACKED_ON_GPU
        return max(1, min(trials, most // sum(prod(kind.shape) for kind in types)))

    def field(
        self, first: int, count: int = 1, share: bool = False, joins: bool = False, everywhere: bool = False
    ) -> FieldTrial:
        """Trial `first` in the field, or `count` stacked trials from it.

        Inputs are drawn again while an output is undefined at most of its elements. A mask of few bits may hide all keys, and
        in a deep model one undefined row of attention makes all later rows undefined.
        With `share`, the program's inner values enter a memo for graphs that compute them too; `joins` and `everywhere`
        as in `Randomness`.

        Raises UnsupportedError: the program divides by zero almost everywhere.
        """
        numbers = tuple(range(first, first + count))
        key = joins, everywhere, numbers
        if key not in self._fields:
            self._release()
            masked = any(kind.dtype is DType.bool for kind in self._program.input_types)
            attempts = MASK_ATTEMPTS if masked else ATTEMPTS
            for attempt in range(attempts):
                trials = first if count == 1 else numbers
                randomness = Randomness(self._seed + attempt, trials, self._xp, joins, everywhere)
                trial = self._field_trial(FieldAlgebra(randomness), share)
                undefined = self._undefined_output(trial)
                if undefined is None:
                    break
                if trial.memo is not None:
                    trial.memo.clear()
            else:
                raise UnsupportedError(
                    f"got a program whose output {undefined} divides by zero at most of its elements in the field; "
                    "wanted one that can be tested (is something divided by the difference of equal values?)"
                )
            self._fields[key] = trial
        return self._fields[key]

    def _field_trial(self, algebra: FieldAlgebra, share: bool) -> FieldTrial:
        inputs = [
            algebra.input(
                position,
                kind.shape,
                lambda k, count, position=position: self._buffer(position, k, count),  # type: ignore[misc]
                self._whole.get(position, 0),
            )
            for position, kind in enumerate(self._program.input_types)
        ]
        memo = FieldMemo(algebra, self._budget) if share and self._xp is np else None
        values = evaluate(self.primitive, inputs, algebra, self.slice_elements, stack=algebra.stack, memo=memo)
        unfaithful = frozenset[str]().union(*(value.unfaithful for value in values))
        return FieldTrial(algebra, inputs, algebra.read(values), unfaithful, memo)

    def _undefined_output(self, trial: FieldTrial) -> str | None:
        """The name of an output that is undefined at most of its elements, if there is one."""
        for name, output in zip(self._program.output_names, trial.outputs, strict=True):
            compared = compare_residues(self._xp, name, output, output, trial.algebra.stack)()
            if compared.defined < LEAST_COVERAGE * output.residues.size:
                return name
        return None

    def numbers(self, name: str, share: bool = False) -> FloatTrial:
        """Inputs of usual size (`input_scales`) with a distribution of `_NUMBERS`, or far ones; `share` as for `field`."""
        if name in FAR:
            trial = self.far(name)
            memo = NumericMemo(self._budget) if share and self._xp is np else None
            if not any(item.op == "exp" for item in self.primitive.nodes):
                return replace(trial, memo=memo)
            outputs = evaluate(self.primitive, trial.inputs, FloatAlgebra(self._xp), self.slice_elements, memo=memo)
            return replace(trial, outputs=outputs, sizes=sizes_of(self._xp, outputs), memo=memo)
        if name in self._floats:
            return self._floats[name]
        self._release()
        numbered = enumerate(zip(self._program.input_types, input_scales(self._program), strict=True))
        inputs = [self._numbers(name, position, kind, scale) for position, (kind, scale) in numbered]
        memo = NumericMemo(self._budget) if share and self._xp is np else None
        outputs = evaluate(self.primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, memo=memo)
        return self._remember(FloatTrial(name, inputs, outputs, sizes_of(self._xp, outputs), memo=memo))

    @cached_property
    def usual(self) -> str:
        """The first of USUAL on which every output of the program has a finite element, else USUAL[0]."""
        finite = (name for name in USUAL if all(self._xp.isfinite(x).any() for x in self.numbers(name).outputs))
        return next(finite, USUAL[0])

    def many(self, number: int, count: int) -> FloatTrial:
        """`count` stacked trials of zero-mean inputs, along the first dim of all arrays; each `number` gives others."""
        scales = input_scales(self._program)
        numbered = enumerate(zip(self._program.input_types, scales, strict=True))
        stacked = [(position, TensorType((count, *kind.shape), kind.dtype), scale) for position, (kind, scale) in numbered]
        inputs = [
            self._random_numbers("zero-mean", f"many {number}", position, kind, scale, np.empty(prod(kind.shape), np.float32))
            for position, kind, scale in stacked
        ]
        outputs = evaluate(self.primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, stack=1)
        return FloatTrial(f"{count} trials, number {number}", inputs, outputs, sizes_of(self._xp, outputs))

    def at_places(self, cover: IndexCover, trials: range) -> FloatTrial:
        """Stacked trials with the indices of `cover`, along the first dim of all arrays; other inputs are the same in all."""
        usual = self.numbers(self.usual)
        inputs = [x[None] for x in usual.inputs]
        for position in cover.places:
            generator = np.random.Generator(np.random.SFC64([self._seed, position, *b"places"]))
            shape = self._program.input_types[position].shape
            inputs[position] = self._xp.asarray(cover.indices(position, shape, trials, generator).astype(np.float64))
        outputs = evaluate(self.primitive, inputs, FloatAlgebra(self._xp), self.slice_elements, stack=1)
        named = tuple((self._program.input_names[position], inputs[position]) for position in cover.places)
        return FloatTrial("indices at every place", inputs, outputs, sizes_of(self._xp, outputs), indices=named)

    def wide_numbers(self, name: str, share: bool = False) -> FloatTrial:
        """`numbers` for float64: a GPU stores inputs of small programs in it, so that no µGraph needs to widen them."""
        trial = self.numbers(name, share)
        if self._xp is np or sum(x.size for x in trial.inputs) > STACKED_ON_GPU:
            return trial
        if name not in self._wide:
            self._wide[name] = replace(trial, inputs=[x.astype(np.float64) for x in trial.inputs])
        return self._wide[name]

    def far(self, name: str) -> FloatTrial:
        """Usual inputs moved by `far_inputs`; outputs are exact even if an exponential leaves the range of float64."""
        if name in self._floats:
            return self._floats[name]
        if name == NOT_A_NUMBER:
            return self._remember(self._with_not_a_number())
        if FAR[name].end:
            return self._remember(self._near_the_end(name))
        far, usual, exact = FAR[name], self.usual, ShiftedFloats(FloatAlgebra(self._xp))
        holds = far.holds or any(item.op == "exp" for item in self.primitive.nodes)
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
            trial = FloatTrial(name, inputs, outputs, sizes_of(self._xp, outputs), size)
            if size == last or not holds or all(map(isfinite, self.own_errors(trial))):
                break
        return self._remember(trial)

    def _near_the_end(self, name: str) -> FloatTrial:
        """Usual inputs times a power of two, with 5/8 of the exponent up to which the program stays in the range of its types.

        So what needs more than 8/5 of its exponents leaves the range: a law that doubles them does.
        """
        inputs, moving = self._to_move(name, self.usual)
        exponent = 0

        def moved(by: int) -> FloatTrial:
            nonlocal exponent
            for x, _, _ in moving:
                x *= np.float32(2.0 ** (by - exponent))
            exponent = by
            outputs = evaluate(self.primitive, inputs, FloatAlgebra(self._xp), self.slice_elements)
            return FloatTrial(name, inputs, outputs, sizes_of(self._xp, outputs), 2.0**by)

        held, left = 0, 16  # in steps of 8; 128 is beyond the range
        while left - held > 1:
            middle = (held + left) // 2
            held, left = (middle, left) if self._holds(moved(8 * middle * FAR[name].end)) else (held, middle)
        return moved(5 * held * FAR[name].end)

    def _holds(self, trial: FloatTrial) -> bool:
        """Whether the program in its own types stays within their range, at both ends."""
        xp = self._xp
        for error, want, kind in zip(self.own_errors(trial), trial.outputs, self._program.output_types, strict=True):
            size = xp.where(xp.isfinite(want), abs(want), 0).max()
            if size > kind.dtype.largest or not error <= size / 16:
                return False
        return True

    def _with_not_a_number(self) -> FloatTrial:
        """Usual inputs with an element of each that is not-a-number; outputs are so where that alone makes them not finite.

        What else is not finite is infinite here, so that it is left out.
        """
        xp, algebras = self._xp, [ShiftedFloats(FloatAlgebra(self._xp))]
        inputs, moving = self._to_move(NOT_A_NUMBER, self.usual)
        before = [algebras[0].number(x) for x in evaluate(self.written, inputs, algebras[0], self.slice_elements)]
        for number, (x, _, _) in enumerate(moving):
            x.reshape(-1)[np.random.default_rng([self._seed, number]).integers(x.size)] = np.nan
        after = [algebras[0].number(x) for x in evaluate(self.written, inputs, algebras[0], self.slice_elements)]
        plain, masked = (
            evaluate(self.primitive, inputs, algebra, self.slice_elements) for algebra in (FloatAlgebra(xp), MaskingFloats(xp))
        )
        outputs = []
        for usual, exact, other, least in zip(before, after, plain, masked, strict=True):
            known = xp.where(xp.isfinite(other), exact, np.inf)  # 0 · exp(not-a-number) may be either
            lost = xp.where(xp.isfinite(least), np.inf, np.nan)  # so may 0 · not-a-number, as at a key that a mask hides
            outputs.append(xp.where(xp.isfinite(usual), xp.where(xp.isfinite(exact), known, lost), np.inf))
        return FloatTrial(NOT_A_NUMBER, inputs, outputs, sizes_of(xp, outputs))

    def own_errors(self, trial: FloatTrial, exponentials_fit: bool = True) -> list[float]:
        """The error of each output of the program in its own types, op by op; infinite where they cannot hold it.

        Its types hold all exponentials, as if they were computed in a safe form, unless `exponentials_fit` is false.
        """
        key = trial.name, trial.magnitude, exponentials_fit
        if key in self._own_errors:
            return self._own_errors[key]
        numbers = self.in_own_types(trial, exponentials_fit)
        errors = []
        for x, want, kind in zip(numbers, trial.outputs, self._program.output_types, strict=True):
            with np.errstate(all="ignore"):
                wrong = self._xp.where(abs(want) <= largest_of(kind.dtype, want), abs(x - want), 0)
            errors.append(float(self._xp.where(self._xp.isnan(wrong), np.inf, wrong).max()))
        self._own_errors[key] = errors
        return errors

    def in_own_types(self, trial: FloatTrial, exponentials_fit: bool = True) -> list[Array]:
        """The outputs of the program in its own types, op by op; `exponentials_fit` as in `own_errors`."""
        rounding = FloatAlgebra(self._xp, self.primitive.working_dtype, rounds=True)
        if not exponentials_fit:
            return evaluate(self.written, trial.inputs, rounding, self.slice_elements, rounded=True)
        shifted = ShiftedFloats(rounding, keeps_logarithms=True)
        values = evaluate(self.written, trial.inputs, shifted, self.slice_elements, rounded=True)
        return [*map(shifted.number, values)]

    def _to_move(self, name: str, usual: str) -> tuple[list[Array], list[tuple[Array, TensorType, float]]]:
        """Usual inputs in a buffer of their own, with the masks of far inputs `name`, and the inputs that are to be moved."""
        kinds, scales = self._program.input_types, input_scales(self._program)
        if self._keep:
            inputs = [x.copy() for x in self.numbers(usual).inputs]
        else:  # in the buffer of the previous trial
            self._release()
            inputs = [self._numbers(usual, position, *pair) for position, pair in enumerate(zip(kinds, scales, strict=True))]
        moving = []
        for position, (x, kind, scale, is_mask) in enumerate(zip(inputs, kinds, scales, self._masks, strict=True)):
            if FAR[name].masks and is_mask:
                generator = np.random.Generator(np.random.SFC64([self._seed, position, *name.encode()]))
                x[...] = self._xp.asarray(mask(generator, kind.shape))
            elif position not in self._whole and position not in self._roots:
                moving.append((x, kind, scale))
        return inputs, moving

    def _remember(self, trial: FloatTrial) -> FloatTrial:
        """The trial, kept if it is used again or small."""
        if trial.name in (USUAL[0], "large") or sum(x.size for x in trial.inputs) <= SMALL_ELEMENTS:
            self._floats[trial.name] = trial
        return trial

    def forget(self) -> None:
        """Drop all trials; memory of a GPU goes back to its device, for the kernels of the program."""
        self._fields.clear()
        self._floats.clear()
        self._wide.clear()
        self._memory.clear()
        release(self._xp)

    def _release(self) -> None:
        if not self._keep:
            fields = [trial.memo for trial in self._fields.values()]
            numbers = [trial.memo for trial in self._floats.values()]
            for memo in (*fields, *numbers):
                if memo is not None:
                    memo.clear()
            self._fields.clear()
            self._floats.clear()

    def _buffer(self, position: int, number: int, count: int) -> Array:
        if self._keep:
            return np.empty(count, np.float32)
        if (position, number) not in self._memory:
            self._memory[position, number] = np.empty(count, np.float32)
        return self._memory[position, number]

    def _numbers(self, name: str, position: int, kind: TensorType, scale: float) -> Array:
        return self._random_numbers(name, name, position, kind, scale, self._buffer(position, 0, prod(kind.shape)))

    def _random_numbers(self, name: str, key: str, position: int, kind: TensorType, scale: float, memory: Array) -> Array:
        """Numbers by `_NUMBERS`, times the scale, rounded to the type."""
        rounding, distribution = (
            FloatAlgebra(np, DType.float32, rounds=True),
            _NUMBERS[self.usual if holds_zeros(name) else name],
        )
        if position in self._whole:
            distribution, scale = _below(self._whole[position]), 1.0
        elif position in self._roots:
            distribution, scale = _NUMBERS["positive"], 1.0
        elif name == "masks" and self._masks[position]:
            distribution, scale = _below(2), 1.0

        def write(generator: np.random.Generator, chunk: Array) -> None:
            distribution(generator, chunk)
            if name == "ties":
                np.rint(chunk, out=chunk)
            chunk *= np.float32(scale)
            chunk[:] = rounding.cast(chunk, kind.dtype)

        if name != "all zeros" or position in self._whole:
            fill(memory, [self._seed, position, *key.encode()], write)
        if holds_zeros(name) and position not in self._whole:
            set_zeros(
                memory.reshape(kind.shape), name, np.random.Generator(np.random.SFC64([self._seed, position, *key.encode()]))
            )
        return self._xp.asarray(memory.reshape(kind.shape))


def _uniform(low: float, high: float) -> Write:
    def write(generator: np.random.Generator, chunk: Array) -> None:
        generator.random(out=chunk, dtype=np.float32)
        chunk *= np.float32(high - low)
        chunk += np.float32(low)

    return write


def _below(bound: int) -> Write:
    def write(generator: np.random.Generator, chunk: Array) -> None:
        chunk[:] = generator.integers(bound, size=chunk.size)

    return write


def _tails(generator: np.random.Generator, chunk: Array) -> None:
    """Both signs, magnitudes from 2^-14 to 2^14, the range of float16; each octave as likely as another."""
    _uniform(-14, 14)(generator, chunk)
    np.exp2(chunk, out=chunk)
    chunk *= generator.choice(np.array([-1, 1], np.float32), chunk.size)


_NUMBERS = {
    "zero-mean": _uniform(-sqrt(3), sqrt(3)),  # variance 1
    "masks": _uniform(-sqrt(3), sqrt(3)),  # of zeros and ones where an input may be a mask
    "positive": _uniform(0.5, 1.5),
    "negative": _uniform(-1.5, -0.5),
    "small": _uniform(-1 / 16, 1 / 16),
    "tails": _tails,
}


def largest_of(dtype: DType, numbers: Any) -> float:
    """The largest number of a type, or of an array of a narrower one: that has ∞ where its own range ends."""
    own = np.finfo(numbers.dtype).max if numbers.dtype.kind == "f" else inf
    return min(dtype.largest, float(own))


def _fit(types: Sequence[TensorType], exact: ShiftedFloats, outputs: Sequence[Any]) -> bool:
    """Whether these outputs, or slices of them, hold nothing beyond the range of their types; what is undefined is left out."""
    pairs = zip(map(exact.number, outputs), types, strict=True)
    return not any(bool((abs(x) > largest_of(kind.dtype, x)).any()) for x, kind in pairs)


def _always(outputs: Sequence[Any]) -> bool:
    return True
