"""Functions of emitted kernels that add products with one factor to several sums, in the assembler of NVIDIA's GPUs.

For each load of a kernel, Triton's pass Coalesce looks at what each op depends on: that takes as long as there are loads, times
the square of the ops. A function is one op.
"""

from collections.abc import Mapping

from mirage_eg.backends.triton.field_helpers import ASSEMBLER

_MOST_SUMS = 16


def name_of(sums: int) -> str:
    """The function of two sums or more."""
    return f"add_to_{sums}_sums"


def added(x: str, factors: Mapping[str, str]) -> str:
    """The line that adds to each sum x times the factor that the sum has: texts of float32."""
    return f"{', '.join(factors)} = {name_of(len(factors))}({', '.join([x, *factors.values(), *factors])})"


def _source(sums: int) -> str:
    places = range(sums)
    names = [*(f"y{it}" for it in places), *(f"s{it}" for it in places)]
    operands = ", ".join(["x", *names])
    results = ", ".join(f"t{it}" for it in places)
    products = "; ".join(f"fma.rn.f32 t{it}, ${sums}, ${sums + 1 + it}, ${2 * sums + 1 + it}" for it in places)
    constraints = ",".join([*("=f" for _ in places), *("f" for _ in names), "f"])
    moves = "; ".join(f"mov.f32 ${it}, t{it}" for it in places)  # a result may share its register with an operand
    return f'''@triton.jit
def {name_of(sums)}({operands}):
    """Each sum, to which x times its factor is added."""
    if {ASSEMBLER}:
        return tl.inline_asm_elementwise(
            "{{ .reg .f32 {results}; {products}; {moves}; }}",
            "{constraints}", [{operands}], dtype=({"tl.float32, " * sums}), is_pure=True, pack=1,
        )
    return {", ".join(f"s{it} + x * y{it}" for it in places)}
'''


PRODUCT_HELPERS: Mapping[str, str] = {name_of(sums): _source(sums) for sums in range(2, _MOST_SUMS + 1)}
