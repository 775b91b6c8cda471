"""Whether the shared memory of a block holds a block graph: the model says so where it can, the compiler where it cannot.

The compiler is asked only where the guess leaves the answer open: near the limit, or within half of it where the model is not
sure. It gets the block graph alone, as a program of one kernel, and goes as far as its allocation: a fifth of a second.
"""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from os import environ

from mirage_eg.backends.allocate import allocate
from mirage_eg.backends.compile import TARGETS, loaded
from mirage_eg.backends.emit import Schedule, emit
from mirage_eg.backends.emit_writer import Choices
from mirage_eg.emitted_blocks import emitted_blocks
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, node
from mirage_eg.ir.ops import Level
from mirage_eg.shared_memory import guess

_KNOWN = ("safe", "swapped", "exp2", "last_first", "reciprocals")  # choices of which the model knows what becomes of buffers


def leaner(graph: Graph, schedule: Schedule, target: str) -> Schedule | str:
    """The schedule, with fewer stages of kernels that surely do not fit with as many; which kernel does not even with one."""
    blocks = list(emitted_blocks(graph))
    every = schedule.num_stages if isinstance(schedule.num_stages, tuple) else (schedule.num_stages,) * len(blocks)
    warps = schedule.num_warps if isinstance(schedule.num_warps, tuple) else (schedule.num_warps,) * len(blocks)
    limit, fitting = TARGETS[target].shared_memory, list(every)
    for number, block in enumerate(blocks):
        choices = schedule.choices(number)
        known = Choices(**{name: getattr(choices, name) for name in _KNOWN})
        if choices != known or any(schedule.choices(other).joined for other in range(len(blocks))):
            continue  # written otherwise than the model knows
        while (needs := guess(block, fitting[number], warps[number], choices.swapped, target)).sure and needs.least > limit:
            if fitting[number] <= 1:
                return (
                    f"kernel {number}: needs about {needs.nbytes:,} bytes of shared memory by the model; "
                    f"a block on {target} may have {limit:,}; not compiled"
                )
            fitting[number] -= 1
    return schedule if tuple(fitting) == every else replace(schedule, num_stages=tuple(fitting))


def may_fit(block: Graph, limit: int, stages: int, target: str) -> bool:
    """Whether a block graph fits `limit` bytes of shared memory as far as the model is sure: no only if it cannot."""
    return guess(block, stages, target=target).least <= limit


def does_fit(block: Graph, limit: int, stages: int, target: str) -> bool:
    """Whether it does, by the compiler where the model leaves it open; by the guess where there is no compiler."""
    guessed = guess(block, stages, target=target)
    if guessed.most <= limit or guessed.least > limit:
        return guessed.nbytes <= limit
    told = allocated_bytes(block, stages, target)
    return (guessed.nbytes if told is None else told) <= limit


@cache
def allocated_bytes(block: Graph, stages: int, target: str) -> int | None:
    """Bytes that the compiler allocates for a block graph; None where there is no compiler, or no such kernel for it."""
    if find_spec("triton") is None or environ.get("TRITON_INTERPRET") == "1":
        return None
    try:
        source = emit(alone(block), schedule=Schedule(num_stages=stages))
    except UnsupportedError:
        return None
    with loaded(source) as module:
        [(name, types)] = module.SIGNATURES.items()
        return allocate(module, name, types, target)


def alone(block: Graph) -> Graph:
    """A kernel graph of a block graph and nothing else."""
    inputs = [node("input", shape=item["shape"], dtype=item["dtype"]) for item in block.inputs]
    outputs = [node("output", len(inputs) + number) for number in range(len(block.outputs))]
    return Graph((*inputs, node("block", *range(len(inputs)), graph=block), *outputs), Level.KERNEL)


__all__ = ["allocated_bytes", "alone", "does_fit", "leaner", "may_fit"]
