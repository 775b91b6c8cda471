"""Kernels in clusters for a machine whose Triton compiles none: a µGraph in the schedules that tuning tries there.

The schedule of a kernel is a part of its text and options, by which a carried kernel is found. So the kernel with the default
schedule, as `best.py` has it, is none that tuning asks for.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.triton.carried_kernels import CarriedKernel
from mirage_eg.backends.triton.compile import carried_kernels
from mirage_eg.backends.triton.schedule import Schedule, per_kernel
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.tune import map_here
from mirage_eg.optimizer.tuning_space import Job, Variant, details, first, schedules
from mirage_eg.optimizer.variant_compiler import VariantCompiler


def cluster_kernels(program: Graph, graph: Graph, device: Device) -> Iterator[CarriedKernel]:
    """The kernels in clusters of a µGraph of the program, in all schedules of `tried`."""
    if any(block.cluster > 1 for block in graph.blocks):
        for variant in tried(program, graph, device):
            yield from carried_kernels(variant.source, device.target, all_kernels=False)


def tried(program: Graph, graph: Graph, device: Device) -> list[Variant]:
    """The µGraph in the schedules that tuning tries and in the default one, where it compiles."""
    compiler = VariantCompiler(program, device, map_here)

    def compiled(jobs: Iterable[Job]) -> list[Variant]:
        return [variant for variant in compiler.variants([*jobs], lambda: inf) if variant.problem is None]

    def near(variants: Iterable[Variant], change: Callable[[Variant], Iterable[Job]]) -> Iterator[Job]:
        return (job for variant in variants for job in change(variant))

    found = compiled(first(graph, 0))
    found += compiled(near(found, lambda variant: schedules(variant, None)))
    found += compiled(near(found, details))
    found += compiled([Job(graph, 0, per_kernel(Schedule(), len(graph.blocks)))])
    return [*{variant.source: variant for variant in found}.values()]
