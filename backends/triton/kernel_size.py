"""How large a kernel becomes: a tile op is unrolled into instructions for each element of a thread, products too.

LLVM and ptxas take more than linearly long for unrolled code: 8,192 multiplications a thread took 6 s of two processors, 16,384
took 20 s, and with 35,000 ptxas was not done after eight minutes. The estimate is read from Triton's IR before any pass.
"""

import re
from math import prod
from typing import Any

from triton.compiler import ASTSource

from mirage_eg.ir.errors import UnsupportedError

MOST = 1 << 14  # instructions of a thread; an instruction cache holds about half as many
_MATRIX_UNIT = 1 << 10  # multiplications of a thread that one instruction of a matrix unit does, about
_MATRIX_UNIT_OF_DOUBLES = 8  # likewise: 8 by 8 by 4 of a warp
_FUNCTION = re.compile(r"tt\.func .*?@([^\s(]+)")
_CALL = re.compile(r"tt\.call @([^\s(]+)")
_ARITHMETIC = re.compile(r"arith\.\w+f |math\.|tt\.dot |tt\.reduce|tt\.extern_elementwise")  # not of addresses and masks
_TENSOR = re.compile(r"tensor<((?:\d+x)+)([^>]*)>")


def instructions(text: str, warps: int) -> int:
    """About how many instructions a thread of a kernel in Triton's IR has: the first function of `text`, and what it calls."""
    own: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if found := _FUNCTION.search(line):
            name = found[1]
            own[name], calls[name] = 0, []
        elif name:
            own[name] += _elements(line) if _ARITHMETIC.search(line) else 0
            calls[name] += _CALL.findall(line)

    def total(name: str) -> int:
        return own[name] + sum(total(called) for called in calls[name])

    return total(next(iter(own))) // (32 * warps) if own else 0


def _elements(line: str) -> int:
    """The elements that an op computes, or its multiplications where no matrix unit does them."""
    tensors = [([int(extent) for extent in dims.split("x") if extent], kind) for dims, kind in _TENSOR.findall(line)]
    if not tensors:
        return 0
    if "tt.dot " in line:
        (left, kind), (right, _), *_ = tensors
        count = prod(left) * right[-1]
        if kind == "f64":
            return count // _MATRIX_UNIT_OF_DOUBLES
        if kind == "f32" and "ieee" in line:
            return count
        return count * next((parts for parts in (6, 3) if f"bf16x{parts}" in line), 1) // _MATRIX_UNIT
    return max(prod(dims) for dims, _ in tensors)


class MeasuredSource(ASTSource):  # type: ignore[misc]  # Triton has no types
    """A kernel that is refused before it is compiled if it is too large for the compiler."""

    warps = 4  # Triton's default

    def make_ir(self, *arguments: Any) -> Any:
        """Triton's IR of the kernel. Raises UnsupportedError: it is too large."""
        module = super().make_ir(*arguments)
        if (count := instructions(str(module), self.warps)) > MOST:
            raise UnsupportedError(f"not compiled: about {count:,} instructions for each thread, wanted at most {MOST:,}")
        return module
