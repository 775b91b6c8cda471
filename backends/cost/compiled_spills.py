"""The time of what compiled kernels spill, beyond the cost model's estimate: ptxas says how many bytes each thread does."""

from collections.abc import Sequence
from dataclasses import replace

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.liveness import only_multiplies
from mirage_eg.backends.cost.roofline_model import kernel_us, kernel_works
from mirage_eg.ir.graph import Graph


def spill_us(graph: Graph, spills: Sequence[int | None], device: Device) -> float:
    """Microseconds that a µGraph takes longer than predicted, if threads of its block graphs, in order, spill so many bytes.

    If the tiles fit and the loop only multiplies, threads spill the result once, after the loop, and not in each iteration.
    """
    kernels = [kernel for kernel in kernel_works(graph) if kernel.work is not None]
    us = 0.0
    for kernel, block, nbytes in zip(kernels, graph.blocks, spills, strict=False):
        if kernel.work is not None and (spilled := (nbytes or 0) * block.threads) > kernel.work.spilled:
            slower = replace(kernel, work=kernel.work._replace(spilled=spilled))
            behind = kernel.work.spilled == 0 and spilled <= kernel.work.held and only_multiplies(block)
            rounds = kernel.loop if behind else 1
            us += (kernel_us(slower, device) - kernel_us(kernel, device)) / rounds
    return us
