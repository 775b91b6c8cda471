"""Registers of kernels with products: the bytes that tl.dot holds, the threads that have so many, the traffic of the rest.

A product holds its result. One in float32 is six products in bfloat16: it holds a second result, and two registers for each
number of its operands, while these are split into three parts. A thread has at most 255 registers, and a multiprocessor as many
as 256 such threads.

Compiled for sm_90 (Triton 3.9), tiles of 128 × 128 × 32 take 214 to 222 registers a thread on 8 warps, and on 4 they spill 500
to 580 bytes; tiles of 256 × 128 × 16 spill 300 and 2,800, of 128 × 256 × 16 200 and 4,400. Those of 128 × 256 in float16 spill
1,020 on 4 warps and none on 8.
"""

_FLOAT32 = 4  # bytes
_REGISTERS = 232  # of a thread, for tiles; the others are for addresses
_BESIDES, _BESIDES_IN_LOOPS = 16, 40  # of a thread without tl.dot, besides tiles
_REGISTER_FILE, _THREADS = 1 << 16, 2048  # of a multiprocessor
MOST_THREADS = 256  # of a thread block with products: more threads share the same registers
_LEVEL_1 = 96 << 10  # bytes: about the part of the first cache that shared memory leaves


def result_bytes(elements: int) -> int:
    """Bytes of registers of a product's result of so many elements."""
    return _FLOAT32 * elements


def splitting_bytes(elements: int, operands: int) -> int:
    """Bytes of registers that a product in float32 takes besides its result, of so many elements, as its operands have."""
    return result_bytes(elements) + 2 * _FLOAT32 * operands


def register_bytes(threads: int) -> int:
    """The bytes of registers of a block of so many threads."""
    return _FLOAT32 * _REGISTERS * min(threads, MOST_THREADS)


def resident_blocks(live: int, threads: int, *, loops: bool) -> float:
    """The blocks of so many threads that a multiprocessor holds, by the live bytes of each.

    Compiled for sm_90 (Triton 3.9), 48 kernels of a norm and a product of one row had 16 to 64 registers of tiles in a thread,
    and 0 to 24 more; those with a loop 24 to 80 more.
    """
    registers = (_BESIDES_IN_LOOPS if loops else _BESIDES) + live / _FLOAT32 / threads
    return min(_REGISTER_FILE / (threads * min(registers, _REGISTERS)), _THREADS / threads)


def threads_for(held: int, threads: int) -> int:
    """The threads of a block whose products hold so many bytes: `threads`, or twice as many until they have the registers."""
    while threads < MOST_THREADS and held > register_bytes(threads):
        threads *= 2
    return threads


def spill_traffic(spilled: int) -> float:
    """Bytes that operands of products could pass in the time in which so many bytes go out of registers and in again.

    For 1,024 × 8,192 × 8,192 and 4,096³ on an H200 one that spilled none took 2,074 µs. Kernels that spilled 496, 2,800 and
    4,400 bytes a thread, of 128, took 2,557 µs, 19,000 to 22,100 and 31,100.
    """
    return min(spilled, _LEVEL_1) / 3 + 2.5 * max(0, spilled - _LEVEL_1)
