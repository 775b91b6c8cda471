"""The assembler of emitted kernels on arrays, for Triton's interpreter, which has none: `field_helpers`,
`product_helpers`, `cluster_helpers`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint32]]
Array = np.ndarray[Any, np.dtype[Any]]


def _chosen_bytes(x: Words, y: Words, selector: Words) -> Words:
    """`prmt`: each byte of the result is the one of y:x that a digit of the selector names."""
    numbers = np.stack([*(x >> 8 * place & 0xFF for place in range(4)), *(y >> 8 * place & 0xFF for place in range(4))])
    digits = [selector >> 4 * place & 7 for place in range(4)]
    found = [np.take_along_axis(numbers, digit[None].astype(np.int64), 0)[0] << 8 * place for place, digit in enumerate(digits)]
    result: Words = found[0] | found[1] | found[2] | found[3]
    return result


def _product_added(x: Words, y: Words, z: Words) -> Words:
    """`fma.rn.f32`: a product of float32 is exact in float64."""
    found = x.view(np.float32).astype(np.float64) * y.view(np.float32) + z.view(np.float32)
    result: Words = found.astype(np.float32).view(np.uint32)
    return result


_INSTRUCTIONS: Mapping[str, Callable[..., Words]] = {
    "and.b32": lambda x, y: x & y,
    "shr.u32": lambda x, y: x >> y,
    "prmt.b32": _chosen_bytes,
    "mov.f32": lambda x: x,
    "fma.rn.f32": _product_added,
}


def assembled(
    text: str, constraints: str, arrays: Sequence[Array], results: Sequence[np.dtype[Any]], pack: int
) -> Iterator[Array]:
    """The results of instructions on arrays of one shape, `pack` elements at a time, by their types."""
    [*shape], count = arrays[0].shape, arrays[0].size
    outputs = constraints.count("=")
    words = [_packed(array.reshape(-1), pack) for array in arrays]
    registers = {f"${outputs + place}": word for place, word in enumerate(words)}
    for line in text.replace("{", "").replace("}", "").split(";"):
        name, _, rest = line.strip().partition(" ")
        if name and name != ".reg":
            target, *operands = (part.strip() for part in rest.split(","))
            values = (registers[it] if it in registers else np.full_like(words[0], int(it, 0)) for it in operands)
            registers[target] = _INSTRUCTIONS[name](*values)
    each = outputs // len(results)
    for number, result in enumerate(results):
        found = np.stack([registers[f"${number * each + place}"] for place in range(each)], axis=1)
        yield found.view(result).reshape(-1)[:count].reshape(shape)


def over_cluster(text: str, parts: Array) -> Array:
    """What `cluster_helpers` give: the sum or the maximum of the elements of all thread blocks, in each of them."""
    return np.full_like(parts, np.max(parts) if "max.NaN.f32" in text else np.sum(parts))


def _packed(array: Array, pack: int) -> Words:
    padded = np.zeros(-(-array.size // pack) * pack, dtype=array.dtype)
    padded[: array.size] = array
    return padded.view(np.uint32)
