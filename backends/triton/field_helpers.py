"""Functions of emitted kernels that take fields of bits out of bytes, four bytes at a time, in the assembler of NVIDIA's GPUs.

A shift and a mask of a word are those of four bytes. `prmt` then joins a byte of the word with bytes of a constant: under the
byte of a half's 2^10 or a float's 2^7, of which the number is the last digits. In Triton's own ops each element takes a shift,
a mask, a conversion and an exclusive or.
"""

from collections.abc import Mapping

ASSEMBLER = "ASSEMBLER"  # the constant of an emitted file that chooses these forms; other GPUs have none of the instructions
FIELD_HALF, FIELD_FLOAT = "field_in_half", "field_in_float"
HALF_OFFSET, FLOAT_OFFSET = 1 << 10, 1 << 7  # by which their numbers are too large
MOST_BITS = 7  # of a field: eight would reach the exponent of a float's 2^7

_HALF = f'''@triton.jit
def {FIELD_HALF}(x, shift, mask):
    """{HALF_OFFSET} more than the bits of each byte above a shift, under a mask."""
    if {ASSEMBLER}:
        return tl.inline_asm_elementwise(
            """
            {{
                .reg .b32 n;
                and.b32 n, $3, 31;
                shr.u32 n, $2, n;
                and.b32 n, n, $4;
                prmt.b32 $0, n, 0x64646464, 0x4140;
                prmt.b32 $1, n, 0x64646464, 0x4342;
            }}
            """,
            "=r,=r,r,r,r", [x, shift, mask], dtype=tl.float16, is_pure=True, pack=4,
        )
    return (((x >> shift) & mask).to(tl.int16) ^ 0x6400).to(tl.float16, bitcast=True)
'''
_FLOAT = f'''@triton.jit
def {FIELD_FLOAT}(x, shift, mask):
    """{FLOAT_OFFSET} more than the bits of each byte above a shift, under a mask."""
    if {ASSEMBLER}:
        return tl.inline_asm_elementwise(
            """
            {{
                .reg .b32 n;
                and.b32 n, $5, 31;
                shr.u32 n, $4, n;
                and.b32 n, n, $6;
                prmt.b32 $0, n, 0x43000000, 0x7044;
                prmt.b32 $1, n, 0x43000000, 0x7144;
                prmt.b32 $2, n, 0x43000000, 0x7244;
                prmt.b32 $3, n, 0x43000000, 0x7344;
            }}
            """,
            "=r,=r,=r,=r,r,r,r", [x, shift, mask], dtype=tl.float32, is_pure=True, pack=4,
        )
    return ((((x >> shift) & mask).to(tl.int32) << 16) ^ 0x43000000).to(tl.float32, bitcast=True)
'''
_CONSTANT = f"{ASSEMBLER} = tl.constexpr(True)  # of NVIDIA's GPUs; others need False\n"
FIELD_HELPERS: Mapping[str, str] = {ASSEMBLER: _CONSTANT, FIELD_HALF: _HALF, FIELD_FLOAT: _FLOAT}
