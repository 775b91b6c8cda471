"""The PROGRAM argument of the command line: a workload's name, a graph in JSON, a Python file with `program()`, or a model."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from mirage_eg.frontend.imported import Imported, ImportedSegment, InputKind, OnnxNames
from mirage_eg.frontend.long_rows import LONG_ROWS
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import MirageError, ProgramError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import node
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.ir.ops import Level
from mirage_eg.ir.pair import LawPair
from mirage_eg.ir.plurals import counted

Result = TypeVar("Result")

LARGEST_FILE = 2**22  # bytes of Python
BUILT_IN = MappingProxyType({**WORKLOADS, **LONG_ROWS, **PREFILL})
"""All programs that have a name."""


def load_program(argument: str, batch: int = 1) -> tuple[str, Graph]:
    """A short name, fit for a folder, and the program; `batch` goes to a workload or to `program(batch)`.

    Raises:
        ProgramError: no such workload or file, a file that does not import or does not define a fitting `program()`.
        GraphError: a JSON file that holds no legal graph.
    """
    return load_with_weights(argument, batch)[:2]


def load_with_weights(argument: str, batch: int = 1) -> tuple[str, Graph, Mapping[str, Any]]:
    """`load_program`, and of a model the arrays of the inputs that are weights or constants, by name.

    The inputs and outputs of an ONNX model's program have the names that the model gives them.

    Raises ProgramError, GraphError: as `load_program`.
    """
    path = Path(argument)
    if argument not in BUILT_IN and path.suffix in (".onnx", ".pt2"):
        if batch != 1:
            raise ProgramError(f"{path}: a model has fixed sizes; got --batch {batch}, wanted none")
        return _name(path), *_whole_model(path, import_file(path))
    return *_without_weights(argument, path, batch), {}


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A program of a model, with the arrays of its fixed inputs, weights or constants; `name` is empty for the whole model."""

    name: str
    program: Graph
    arrays: Mapping[str, Any]


def load_parts(argument: str, batch: int = 1) -> tuple[str, tuple[ModelPart, ...]]:
    """`load_with_weights`; of a model with nodes that stay with torch, its programs in an order in which they run.

    Raises ProgramError, GraphError: as `load_program`.
    """
    path = Path(argument)
    if argument in BUILT_IN or path.suffix not in (".onnx", ".pt2") or batch != 1:
        name, program, arrays = load_with_weights(argument, batch)
        return name, (ModelPart("", program, arrays),)
    found = import_file(path)
    if not found.segments or (not found.outside and len(found.segments) == 1):
        return _name(path), (ModelPart("", *_whole_model(path, found)),)
    parts = (
        ModelPart(f"part{number}", segment.program, {name: found.array(name) for name in _fixed(segment)})
        for number, segment in enumerate(found.segments)
    )
    return _name(path), tuple(parts)


def _fixed(segment: ImportedSegment) -> tuple[str, ...]:
    """The inputs of a program that are weights or constants."""
    return *segment.inputs_of(InputKind.PARAMETER), *segment.inputs_of(InputKind.CONSTANT)


def _without_weights(argument: str, path: Path, batch: int) -> tuple[str, Graph]:
    if argument in BUILT_IN:
        return argument, BUILT_IN[argument](batch)
    match path.suffix:
        case ".json":
            graph = serialize.load(path)
            if batch != 1:
                raise ProgramError(f"{path}: a JSON graph has a fixed batch; got --batch {batch}, wanted none")
            return _name(path), graph
        case ".py":
            return _name(path), _from_python(path, batch)
        case _ if os.path.exists(path):  # Path.exists raises where the name is too long
            raise ProgramError(
                f"{path}: wanted a workload ({', '.join(BUILT_IN)}), a .json graph, a .py file or a .onnx or .pt2 model"
            )
        case _:
            near = get_close_matches(argument, BUILT_IN, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "a path ends in .py, .json, .onnx or .pt2"
            raise ProgramError(f"no program {argument[:80]!r}: the workloads are {', '.join(BUILT_IN)}; {hint}")


def _name(path: Path) -> str:
    return re.sub(r"[^\w.-]", "_", path.stem).lstrip(".") or "program"


def register_ops(path: Path) -> tuple[str, ...]:
    """Run a Python file that registers ops (`register_op`); their names.

    Raises ProgramError: a file that is not readable, does not import, or registers no op.
    """
    before = set(REGISTRY)
    _executed(path, lambda module: None)
    names = tuple(name for name in REGISTRY if name not in before)
    if not names:
        raise ProgramError(f"{path}: got a file that registers no new op, wanted mi.register_op(…) in it")
    return names


def load_pairs(path: Path) -> tuple[LawPair, ...]:
    """The pairs of a Python file: its `PAIRS`.

    Raises ProgramError: a file that is not readable, does not import, or whose `PAIRS` are none.
    """
    found = _executed(path, lambda module: vars(module).get("PAIRS"))
    if not isinstance(found, Sequence) or not found or not all(isinstance(it, LawPair) for it in found):
        raise ProgramError(f"{path}: got PAIRS {_kind(found)}, wanted a list of mi.LawPair(…)")
    return tuple(_located(path, pair) for pair in found)


def _located(path: Path, pair: LawPair) -> LawPair:
    """A pair whose functions name the line of the file at which they fail; an illegal program stays one."""

    def called(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            try:
                return function(*given, **named)
            except MirageError:
                raise
            except (Exception, SystemExit) as error:
                raise _failure(path, error, f"{what} fails") from error

        return call

    functions = {name: getattr(pair, name) for name in ("inputs", "program", "candidate", "twin")}
    located: dict[str, Any] = {name: called(name, it) for name, it in functions.items() if it is not None}
    return replace(pair, **located)


def _from_python(path: Path, batch: int) -> Graph:
    def program(module: ModuleType) -> Graph:
        return _as_graph(path, _run(path, _call(path, vars(module).get("program"), batch), "program() fails"))

    return _executed(path, program)


def _executed(path: Path, then: Callable[[ModuleType], Result]) -> Result:
    """Run a file of the user as a module, and a function of it while its neighbours can be imported."""
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(source) > LARGEST_FILE:
        raise ProgramError(f"{path}: got more than {LARGEST_FILE >> 20} MiB, wanted a smaller Python file")
    # No import uses the module's name; dataclasses and pickle look it up in sys.modules.
    module = ModuleType("mirage_eg_user_program")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    search_path = list(sys.path)
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does, so that it can import its neighbours
    try:
        _run(path, lambda: exec(compile(source, str(path), "exec"), module.__dict__), "the file does not import")
        return then(module)
    finally:
        sys.path[:] = search_path
        sys.modules.pop(module.__name__, None)


def import_file(path: Path, dims: Mapping[str, int] = MappingProxyType({})) -> Imported:
    """The programs of a .pt2 or .onnx model; `dims` gives the extents of the symbolic dims of an ONNX model.

    Raises ProgramError: a file that is no such model, or a node that cannot be imported.
    """
    if path.suffix == ".onnx":
        from mirage_eg.frontend.onnx_import import import_model

        return import_model(path, dims=dims)
    from mirage_eg.frontend.torch_export import import_program, load

    if dims:
        raise ProgramError(f"{path}: got extents of dims, wanted them for a .onnx model alone")
    return import_program(load(path))


def _whole_model(path: Path, found: Imported) -> tuple[Graph, Mapping[str, Any]]:
    """The program of a model that is imported as a whole, and the arrays of its inputs that are weights or constants."""
    if found.outside or len(found.segments) != 1:
        reasons = ", ".join(dict.fromkeys(f"{it.op} ({it.reason})" for it in found.outside[:3]))
        raise ProgramError(
            f"{path}: got {counted(len(found.segments), 'program')} and {counted(len(found.outside), 'node')} that stay outside"
            f"{f', as {reasons}' if reasons else ''}; wanted a model that is one program: see mirage-eg explain {path}"
        )
    [segment] = found.segments
    fixed = _fixed(segment)
    if found.onnx_names is None:
        return segment.program, {name: found.array(name) for name in fixed}
    names = found.onnx_names.inputs
    arrays = {names.get(name, name): found.array(name) for name in fixed}
    return _with_names(path, segment, found.results, found.onnx_names), arrays


def _with_names(path: Path, segment: ImportedSegment, results: Sequence[str], names: OnnxNames) -> Graph:
    """The program with the model's names of inputs, in the model's order and before all else, and with its results in order."""
    program, copy = segment.program, GraphCopy(segment.program)
    values = dict(zip(program.input_names, program.input_values, strict=True))
    for name in dict.fromkeys((*(it for it in names.inputs if it in values), *values)):
        given = program.node_of[values[name]].mapping | {"name": names.inputs.get(name, name)}
        copy.position[values[name]] = copy.append(node("input", **given))
    for item, own in copy:
        if item.op not in ("input", "output"):
            copy.copy(item, own)
    values |= {name: item.operands[0] for name, item in zip(segment.outputs, program.outputs, strict=True)}
    for result, name in zip(results, names.results, strict=True):
        if result not in values:
            raise ProgramError(f"{path}: the result {name} is an input that no op reads, or a constant; wanted a computed one")
        copy.write(values[result], name=name)
    return copy.graph().keeping_undefined()


def _run(path: Path, work: Callable[[], Any], what: str) -> Any:
    """Run the user's code; an exception becomes one line with its name and the line of the file."""
    try:
        return work()
    except (Exception, SystemExit) as error:
        raise _failure(path, error, what) from error


def _failure(path: Path, error: BaseException, what: str) -> ProgramError:
    """An exception in the user's file as one line."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno
    else:
        line = next((frame.lineno for frame in reversed(extract_tb(error.__traceback__)) if frame.filename == str(path)), None)
    place = f"{path}:{line}" if line else str(path)
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    kind = "" if isinstance(error, MirageError) else f"{type(error).__name__}: "
    return ProgramError(f"{place}: {what}: {kind}{message[:300]}")


def _call(path: Path, function: Any, batch: int) -> Callable[[], Any]:
    """A call of `program`, with the batch if it takes one."""
    if not callable(function):
        got = "defines no program()" if function is None else f"program is {_kind(function)}"
        raise ProgramError(f"{path}: {got}; wanted a function program() that returns a kernel graph")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ProgramError(f"{path}: program is a built-in; wanted a function program() that returns a kernel graph") from None
    named = (it for it in parameters if it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD))
    required = [it.name for it in named if it.default is it.empty]
    if any(parameter.name == "batch" for parameter in parameters):
        required = [name for name in required if name != "batch"]
        call = lambda: function(batch=batch)  # noqa: E731
    elif batch != 1:
        raise ProgramError(f"{path}: program() takes no batch; got --batch {batch}, wanted none or a program(batch)")
    else:
        call = function
    if required:
        raise ProgramError(f"{path}: program() needs {', '.join(required)}; wanted no parameters, or `batch` alone")
    return call


def _as_graph(path: Path, result: Any) -> Graph:
    if isinstance(result, KernelGraph):
        result = _run(path, result.graph, "program() returns an unfinished graph")
    if not isinstance(result, Graph):
        hint = "; return the graph, not one of its tensors" if type(result).__name__ == "Tensor" else ""
        raise ProgramError(f"{path}: program() returned {_kind(result)}, wanted a kernel graph{hint}")
    if result.level is not Level.KERNEL:
        raise ProgramError(f"{path}: program() returned a {result.level} graph, wanted a kernel graph")
    return result


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
