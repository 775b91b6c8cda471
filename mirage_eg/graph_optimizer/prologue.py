"""Running a rewritten program on NumPy arrays: the prologue once for given weights, again after one of them has changed."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np

from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.graph_optimizer.rewritten_program import RewrittenProgram
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted


class FoldedProgram:
    """A rewritten program with the folded weights of the last call.

    Each call compares a checksum of every weight that the prologue reads with that of the call before, since an array may
    change in place. `prologue_runs`: how often the prologue has run.
    """

    def __init__(self, program: Graph, rewritten: RewrittenProgram) -> None:
        self._program, self._rewritten = program, rewritten
        self._checksums: tuple[int, ...] | None = None
        self._folded: dict[str, Any] = {}
        self.prologue_runs = 0

    def __call__(self, *arrays: Any) -> Any:
        """The outputs for arrays of the given program's inputs, in its order: a tuple where it has several outputs.

        Raises GraphError: another number of arrays, or an array of another shape.
        """
        names, kinds = self._program.input_names, self._program.input_types
        if len(arrays) != len(names):
            raise GraphError(f"got {counted(len(arrays), 'array')}, wanted {len(names)}")
        for name, array, kind in zip(names, arrays, kinds, strict=True):
            if np.shape(array) != kind.shape:
                raise GraphError(f"argument {name}: got shape {np.shape(array)}, wanted {kind.shape}")
        given = dict(zip(names, map(np.asarray, arrays), strict=True))
        self._fold(given)
        outputs = _run(self._rewritten.graph, given | self._folded)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _fold(self, given: dict[str, Any]) -> None:
        prologue = self._rewritten.prologue
        if prologue is None:
            return
        checksums = tuple(crc32(given[name].tobytes()) for name in prologue.input_names)
        if checksums != self._checksums:
            self._folded = dict(zip(prologue.output_names, _run(prologue, given), strict=True))
            self._checksums = checksums
            self.prologue_runs += 1


def _run(graph: Graph, given: dict[str, Any]) -> Sequence[Any]:
    wide = graph.working_dtype
    outputs = as_kernels_compute(graph, [given[name].astype(str(wide), copy=False) for name in graph.input_names], np, wide)
    return [output.astype(kind.dtype.in_numpy, copy=False) for output, kind in zip(outputs, graph.output_types, strict=True)]
