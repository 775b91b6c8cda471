"""Programs and µGraphs out: an ONNX model with a model-local function for each kernel, which any runtime of ONNX runs.

ONNX cannot hold Triton. The body of a function says in plain ONNX what the kernel computes, and equal kernels share one
function. Views are nodes between the functions.

Results that are indicators, such as comparisons joined by `and`, have the type BOOL in ONNX; the IR has them as zeros and ones
of any element type. A value is an indicator if the few numbers that it can have, followed from comparisons on, are 0 and 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from itertools import groupby, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.mpmath_ops import RATIONAL
from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.frontend.exponential_groups import FunctionValues, exponential_groups
from mirage_eg.frontend.onnx_bodies import WRITERS, OnnxBody, OnnxValue, onnx_type, write_node
from mirage_eg.frontend.onnx_exponentials import ShiftedBody, Value
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ProgramError, UnsupportedError
from mirage_eg.ir.expand import expand_ops
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, TensorType, is_op
from mirage_eg.ir.op.elementwise import CASTS, COMPARISONS, QUOTIENTS
from mirage_eg.ir.ops import Kind

OPSET = 18
IR_VERSION = 8  # the first with functions; older runtimes read it
DOMAIN = "mirage_eg"
LARGEST_MESSAGE = 2**31 - 2**20  # bytes of initializers in the file itself: a message of protobuf has less than 2 GiB
_LONGEST = 40  # letters of the ops in a function's name


def export_graph(
    graph: Graph,
    kernels: Sequence[FunctionValues] = (),
    prologue: Graph | None = None,
    inputs: Sequence[tuple[str, TensorType]] = (),
    arrays: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """The onnx.ModelProto of a kernel graph; nodes outside `kernels` are functions of their own, or views.

    `prologue` computes inputs of `graph`, by name: it becomes a function, or is run where all its inputs are in `arrays`. The
    arrays become initializers. `inputs` gives names and types of the model's inputs in order, where they are not those of the
    graph; those in `arrays` are left out.

    Raises ProgramError: onnx is not installed, an array that no input takes or of another shape, an op without a form in ONNX.
    """
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ProgramError("onnx is not installed; try: pip install 'mirage-eg[onnx]'") from None
    declared = list(inputs) or list(zip(graph.input_names, graph.input_types, strict=True))
    try:
        return _Model(graph, declared).built(kernels or exponential_groups(graph), prologue, arrays)
    except UnsupportedError as error:
        raise ProgramError(f"ONNX: {error}") from None


@dataclass(slots=True)
class _Model:
    """A model that is being written; `names` has the name of each value of the graph that has one."""

    graph: Graph
    declared: Sequence[tuple[str, TensorType]]
    body: OnnxBody = field(default_factory=lambda: OnnxBody(prefix="value_"))
    functions: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def built(self, kernels: Sequence[FunctionValues], prologue: Graph | None, arrays: Mapping[str, Any]) -> Any:
        from onnx import helper

        given = self._initializers(arrays)
        self.body.prefix = self._free_prefix()
        if prologue is not None:
            self._run_prologue(prologue, given)
        self.names = dict(zip(self.graph.input_values, self.graph.input_names, strict=True))
        self._name_outputs()
        self._append_kernels(kernels)
        outputs = self._outputs()
        return helper.make_model(
            helper.make_graph(
                self.body.nodes,
                "program",
                [_declaration(name, kind) for name, kind in self.declared if name not in given],
                outputs,
                [_initializer(name, array) for name, array in given.items()],
                value_info=[_declaration(self.names[value], self.graph.types[value]) for value in self._inner()],
            ),
            functions=list(self.functions.values()),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)],
            ir_version=IR_VERSION,
            producer_name="mirage_eg",
        )

    def _initializers(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        kinds = dict(self.declared)
        given = {}
        for name, array in arrays.items():
            if name not in kinds:
                raise ProgramError(f"ONNX: got an array for {name!r}, wanted one of {', '.join(kinds)}")
            if np.shape(array) != kinds[name].shape:
                raise ProgramError(f"ONNX: got an array of shape {np.shape(array)} for {name}, wanted {kinds[name].shape}")
            given[name] = _stored(np.asarray(array), kinds[name].dtype)
        return given

    def _free_prefix(self) -> str:
        """A beginning of names that no input and no output has."""
        taken = [*dict(self.declared), *self.graph.input_names, *self.graph.output_names]
        prefix = self.body.prefix
        while any(name.startswith(prefix) for name in taken):
            prefix = f"_{prefix}"
        return prefix

    def _run_prologue(self, prologue: Graph, given: dict[str, Any]) -> None:
        """Replace weights by what the prologue computes of them, or append it as a function."""
        if not given.keys() >= set(prologue.input_names):
            everything = frozenset(range(len(prologue.types))).difference(prologue.input_values)
            results = tuple(item.operands[0] for item in prologue.outputs)
            kernel, names = (
                FunctionValues(everything, results),
                dict(zip(prologue.input_values, prologue.input_names, strict=True)),
            )
            read = [names[value] for value in _read(prologue, kernel)]
            self._call(prologue, kernel, read, prologue.output_names, "prologue")
            return
        wide = prologue.working_dtype
        arrays = [given[name].astype(str(wide)) for name in prologue.input_names]
        folded = as_kernels_compute(prologue, arrays, np, wide)
        for name, array, kind in zip(prologue.output_names, folded, prologue.output_types, strict=True):
            given[name] = _stored(array, kind.dtype)
        for name in set(prologue.input_names) - set(self.graph.input_names):
            del given[name]
            self.declared = [pair for pair in self.declared if pair[0] != name]

    def _name_outputs(self) -> None:
        bools = returned_indicators(self.graph)
        for item, name, is_bool in zip(self.graph.outputs, self.graph.output_names, bools, strict=True):
            if not is_bool or self.graph.types[item.operands[0]].dtype is DType.bool:
                self.names.setdefault(item.operands[0], name)

    def _append_kernels(self, kernels: Sequence[FunctionValues]) -> None:
        """Functions and views that outputs need, in the order of the graph."""
        by_result = {value: kernel for kernel in kernels for value in kernel.results}
        for item, values in self.graph.numbered():
            if is_op(item) and not by_result.keys() & set(values) and len(values):
                own = FunctionValues(frozenset(values), tuple(values))
                by_result |= dict.fromkeys(values, own)
        read = {kernel: _read(self.graph, kernel) for kernel in by_result.values()}
        needed = {item.operands[0] for item in self.graph.outputs}
        for item, values in reversed(self.graph.numbered()):
            if not needed.isdisjoint(values) and item.op not in ("input", "output"):
                needed.update(read[by_result[values[0]]] if values[0] in by_result else item.operands)
        done: set[FunctionValues] = set()
        for item, values in self.graph.numbered():
            if item.op in ("input", "output") or needed.isdisjoint(values):
                continue
            kernel = by_result.get(values[0])
            if kernel is None:
                operands = [OnnxValue(self._name(value), self.graph.types[value]) for value in item.operands]
                self._append_view(item, operands, values[0])
            elif kernel not in done:
                done.add(kernel)
                self._call(self.graph, kernel, map(self._name, read[kernel]), [*map(self._name, kernel.results)])

    def _append_view(self, item: Node, operands: Sequence[OnnxValue], value: int) -> None:
        name = write_node(self.body, item, operands, self.graph.types[value])
        if value in self.names:  # an output
            self.body.nodes[-1].output[0] = self.names[value]
        else:
            self.names[value] = name

    def _name(self, value: int) -> str:
        if value not in self.names:
            self.names[value] = self.body.name()
        return self.names[value]

    def _call(
        self, graph: Graph, kernel: FunctionValues, inputs: Iterable[str], results: Sequence[str], name: str | None = None
    ) -> None:
        function = _function(graph, kernel, name)
        self.functions.setdefault(function.name, function)
        self.body.append(function.name, *inputs, results=results, domain=DOMAIN)

    def _outputs(self) -> list[Any]:
        declarations = []
        bools = returned_indicators(self.graph)
        for item, name, is_bool in zip(self.graph.outputs, self.graph.output_names, bools, strict=True):
            [value] = item.operands
            kind = self.graph.types[value]
            if is_bool and kind.dtype is not DType.bool:
                kind = TensorType(kind.shape, DType.bool)
                self.body.append("Cast", self.names[value], results=[name], to=onnx_type(DType.bool))
            elif self.names[value] != name:  # an input, or an output twice
                self.body.append("Identity", self.names[value], results=[name])
            declarations.append(_declaration(name, kind))
        return declarations

    def _inner(self) -> Iterator[int]:
        """The values of the model's graph that are neither inputs nor outputs."""
        ends = {*self.graph.input_values, *(item.operands[0] for item in self.graph.outputs)}
        return (value for value in self.names if value not in ends)


def _read(graph: Graph, kernel: FunctionValues) -> tuple[int, ...]:
    """The values that a kernel reads, in the order of their first use."""
    own = (item for item, values in graph.numbered() if not kernel.inside.isdisjoint(values))
    return tuple(dict.fromkeys(operand for item in own for operand in item.operands if operand not in kernel.inside))


def _part(graph: Graph, kernel: FunctionValues) -> Graph:
    """The nodes of a kernel as a graph of its own, in ops that ONNX has."""
    copy = GraphCopy(graph)
    for value in _read(graph, kernel):
        copy.read(value)
    for item, values in graph.numbered():
        if not kernel.inside.isdisjoint(values):
            copy.copy(item, values)
    for value in kernel.results:
        copy.write(value)
    part = copy.graph()
    if any(item.kind is Kind.GRAPH for item in part.nodes):
        return flatten(part)
    derived = {item.op for item in part.nodes if item.kind is Kind.DERIVED} - WRITERS.keys()
    return expand_ops(part, derived)


def _function(graph: Graph, kernel: FunctionValues, name: str | None) -> Any:
    """A kernel as a function, named after its ops and a hash of its body."""
    from onnx import helper

    part = _part(graph, kernel)
    # float64 for exponentials, whose logarithms a body adds
    body = OnnxBody(DType.float64 if any(item.op == "exp" for item in part.nodes) else part.working_dtype)
    shifted = ShiftedBody(body)
    values: dict[int, Value] = {}
    inputs = [f"x{place}" for place in range(len(part.inputs))]
    for value, given in zip(part.input_values, inputs, strict=True):
        kind = part.types[value]
        values[value] = OnnxValue(body.loaded(given, kind.dtype), kind, computed=False)
    for item, results in part.numbered():
        if item.op not in ("input", "output"):
            operands = [values[operand] for operand in item.operands]
            kind = part.types[results[0]]
            values[results[0]] = shifted.value(item, operands, kind)
    outputs = [f"y{place}" for place in range(len(part.outputs))]
    for item, output in zip(part.outputs, outputs, strict=True):
        body.stored(shifted.number(values[item.operands[0]]).name, part.types[item.operands[0]].dtype, output)
    ops = [item.op for item, results in graph.numbered() if not kernel.inside.isdisjoint(results)]
    code = sha256(b"".join(it.SerializeToString(deterministic=True) for it in body.nodes)).hexdigest()[:8]
    words = "_".join(op for op, _ in groupby(ops))
    title = name or (words if len(words) <= _LONGEST else words[:_LONGEST].rpartition("_")[0])
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_function(DOMAIN, f"{title}_{code}", inputs, outputs, body.nodes, opsets, doc_string=" ".join(ops))


def _stored(array: Any, dtype: DType) -> Any:
    if dtype is DType.bfloat16:
        from ml_dtypes import bfloat16

        return array.astype(bfloat16)
    return array.astype(str(dtype), copy=False)


def _initializer(name: str, array: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def _declaration(name: str, kind: TensorType) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, onnx_type(kind.dtype), kind.shape)


def save(model: Any, path: Path) -> None:
    """Write a model; initializers of 2 GiB and more go to a second file, named as it is with `.data` at the end.

    Raises ProgramError: the file cannot be written.
    """
    import onnx

    large = sum(len(it.raw_data) for it in model.graph.initializer) > LARGEST_MESSAGE
    unfinished = path.with_name(f".{path.name}.unfinished")
    data = f"{path.name}.data"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / data).unlink(missing_ok=True)  # onnx appends to it
        onnx.save(model, unfinished, save_as_external_data=large, location=data)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ProgramError(f"{path}: cannot be written: {error.strerror or error}") from None


__all__ = ["FunctionValues", "export_graph", "save"]


Numbers = frozenset[Fraction]
_BOTH: Numbers = frozenset({Fraction(0), Fraction(1)})
_MOST = 8  # numbers that are followed


def returned_indicators(graph: Graph) -> tuple[bool, ...]:
    """For each result of a kernel graph whether it is an indicator."""
    flat = flatten(graph) if any(item.kind is Kind.GRAPH for item in graph.nodes) else graph
    found: dict[int, Numbers] = {}
    for item, values in flat.numbered():
        operands = [found.get(operand) for operand in item.operands]
        for value in values:
            numbers = _BOTH if flat.types[value].dtype is DType.bool else _numbers(item, operands)
            if numbers is not None and len(numbers) <= _MOST:
                found[value] = numbers
    return tuple(found.get(item.operands[0], frozenset({Fraction(2)})) <= _BOTH for item in flat.outputs)


def _numbers(item: Node, operands: list[Numbers | None]) -> Numbers | None:
    """The numbers that an op's result can have, None if these are many."""
    if item.op in COMPARISONS:
        return _BOTH
    given = [it for it in operands if it is not None]
    if len(given) < len(operands) or not given or item.kind is Kind.BOUNDARY:
        return None
    if item.kind is Kind.REARRANGEMENT or (item.op in CASTS and min(given[0]) >= 0):
        return frozenset().union(*given)
    if item.op == "where":
        return given[1] | given[2]
    if item.op not in RATIONAL or item.op in QUOTIENTS:
        return None
    return frozenset(RATIONAL[item.op](*numbers, **item.mapping) for numbers in product(*given))
