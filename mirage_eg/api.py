"""The public API: `superoptimize` a program and get µGraphs that can be written as Triton files and called on arrays."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, overload

import numpy as np

from mirage_eg.backends.compile import loaded
from mirage_eg.backends.evaluate import evaluate
from mirage_eg.backends.floats import FloatAlgebra
from mirage_eg.files import write_atomically
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.options import Options
from mirage_eg.pipeline import Candidate, optimize


class MuGraph:
    """One verified µGraph of a program: its graph, its Triton source, what is known of it; callable on arrays."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self._resources = ExitStack()  # the imported source, until the µGraph is gone
        self._module: ModuleType | None = None

    @property
    def graph(self) -> Graph:
        """The kernel graph with its block graphs."""
        return self.candidate.graph

    @property
    def source(self) -> str:
        """A standalone Python file with the Triton kernels."""
        return self.candidate.source

    def generate_triton_program(self, path: str | Path) -> Path:
        """Write the Triton source to `path`."""
        target = Path(path)
        write_atomically(target, self.source)
        return target

    def __call__(self, *arrays: Any) -> Any:
        """Run on NumPy arrays by the evaluator, as the kernels compute, or on CUDA torch tensors by Triton.

        Gives one array, or a tuple where the program has several outputs.

        Raises:
            GraphError: the number, shape or dtype of an argument is not the program's; the message names it.
        """
        names = self.graph.input_names
        if len(arrays) != len(names):
            raise GraphError(f"got {len(arrays)} arrays, wanted {len(names)}: {', '.join(names)}")
        for name, array, wanted in zip(names, arrays, self.graph.input_types, strict=True):
            if tuple(array.shape) != wanted.shape:
                raise GraphError(f"argument {name}: got shape {tuple(array.shape)}, wanted {wanted.shape}")
        if all(isinstance(array, np.ndarray) for array in arrays):
            results = tuple(self._evaluate(arrays))
        else:
            outputs = self._load().run(*arrays)
            results = outputs if isinstance(outputs, tuple) else (outputs,)
        return results[0] if len(results) == 1 else results

    def _evaluate(self, arrays: Sequence[Any]) -> Iterator[Any]:
        algebra = FloatAlgebra(np, DType.float32, rounds=True)
        outputs = evaluate(self.graph, [array.astype(np.float32) for array in arrays], algebra)
        for output, wanted in zip(outputs, self.graph.output_types, strict=True):
            # NumPy has no bfloat16: such an output stays in float32, rounded.
            yield output if wanted.dtype is DType.bfloat16 else output.astype(str(wanted.dtype))

    def _load(self) -> ModuleType:
        if self._module is None:
            self._module = self._resources.enter_context(loaded(self.source))
        return self._module

    def __str__(self) -> str:
        return str(self.graph)


class MuGraphs(Sequence[MuGraph]):
    """The µGraphs that `superoptimize` found, best first, with the `report` of the run."""

    def __init__(self, candidates: Sequence[Candidate], report: dict[str, Any]) -> None:
        self.report = report
        self._items = tuple(map(MuGraph, candidates))

    @overload
    def __getitem__(self, index: int) -> MuGraph: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[MuGraph, ...]: ...

    def __getitem__(self, index: int | slice) -> MuGraph | tuple[MuGraph, ...]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


def superoptimize(
    graph: KernelGraph | Graph,
    *,
    griddims: Sequence[Sequence[int]] | None = None,
    blockdims: Sequence[Sequence[int]] | None = None,
    imaps: Sequence[Sequence[int]] | None = None,
    omaps: Sequence[Sequence[int]] | None = None,
    fmaps: Sequence[int] | None = None,
    franges: Sequence[int] | None = None,
    config: str | None = None,
    name: str = "program",
    verbose: bool = False,
    **options: Any,
) -> MuGraphs:
    """Search for µGraphs that compute `graph`, verify and compile them; best first.

    `griddims`, `blockdims`, `imaps`, `omaps`, `fmaps`, `franges` restrict the block graphs; of `blockdims` the number of
    threads counts. `config` is accepted as mirage-project/mirage has it, and restricts nothing. Further options are those of
    `mirage_eg.options.Options`. With `verbose`, each step is logged by the logger `mirage_eg`.

    Raises:
        OptionError: an option that does not exist or a value that is not offered.
        GraphError: a program that breaks a rule of its ops.
    """
    unknown = set(options) - {field.name for field in fields(Options)}
    if unknown:
        raise OptionError(
            f"got unknown option {min(unknown)!r}, wanted one of {', '.join(field.name for field in fields(Options))}"
        )
    restrictions = {
        "griddims": _maps(griddims),
        "blockdims": _maps(blockdims),
        "imaps": _maps(imaps),
        "omaps": _maps(omaps),
        "fmaps": None if fmaps is None else tuple(fmaps),
        "franges": None if franges is None else tuple(franges),
    }
    chosen = Options(config=config, **restrictions, **options)  # type: ignore[arg-type]
    program = graph.graph() if isinstance(graph, KernelGraph) else graph
    result = optimize(name, program, chosen, _log if verbose else None)
    return MuGraphs(result.candidates, result.report)


_LOGGER = logging.getLogger("mirage_eg")


def _log(stage: str, done: int, total: int | None, text: str) -> None:
    _LOGGER.info("%s: %s of %s %s", stage, done, "?" if total is None else total, text)


def _maps(maps: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    return None if maps is None else tuple(tuple(entry) for entry in maps)


class Program(KernelGraph):
    """A tensor program being written, with its optimizer at hand."""

    def superoptimize(self, **options: Any) -> MuGraphs:
        """`mirage_eg.superoptimize` of this program."""
        return superoptimize(self, **options)


def new_kernel_graph() -> Program:
    """Start a tensor program."""
    return Program()


__all__ = ["MuGraph", "MuGraphs", "Program", "new_kernel_graph", "superoptimize"]
