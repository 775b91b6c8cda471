"""The public API: `superoptimize` a program and get µGraphs that can be written as Triton files and called on arrays."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from weakref import finalize

import numpy as np

from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.runtime.array_library import ArrayLayout, Library
from mirage_eg.backends.runtime.calls import CudaGraph, call, capture
from mirage_eg.backends.runtime.library_lookup import library_of
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.ir.at_sizes import at_sizes, dims_of, named_dims
from mirage_eg.ir.builder import KernelGraph, graph_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import TensorType
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.shapes import row_major
from mirage_eg.ir.whole_inputs import index_bounds
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.optimize import Candidate, optimize
from mirage_eg.pipeline.run.option_fields import check_names
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.report.draw import to_svg
from mirage_eg.report.notebook import result_html
from mirage_eg.report.tables import compiles_text, table

if TYPE_CHECKING:
    from mirage_eg.graph_optimizer.optimize_graph import OptimizedGraph
    from mirage_eg.pipeline.buckets import Bucket, SizedResult


class MuGraph:
    """One verified µGraph of a program: graph, Triton source and record; callable on arrays."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self._input_names, self._output_names = candidate.graph.input_names, candidate.graph.output_names
        self._resources = ExitStack()  # the imported source, until the µGraph is deleted
        finalize(self, self._resources.close)
        self._runtime: RunningProgram | None = None

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

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on CuPy arrays or CUDA torch tensors by Triton, on their library's current stream; on NumPy's by the evaluator.

        `out` is where the output goes, or a sequence where the program has several; without it they are new. Gives one array,
        or a tuple where the program has several outputs. Can be captured in a CUDA graph once it has run. Where the strides of
        an output leave gaps between its rows, kernels write these, too, and the rest of the last row.

        Raises:
            GraphError: the number, library, shape, dtype, device or strides of an argument are not the program's; the message
                names it.
        """
        library = self._library(arrays)
        buffers = None if out is None else self._buffers(out, library)
        results = self._evaluate(arrays, buffers) if library is None else call(self._program(), arrays, library, buffers)
        return results[0] if len(results) == 1 else results

    def to_cuda_graph(self, *arrays: Any) -> CudaGraph:
        """The kernels in a CUDA graph: an object with static `inputs` and `outputs`, and `replay()`, which copies nothing.

        The inputs are `arrays` themselves, or new ones (of torch if it is installed, else of CuPy) on the current device.

        Raises GraphError: an argument that the program does not take; the message names it.
        """
        if not arrays:
            return capture(self._program())
        library = self._library(arrays)
        if library is None:
            raise GraphError(f"argument {self._input_names[0]}: got a NumPy array, wanted CuPy arrays or CUDA torch tensors")
        return capture(self._program(), arrays, library)

    def _library(self, arrays: Sequence[Any]) -> Library | None:
        """The array library of the arguments; None for NumPy."""
        if len(arrays) != len(self._input_names):
            raise _miscounted("arrays", arrays, self._input_names)
        return library_of(arrays, "argument", self._input_names) if arrays else None

    def _buffers(self, out: Any, library: Library | None) -> Sequence[Any]:
        """`out` as a sequence of arrays of the arguments' library."""
        buffers, names = out if isinstance(out, (tuple, list)) else (out,), self._output_names
        if len(buffers) != len(names):
            raise _miscounted("buffers in out", buffers, names)
        if library_of(buffers, "out", names) is not library:
            raise GraphError("out: got buffers of another array library than the arguments; wanted the same")
        return buffers

    def _evaluate(self, arrays: Sequence[Any], out: Sequence[Any] | None) -> tuple[Any, ...]:
        for name, array, wanted in zip(self.graph.input_names, arrays, self.graph.input_types, strict=True):
            _check_numpy(f"argument {name}", array, wanted)
        for place, bound in index_bounds(self.graph).items():
            _check_indices(f"argument {self.graph.input_names[place]}", arrays[place], bound)
        wide, rounding = self.graph.working_dtype, FloatAlgebra(np, DType.float32, rounds=True)
        inputs = [
            rounding.cast(array, wanted.dtype) if wanted.dtype.in_numpy != wanted.dtype else array.astype(str(wide), copy=False)
            for array, wanted in zip(arrays, self.graph.input_types, strict=True)
        ]
        outputs = as_kernels_compute(self.graph, inputs, np, wide)
        results = tuple(
            output.astype(wanted.dtype.in_numpy, copy=False)
            for output, wanted in zip(outputs, self.graph.output_types, strict=True)
        )
        if out is None:
            return results
        for name, target, result, wanted in zip(self.graph.output_names, out, results, self.graph.output_types, strict=True):
            _check_numpy(f"out {name}", target, wanted)
            target[...] = result
        return tuple(out)

    def _program(self) -> RunningProgram:
        if self._runtime is None:
            outputs = [
                ArrayLayout(name, type_.shape, str(type_.dtype), row_major(type_.shape))
                for name, type_ in zip(self.graph.output_names, self.graph.output_types, strict=True)
            ]
            module, shapes = self._resources.enter_context(loaded(self.source)), [kind.shape for kind in self.graph.input_types]
            self._runtime = RunningProgram(module, self.graph.input_names, outputs, shapes=shapes)
        return self._runtime

    def __repr__(self) -> str:
        it = self.candidate
        measured = "" if it.measured_us is None else f", measured {it.measured_us:.1f} µs"
        verified = "proved" if it.proved else str(it.verdict.verdict)
        about = f"{kernel_summary(it.graph)}; {_interface(it.graph)}; predicted {it.predicted_us:.1f} µs{measured}"
        return f"MuGraph({about}; {verified})"

    def __str__(self) -> str:
        return str(self.graph)

    def _repr_svg_(self) -> str:
        return to_svg(self.graph)


def _miscounted(what: str, given: Sequence[Any], names: Sequence[str]) -> GraphError:
    return GraphError(f"got {len(given)} {what}, wanted {len(names)}: {', '.join(names)}")


def _check_numpy(what: str, array: Any, wanted: TensorType) -> None:
    if array.shape != wanted.shape:
        raise GraphError(f"{what}: got shape {array.shape}, wanted {wanted.shape}")
    if str(array.dtype) != (kept := wanted.dtype.in_numpy):
        held = f" (NumPy's place for {wanted.dtype})" if kept != wanted.dtype else ""
        raise GraphError(f"{what}: got {array.dtype}, wanted {kept}{held}; convert it with .astype")


def _check_indices(what: str, indices: Any, bound: int) -> None:
    wrong = indices[(indices < 0) | (indices >= bound)]
    if wrong.size:
        raise GraphError(f"{what}: got index {wrong[0]}, wanted 0 ≤ index < {bound}")


def _interface(graph: Graph) -> str:
    """Names and types of the inputs and outputs of a graph."""
    taken, given = (
        ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
        for names, types in ((graph.input_names, graph.input_types), (graph.output_names, graph.output_types))
    )
    return f"{taken} → {given}"


class MuGraphs(Sequence[MuGraph]):
    """The µGraphs that `superoptimize` found, best first, with the `report` of the run."""

    def __init__(self, items: Sequence[MuGraph], record: RunReport) -> None:
        self._record = record
        self._items = tuple(items)

    @property
    def report(self) -> dict[str, Any]:
        """The report of the run in JSON's types, as in report.json."""
        return self._record.data()

    @overload
    def __getitem__(self, index: int) -> MuGraph: ...

    @overload
    def __getitem__(self, index: slice) -> "MuGraphs": ...

    def __getitem__(self, index: "int | slice") -> "MuGraph | MuGraphs":
        return MuGraphs(self._items[index], self._record) if isinstance(index, slice) else self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        head = f"MuGraphs of {self._record.program}: {len(self)}, best first"
        return "\n".join([head, *(f"  {rank}. {item!r}" for rank, item in enumerate(self, 1))])

    def _repr_html_(self) -> str:
        candidates = [item.candidate for item in self]
        rows = [
            (
                rank,
                kernel_summary(it.graph),
                f"{it.predicted_us:.1f}",
                "proved" if it.proved else it.verdict.verdict,
                compiles_text(it.compile.compiles),
            )
            for rank, it in enumerate(candidates, 1)
        ]
        return table(("", "what it does", "predicted µs", "verified", "compiles"), rows) + result_html(self._record)


MOST_SIZES = 64  # whose µGraphs, and memory on a GPU, are kept


class SizedMuGraph:
    """The µGraphs of a program with named dims, one for each bucket of sizes; callable on arrays of any of these sizes."""

    def __init__(self, result: "SizedResult") -> None:
        self._result = result
        self._graphs: dict[tuple[int, ...], MuGraph] = {}
        self._places = {dim.name: (place, at) for place, at, dim in reversed(named_dims(result.program))}

    @property
    def program(self) -> Graph:
        """The program, at sizes that stand for all others."""
        return self._result.program

    @property
    def buckets(self) -> "tuple[Bucket, ...]":
        """The buckets in the order of their sizes."""
        return self._result.buckets

    @property
    def valid_for(self) -> dict[str, tuple[int, int]]:
        """The smallest and the largest size of each named dim."""
        return {name: (dim.min, dim.max) for name, dim in self._result.dims.items()}

    @property
    def report(self) -> dict[str, Any]:
        """The report of the one search in JSON's types."""
        return self._result.report.data()

    def bucket(self, **sizes: int) -> "Bucket":
        """The bucket of these sizes.

        Raises:
            OptionError: a size is missing, or its name is unknown.
            GraphError: a size outside the range of its dim.
        """
        dims = self._result.dims
        if set(sizes) != set(dims):
            raise OptionError(f"sizes: got {', '.join(sizes) or 'none'}, wanted {', '.join(dims)}")
        for name, size in sizes.items():
            dims[name].check(size)
        return next(bucket for bucket in self.buckets if bucket.holds(sizes))

    def at(self, **sizes: int) -> MuGraph:
        """The µGraph at these sizes, with the kernels of their bucket; no search, no new text.

        Raises:
            OptionError: a size is missing, or its name is unknown.
            GraphError: a size outside the range of its dim.
        """
        bucket = self.bucket(**sizes)
        key = tuple(sizes[name] for name in self._result.dims)
        if key not in self._graphs:
            entry = bucket.candidate
            graph = at_sizes(entry.graph, sizes)
            us = predict_us(graph, self._result.device)
            if len(self._graphs) == MOST_SIZES:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = MuGraph(replace(entry, graph=graph, predicted_us=us))
        return self._graphs[key]

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run the µGraph of the arrays' sizes; see `MuGraph.__call__`.

        Raises GraphError: an argument that is not the program's; the message names it.
        """
        names = self.program.input_names
        if len(arrays) != len(names):
            raise _miscounted("arrays", arrays, names)
        sizes = {}
        for dim, (place, position) in self._places.items():
            shape = getattr(arrays[place], "shape", None)
            if shape is None or len(shape) != len(self.program.inputs[place]["shape"]):
                wanted = len(self.program.inputs[place]["shape"])
                got = "no array" if shape is None else f"shape {tuple(shape)}"
                raise GraphError(f"argument {names[place]}: got {got}, wanted an array of {wanted} dims")
            sizes[dim] = int(shape[position])
        return self.at(**{name: sizes[name] for name in self._result.dims})(*arrays, out=out)

    def generate_triton_programs(self, folder: str | Path) -> list[Path]:
        """Write the Triton source of each bucket into a folder, named after its sizes: n_17-32.py."""
        paths = [Path(folder) / f"{bucket.name}.py" for bucket in self.buckets]
        for path, bucket in zip(paths, self.buckets, strict=True):
            write_atomically(path, bucket.candidate.source)
        return paths

    def __repr__(self) -> str:
        lines = [f"SizedMuGraph for {', '.join(dim.declaration for dim in self._result.dims.values())}"]
        lines += [f"  {bucket.line}" for bucket in self.buckets]
        return "\n".join(lines)


@overload
def superoptimize(graph: KernelGraph | Graph, *, sizes: None = None, **options: Any) -> MuGraphs: ...


@overload
def superoptimize(graph: KernelGraph | Graph, *, sizes: Sequence[Mapping[str, int]], **options: Any) -> SizedMuGraph: ...


def superoptimize(
    graph: KernelGraph | Graph,
    *,
    sizes: Sequence[Mapping[str, int]] | None = None,
    config: str | None = None,
    name: str = "program",
    verbose: bool = False,
    **options: Any,
) -> MuGraphs | SizedMuGraph:
    """Search for µGraphs that compute `graph`, verify and compile them; best first.

    A program with named dims (`Dim`) is searched once, and gets kernels for each bucket of sizes: `sizes` are the largest of
    buckets, as [{"n": 16}, {"n": 128}]; an empty list takes 16, 32, 64, 128 and 256. The last bucket ends at the `max` of its
    dim. The result is a `SizedMuGraph`.

    `config`, a preset of mirage-project/mirage, is ignored: the search needs no preset. Further options are those of
    `mirage_eg.pipeline.run.options.Options`; `griddims`, `blockdims`, `imaps`, `omaps`, `fmaps`, `franges` restrict the block
    graphs, and of `blockdims` the number of threads counts. With `verbose`, each step is logged by the logger `mirage_eg`.

    Raises:
        OptionError: an option that does not exist or a value that is not offered.
        GraphError: a program that breaks a rule of its ops.
    """
    check_names("options", options, Options)
    chosen = Options(**options)
    program = graph_of(graph, "superoptimize")
    if not isinstance(name, str):
        raise OptionError(f"name: got {name!r}, wanted a text")
    observer = _log if verbose else None
    if sizes is None:
        if dims := dims_of(program):
            listed = ", ".join(dim.declaration for dim in dims.values())
            raise OptionError(
                f"sizes: got none for a program with the dims {listed}; wanted [] or such as [{{{min(dims)!r}: 16}}]"
            )
    else:
        from mirage_eg.pipeline.buckets import optimize_sizes  # loads egglog and Triton

        return SizedMuGraph(optimize_sizes(name, program, chosen, sizes, observer))
    result = optimize(name, program, chosen, observer)
    return MuGraphs([*map(MuGraph, result.candidates)], result.report)


def optimize_graph(
    graph: KernelGraph | Graph,
    *,
    weights: Sequence[str] | None = None,
    gpu: str | None = None,
    seconds: float = 10.0,
    name: str = "program",
    rules: Sequence[str] = (),
    verbose: bool = False,
) -> "OptimizedGraph":
    """Rewrite a whole program by graph substitutions, chosen together with kernel boundaries; verified.

    The result has the `graph` that runs each time, the `prologue` with the parts of weights alone, the `report`, and
    `runner()` for NumPy arrays; `superoptimize(result.graph)` searches its kernels. `weights`: names of inputs that stay the
    same from run to run, as ["w*"]; without it they are inputs that the program reads as weights alone. `gpu` is a name or a
    file of `mirage-eg bench cost`. `seconds` limits each extraction. `rules`: files of laws of whole
    tensors besides the packaged ones, as `mirage-eg rules synthesize --domain tensor` writes them.

    Raises:
        OptionError: weights that no input has, an unknown GPU, a program with named dims.
        RuleError: a rule file is not readable, or has a false law.
    """
    program = graph_of(graph, "optimize_graph")
    from mirage_eg.graph_optimizer.optimize_graph import optimize_graph as run  # loads egglog

    device = Options(gpu=gpu).device_record
    observe, files = _log if verbose else None, tuple(map(str, rules))
    return run(program, device, weights, seconds, name=name, observe=observe, rules=files)


_LOGGER = logging.getLogger("mirage_eg")


def _log(stage: str, done: int, total: int | None, text: str) -> None:
    _LOGGER.info("%s: %s of %s %s", stage, done, "?" if total is None else total, text)


class Program(KernelGraph):
    """A tensor program being written, with its optimizer as a method."""

    def superoptimize(self, **options: Any) -> Any:
        """`mirage_eg.superoptimize` of this program: `MuGraphs`, or a `SizedMuGraph` where `sizes` are given."""
        return superoptimize(self, **options)

    def __repr__(self) -> str:
        used = {operand for item in self.nodes for operand in item.operands}
        if not used and not self._outputs:
            return f"Program({counted(len(self.nodes), 'input')}, no ops yet)"
        return f"Program({_interface(self.graph())}; {counted(len(self.nodes) - len(self.graph().inputs), 'op')})"

    def _repr_svg_(self) -> str:
        return to_svg(self.graph())


def new_kernel_graph() -> Program:
    """Start a tensor program."""
    return Program()
