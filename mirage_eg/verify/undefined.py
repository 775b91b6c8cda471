"""Is a µGraph undefined wherever its program is? Tested in float64 on numbers of both signs, zeros, and numbers that are none.

An element that is not finite in the program, since an operation is undefined in the reals or an input is not finite, must not
be finite in the µGraph. Exponentials cannot leave their range here.
"""

from collections.abc import Sequence

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.whole_inputs import whole_inputs
from mirage_eg.verify.restriction import restricted

_SPECIAL = (0.0, np.nan, np.inf, -np.inf)
_SHARE = 1 / 16  # of the entries of an input


def given_values(whole: Graph, whole_candidate: Graph, seed: int) -> str | None:
    """The first element that is finite in the candidate alone, as text; None if there is none on these inputs."""
    small = restricted(expand(whole), whole_candidate)
    program, candidate = (whole, whole_candidate) if small is None else (small.program, small.graph)
    bounds = whole_inputs(program)
    for trial, special in enumerate(_SPECIAL):
        generator = np.random.default_rng((seed, trial))
        inputs: list[Array] = []
        for place, kind in enumerate(program.input_types):
            if place in bounds:
                inputs.append(np.asarray(generator.integers(bounds[place], size=kind.shape), np.float64))
                continue
            numbers = 2 * generator.standard_normal(kind.shape)
            inputs.append(np.where(generator.random(kind.shape) < _SHARE, special, numbers))
        wanted, got = _outputs(expand(program), inputs), _outputs(candidate, inputs)
        for output, (want, have) in enumerate(zip(wanted, got, strict=True)):
            places = np.argwhere(~np.isfinite(want) & np.isfinite(have))
            if len(places):
                at = tuple(map(int, places[0]))
                element = at if small is None else small.index(output, at)
                return f"output {output} at {list(element)}: {have[at]:.6g}, where the program gives {want[at]:.6g}"
    return None


def _outputs(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    algebra = ShiftedFloats(FloatAlgebra())
    return [algebra.number(x) for x in evaluate(graph, inputs, algebra)]
