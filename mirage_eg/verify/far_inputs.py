"""Far inputs: large, offset or masked ones, on which kernels may leave the range of their types. Trusted.

Programs with exponentials or differences get a common offset. Those with exponentials get masks of 0 and 1 with scores that
differ by tens or thousands, so that the largest score of a row, or the whole row, is masked. Those with quotients and roots get
inputs near both ends of the range that they have as written, and before exponentials small ones. All get not-a-number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.random_rounding import POLES
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import AFFINE, CASTS, DIFFERENCES, DIVISIONS, PACKAGED, ROOTS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.whole_inputs import indicator_inputs


@dataclass(frozen=True, slots=True)
class Far:
    """A kind of far inputs; `sizes` are tried in order until the program's outputs fit their types.

    `move(x, size, before, scale)` works in place: usual inputs have the size `usual`. With `holds` all intermediate values must
    fit the types of the program, too. In a program with exponentials they always must: where scores overflow, any rounding
    decides which one is the largest. With `end`, the sign of exponents, the size is a power of two that the program allows
    (`RandomInputs`), instead of `sizes`.
    """

    sizes: tuple[float, ...]
    move: Callable[[Array, float, float, float], None]
    usual: float
    masks: bool = False
    holds: bool = False
    rounds: bool = False  # moved inputs must be rounded to their type
    end: int = 0


def _times(x: Array, size: float, before: float, scale: float) -> None:
    x *= np.float32(size / before)


def _below(x: Array, size: float, before: float, scale: float) -> None:
    x -= np.float32((size - before) * scale)


NOT_A_NUMBER = "not-a-number"

FAR: Mapping[str, Far] = {
    "large": Far((64.0, 8.0, 2.0, 1.0), _times, 1.0),
    "offset": Far((128.0, 16.0, 2.0, 0.0), _below, 0.0, holds=True, rounds=True),
    "masked": Far((8.0, 2.0, 1.0), _times, 1.0, masks=True),
    "masked large": Far((512.0, 64.0, 8.0, 2.0, 1.0), _times, 1.0, masks=True),
    "shrunk": Far((1 / 512, 1 / 64, 1 / 8, 1 / 2, 1.0), _times, 1.0),
    "huge": Far((), _times, 1.0, end=1),
    "tiny": Far((), _times, 1.0, end=-1),
    NOT_A_NUMBER: Far((), _times, 1.0),
}

_LEAVES_RANGE = DIVISIONS | ROOTS | {"pow"}  # by other laws than products and sums
_PERIODIC = frozenset(op.name for op in PACKAGED.values() if op.periodic)
_WIDE = 2.0**100


def far_names(program: Graph) -> list[str]:
    """The kinds of far inputs for a program of primitive ops."""
    ops = {item.op for item in program.nodes}
    if "exp" in ops:
        left_out = {*([] if _has_pole_in_exponent(program) else ["shrunk"]), *(name for name, far in FAR.items() if far.end)}
        return [name for name, far in FAR.items() if name not in left_out and (not far.masks or any(mask_inputs(program)))]
    wide = all(dtype.is_integer or dtype is DType.bool or dtype.largest > _WIDE for dtype in program.dtypes)
    ends = ["huge", "tiny"] if ops & _LEAVES_RANGE and not ops & _PERIODIC and wide else []
    return ["large", *(["offset"] if ops & DIFFERENCES else []), *ends, NOT_A_NUMBER]


def _has_pole_in_exponent(program: Graph) -> bool:
    """Whether an exponent is an elementwise function of inputs, or of maxima, that grows where they are small, as 1/x does."""
    elementwise, poles = set[int](), set[int]()
    for item, values in program.numbered():
        stays = item.kind in (Kind.ELEMENTWISE, Kind.REARRANGEMENT) or item.op == "max"
        if item.op == "input" or (stays and elementwise.issuperset(item.operands)):
            elementwise.update(values)
            if (item.op in POLES and item.get("exponent", -1) < 0) or not poles.isdisjoint(item.operands):
                poles.update(values)
        if item.op == "exp" and not poles.isdisjoint(item.operands):
            return True
    return False


def mask_inputs(program: Graph) -> list[bool]:
    """For each input whether it may be a mask of 0 and 1: after views, scales and shifts it is only multiplied or added.

    An input from which a condition is computed is one.
    """
    certain = indicator_inputs(program)
    source: dict[int, int] = {}
    others: set[int] = set()
    for item, values in program.numbered():
        sources = {source[i] for i in item.operands if i in source}
        if item.op == "input":
            source[values[0]] = values[0]
        elif item.kind is Kind.REARRANGEMENT or item.op in CASTS | {"scale", "shift"}:
            if len(sources) == 1 and len(item.operands) == 1:
                source[values[0]] = sources.pop()
            else:
                others |= sources
        elif item.op not in AFFINE | {"fill"}:
            others |= sources
    return [position in certain or value not in others for position, value in enumerate(program.input_values)]


def mask(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """0 and 1; of four rows along the last dim one has few ones, one half, one all, one none, in random order.

    The order differs between inputs: where scores are taken for a mask, too, those of a row that is masked whole differ.
    """
    columns = shape[-1] if shape and shape[-1] > 1 else int(np.prod(shape))
    uniform = generator.random((int(np.prod(shape)) // columns, columns), dtype=np.float32)
    odds = np.array([2 / columns, 0.5, 1.0, 0.0], np.float32)[generator.permutation(len(uniform)) % 4]
    ones = uniform < odds[:, None]
    ones[0, generator.integers(columns)] = True
    return ones.astype(np.float32).reshape(shape)
