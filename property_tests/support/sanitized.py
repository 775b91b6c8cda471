"""A small instance of each structure of the workloads' smallest plans, run on the GPU: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck python -m property_tests.support.sanitized [WORKLOAD…]

Prints a line a workload; a wrong result is an AssertionError.
"""

import sys
from itertools import chain, islice

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.runtime.calls import call
from mirage_eg.backends.runtime.library_lookup import cupy_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import STANDARD, WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.expand import expand
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts
from property_tests.support.fake_driver import layouts
from property_tests.support.hand_written import inputs_of, worst

PLANS = 3  # of one kernel, and as many of two
SCHEDULES = (Schedule(), Schedule(swapped=True, exp2=True), Schedule(use_reciprocal=True, hoist_loads=True))
TOLERANCE = 2e-2


def run(name: str) -> int:
    """Run the workload's plans; gives how many programs were right."""
    import cupy

    primitive = drop_shifts(simplify(expand(WORKLOADS[name](1))).after)
    axes = infer_axes(primitive)
    found = search(primitive, axes, load_rules("indexed"), SearchLimits())
    ran = 0
    for plan in chain(islice(found.structures, PLANS), islice(found.split_reductions, PLANS)):
        small, candidate = small_instance(plan, primitive, axes)
        arrays = inputs_of(small)
        wanted = evaluate(small, arrays, FloatAlgebra())
        for schedule in SCHEDULES:
            with loaded(emit(candidate, schedule=schedule)) as module:
                program = RunningProgram(module, candidate.input_names, layouts(candidate.output_names, candidate.output_types))
                given = [
                    cupy.asarray(array, dtype=layout.dtype) for array, layout in zip(arrays, program.plan.inputs, strict=True)
                ]
                results = call(program, given, cupy_library())
                error = worst([result.get().astype(np.float64) for result in results], wanted)
            assert error < TOLERANCE, f"{name}: {error}\n{candidate}"
            ran += 1
    return ran


if __name__ == "__main__":
    for asked in sys.argv[1:] or STANDARD:
        print(f"{asked}: {run(asked)} programs are right", flush=True)
