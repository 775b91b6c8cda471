"""PyTorch programs in: `import_program` for torch.export, `import_graph` for a functional FX graph of AOTAutograd."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache, partial
from operator import getitem
from pathlib import Path
from pickle import PickleError, UnpicklingError
from struct import error as StructError
from types import MappingProxyType
from typing import Any
from warnings import catch_warnings, simplefilter
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError

from mirage_eg.frontend.aten_ops import HANDLERS
from mirage_eg.frontend.coverage import Coverage, coverage
from mirage_eg.frontend.fx_complex import has_complex, write_pairs
from mirage_eg.frontend.fx_partition import Analysis, Place, analyse, constants_of, escaping, segments
from mirage_eg.frontend.fx_random import has_random_calls, random_definitions, separate_random_calls
from mirage_eg.frontend.fx_translate import Translation
from mirage_eg.frontend.fx_values import (
    Fx,
    HostValues,
    attribute_of,
    flops_of,
    is_mutable,
    is_random,
    nbytes_of,
    numpy_of,
    read_of,
)
from mirage_eg.frontend.imported import AddedInput, Constant, Imported, ImportedSegment, InputKind, Outside
from mirage_eg.frontend.torch_run import Running
from mirage_eg.ir.all_experts import with_all_experts
from mirage_eg.ir.errors import ProgramError, UnsupportedError
from mirage_eg.ir.graph_copy import without_values
from mirage_eg.ir.integer_ranges import without_decided_choices
from mirage_eg.ir.op.record import Range
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.reached import reached
from mirage_eg.ir.sorted_rows import with_repeated_rows, with_rows_in_order
from mirage_eg.ir.weights import with_weights

# Of torch's readers of archives, JSON and pickles, on a file that is damaged or of another version.
_WANTED = "wanted a file that torch.export.save wrote, with its custom ops imported"
_UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, BadZipFile, EOFError, ImportError, LookupError, MemoryError),
    *(OSError, PickleError, RuntimeError, StructError, TypeError, ValueError, ZlibError),
)


def import_program(program: Any) -> Imported:
    """The programs of a torch.export.ExportedProgram, at the level of its own ops: linear, layer_norm and attention stay whole.

    A program with in-place ops is made functional first, and ops that have no handler are decomposed if torch can; both by
    `run_decompositions`. No weight is copied.

    Raises ProgramError: torch is not installed, or the argument is no ExportedProgram.
    """
    torch = torch_module()
    if not isinstance(program, torch.export.ExportedProgram):
        kind = type(program).__qualname__
        raise ProgramError(f"import_program: got a {kind}, wanted the result of torch.export.export(model, args)")
    program = functional(program)
    signature = program.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    roles: dict[str, Place] = {}
    state: dict[str, Any] = {}
    for name, target in signature.inputs_to_parameters.items():
        roles[name], state[name] = Place.PARAMETER, program.state_dict[target]
    others = signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants
    for name, target in others.items():
        state[name] = program.state_dict[target] if target in program.state_dict else program.constants[target]
        if target not in mutated:
            roles[name] = Place.PARAMETER if _is_packed(state[name]) else Place.CONSTANT
    names = signature.inputs_to_parameters | {it: name for it, name in others.items() if roles.get(it) is Place.PARAMETER}
    graph = _rewritten(program.graph_module, program.graph)
    return _imported(graph, roles, state, names, Running(graph, state, program))


def _is_packed(buffer: Any) -> bool:
    """Whether a buffer is a weight of bytes, which kernels convert: as a constant it would be converted at import."""
    is_of_bytes = buffer.element_size() == 1 and not buffer.is_floating_point() and str(buffer.dtype) != "torch.bool"
    return is_of_bytes and buffer.dim() >= 2


def import_graph(
    module: Any, parameters: Mapping[str, Any] = MappingProxyType({}), constants: Mapping[str, Any] = MappingProxyType({})
) -> Imported:
    """The programs of a functional torch.fx.GraphModule of ATen ops with `meta["val"]`, as AOTAutograd passes to a compiler.

    `parameters` and `constants` give the tensors of placeholders that are weights or buffers, by the placeholder's name.
    Attributes of the module are weights if they are torch Parameters, else constants.

    Raises ProgramError: torch is not installed, or a node changes an operand in place.
    """
    torch = torch_module()
    graph = _rewritten(module, module.graph)
    roles = dict.fromkeys(parameters, Place.PARAMETER) | dict.fromkeys(constants, Place.CONSTANT)
    state = {**parameters, **constants}
    names = {name: name for name in parameters}
    for node in graph.nodes:
        if node.op == "get_attr":
            state[node.name] = attribute_of(node)
            weight = isinstance(state[node.name], torch.nn.Parameter)
            roles[node.name] = Place.PARAMETER if weight else Place.CONSTANT
            if weight:
                names[node.name] = node.target
    return _imported(graph, roles, state, names, Running(graph, state))


def _rewritten(module: Any, graph: Any) -> Any:
    """The user's graph; a copy that is written anew where it has complex or random numbers."""
    import torch

    if has_complex(graph) or has_random_calls(graph):
        graph = torch.fx.GraphModule(module, deepcopy(graph)).graph
        write_pairs(graph)
        separate_random_calls(graph)
    return graph


def torch_module() -> Any:
    """Torch. Raises ProgramError: it is not installed."""
    try:
        import torch
        import torch.export
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ProgramError("torch is not installed; try: pip install 'mirage-eg[torch]'") from None
    return torch


def functional(program: Any) -> Any:
    """The program without in-place ops, and without ops that torch decomposes and import does not know or that are dropouts.

    Those stay if a decomposition branches on a value, as that of `take` at an index without dims.
    """
    import torch
    from torch._inductor import config as inductor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    signature = program.graph_signature
    roles = dict.fromkeys((*signature.inputs_to_buffers, *signature.inputs_to_lifted_tensor_constants), Place.CONSTANT)
    known = constants_of(program.graph, roles)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    kept = HANDLERS.keys()
    random = {node.target for node in calls if is_random(node)}  # torch's decomposition of an LSTM forgets its dropout
    unknown = {node.target for node in calls if node not in known and str(node.target) not in kept} - random
    table = _decompositions() if unknown else {}
    decomposed = {op: table[op] for op in unknown if op in table}
    if random & (definitions := random_definitions()).keys():
        decomposed |= definitions
    if decomposed or any(is_mutable(node) or isinstance(node.target, torch._ops.HigherOrderOperator) for node in calls):
        try:
            with catch_warnings(), inductor.patch(fallback_random=True):  # random calls that nothing reads stay
                simplefilter("ignore", FutureWarning)  # torch's, of how it copies the specification of its own inputs
                try:
                    return program.run_decompositions(decomposed)
                except GuardOnDataDependentSymNode:
                    return program.run_decompositions({})
        except (AssertionError, AttributeError, RuntimeError, ValueError, TypeError) as error:  # of strides, of guards
            message = " ".join(str(error).split())[:300]
            raise ProgramError(f"torch.export: the program cannot be made functional: {message}") from error
    return program


def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Those of torch.export, of ops that packages define, and of interpolations, which torch.export takes for core ops."""
    import torch
    from torch._decomp import decomposition_table

    kept = (torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_trilinear3d.vec)
    default = _default_decompositions(tuple(torch._C._dispatch_get_all_op_names()))
    return {**default, **defined_ops(), **{op: decomposition_table[op] for op in kept}}


_NAMESPACES = ("quantized_decomposed", "torchao")  # of packages for quantized models, whose ops are written in ATen's


def defined_ops() -> dict[Any, Callable[..., Any]]:
    """The ops of these packages that this process has loaded, with their definitions."""
    import torch

    key = torch._C.DispatchKey.CompositeExplicitAutograd
    found: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space in _NAMESPACES and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd"):
            packet, _, overload = rest.partition(".")
            op = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
            found[op] = partial(op._op_dk, key)
    return found


@lru_cache(maxsize=1)
def _default_decompositions(_ops: tuple[str, ...]) -> Mapping[Any, Callable[..., Any]]:
    """Those of torch.export, which asks the dispatcher about each op that this process has loaded."""
    import torch

    table: Mapping[Any, Callable[..., Any]] = torch.export.default_decompositions().materialize()
    return table


_KEPT = 32  # arrays of constants


def known_values(graph: Any, roles: Mapping[str, Place], state: Mapping[str, Any]) -> Callable[[Fx], Any]:
    """A function that returns the NumPy array of a node that is a constant, and None for others."""
    constant = constants_of(graph, roles)

    @lru_cache(_KEPT)  # each layer asks for the mask of all
    def known(node: Fx) -> Any:
        if constant.get(node) is not Place.CONSTANT:
            return None
        try:
            return numpy_of(HostValues(state)[node])
        except UnsupportedError:  # it has no values on the meta device
            return None

    return known


def _imported(
    graph: Any, roles: Mapping[str, Place], state: Mapping[str, Any], names: Mapping[str, str], running: Running
) -> Imported:
    import torch
    from torch.utils import _pytree as pytree

    known = known_values(graph, roles, state)
    found = analyse(graph, roles, known)
    parts: list[ImportedSegment] = []
    constants: dict[str, Constant] = {}
    groups = segments(graph, found)
    for group in groups:
        part, lifted = segment_of(group, escaping(group, found), found, known)
        parts.append(part)
        constants.update((it.name, it) for it in lifted.values() if isinstance(it, Constant))  # no dim has a name here
    by_name = {node.name: node for node in graph.nodes}
    for part in parts:
        for name in part.inputs_of(InputKind.CONSTANT):
            if name not in constants:
                constants[name] = _constant(by_name[name], state, found.same)
    running.schedule(found, groups, parts, constants)
    outside = tuple(
        Outside(str(node.target), found.reason[node], node.name, flops_of(node), nbytes_of(node), _module_of(node))
        for node in graph.nodes
        if found.place.get(node) is Place.OUTSIDE and node.target is not getitem
    )
    used = {name for part in parts for name in part.inputs_of(InputKind.PARAMETER)}
    parameters = {name: target for name, target in names.items() if name in used}
    [output] = [node for node in graph.nodes if node.op == "output"]
    results = tuple(found.same.get(it, it).name for it in pytree.tree_leaves(output.args[0]) if isinstance(it, torch.fx.Node))
    return Imported(tuple(parts), constants, parameters, outside, results, lambda name: numpy_of(state[name]), running)


def _module_of(node: Fx) -> str:
    """The path of the module that calls a node's op, as torch.export records it; empty for the model itself."""
    *_, path = ["", *(path for path, _ in (node.meta.get("nn_module_stack") or {}).values())]
    return str(path)


def segment_of(
    group: Sequence[Fx], outputs: Sequence[Fx], found: Analysis, known: Callable[[Fx], Any]
) -> tuple[ImportedSegment, dict[str, AddedInput]]:
    """The program of a group of nodes with these outputs, and the constants that import itself adds.

    Its parameters and constants are weights. Raises UnsupportedError: it has a size that none of its inputs has.
    """
    it = Translation(found.same, known)
    for node in group:
        it.append(node)
    for node in outputs:
        it.graph.mark_output(it.values[node])
    program = without_decided_choices(without_dead_code(it.graph.graph()), _ranges_of_numbers(it))
    program = with_repeated_rows(with_all_experts(with_rows_in_order(program))).keeping_undefined()
    program = without_values(program, {value for value in program.input_values if not program.readers[value]})
    it.graph.check_sizes(program)
    kinds = {Place.PARAMETER: InputKind.PARAMETER, Place.CONSTANT: InputKind.CONSTANT}
    of_input = {node.name: kinds.get(found.place[node], InputKind.ACTIVATION) for node in it.inputs}
    kind = tuple(of_input.get(name, InputKind.CONSTANT) for name in program.input_names)
    program = with_weights(program, [place for place, it in enumerate(kind) if it is not InputKind.ACTIVATION])
    views = frozenset(node.name for node in group if node in found.views)
    nbytes = sum(nbytes_of(node) for node in group if node not in found.views)
    names, ends = (tuple(node.name for node in nodes) for nodes in (group, outputs))
    return ImportedSegment(program, kind, names, views, nbytes, ends), it.lifted


def _ranges_of_numbers(translation: Translation) -> dict[int, Range]:
    """The ranges of the inputs that are one integer each, by position."""
    program = translation.graph.graph()
    kinds = zip(program.input_names, program.input_types, strict=True)
    numbers = [(place, name) for place, (name, kind) in enumerate(kinds) if kind.dtype.is_integer and kind.shape == (1,)]
    lifted = ((place, translation.lifted.get(name)) for place, name in numbers)
    return {place: (int(it.array()[0]),) * 2 for place, it in lifted if isinstance(it, Constant)}


def _constant(node: Fx, state: Mapping[str, Any], same: Mapping[Fx, Fx]) -> Constant:
    read = reached([node], lambda one: [same.get(it, it) for it in read_of(one)])
    depends_on = tuple(sorted(one.name for one in read if one.name in state))
    return Constant(node.name, depends_on, lambda: numpy_of(HostValues(state, same)[node]))


_ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch reads it at each load


def _archive_problem(path: str | Path) -> str | None:
    """Why a file is no archive of an exported program, of this or an earlier version of torch; None if it may be one."""
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, BadZipFile) as error:
        return str(error)
    known = any(name.endswith(("/archive_format", "serialized_exported_program.json")) for name in names)
    return None if known else "got an archive without an exported program"


def load(path: str | Path, trusted: bool = False) -> Any:
    """The exported program in a file that torch.export.save wrote; read only files that you trust.

    Torch evaluates the texts of sizes in the file as Python. Unless the file is `trusted`, its pickles are refused where they
    hold more than tensors and plain data, such as example inputs of a class of one's own.

    Raises ProgramError: torch is not installed, or the file holds no exported program that this torch can read.
    """
    if (problem := _archive_problem(path)) is not None:  # loading torch takes seconds
        raise ProgramError(f"{path}: {problem}; {_WANTED}")
    torch = torch_module()
    logs = [logging.getLogger(name) for name in ("torch.export", "torch._export.serde.serialize")]  # they say what errors say
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    before = os.environ.get(_ONLY_WEIGHTS)
    try:
        if not trusted:
            os.environ[_ONLY_WEIGHTS] = "1"
        return torch.export.load(path)
    except UnpicklingError:
        raise ProgramError(
            f"{path}: a pickle in it is damaged, or holds more than tensors and plain data and may run any code; wanted a file "
            "that torch.export.save wrote; if you trust it, try in Python: mi.torch.import_program(torch.export.load(FILE))"
        ) from None
    except _UNREADABLE as error:
        message = " ".join(str(error).split())[:300]
        raise ProgramError(f"{path}: {message}; {_WANTED}") from None
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
        if not trusted:
            os.environ.pop(_ONLY_WEIGHTS)
            os.environ.update({} if before is None else {_ONLY_WEIGHTS: before})


def explain(model: Any, *args: Any, **kwargs: Any) -> Coverage:
    """What of a model becomes programs: a record that prints as a table of segments and of ops that stay with torch.

    `model` is a torch module, called with the further arguments, or an ExportedProgram without any.

    Raises ProgramError: torch is not installed, or torch.export does not export the model.
    """
    torch = torch_module()
    if not isinstance(model, torch.nn.Module):
        return coverage(import_program(model))
    try:
        with torch.no_grad():
            program = torch.export.export(_of_tensors(model), args, kwargs, strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ProgramError(f"explain: torch.export: {_why_not_exported(error)}") from error
    return coverage(import_program(program))


def _of_tensors(model: Any) -> Any:
    """The model with the tensors of its results alone: torch.export does not take a cache, say."""
    import torch

    class OfTensors(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return tuple(_tensors_in(self.model(*args, **kwargs), set()))

    return OfTensors()


def _tensors_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """The tensors in containers, and in the attributes of other objects."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (str, bytes, type, torch.nn.Module)):
        seen.add(id(value))
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple, set)) else None
        for part in vars(value).values() if parts is None and hasattr(value, "__dict__") else parts or ():
            yield from _tensors_in(part, seen)


def _why_not_exported(error: Exception) -> str:
    """The message of torch.export in one line, and what was wanted."""
    message = " ".join(str(error).split())
    if "data-dependent" in message:
        return f"{message[:200]}; wanted branches and shapes that depend on no value of a tensor (try: torch.where, torch.cond)"
    return (
        f"{message[:300]}; wanted a model that takes and returns tensors, and no cache "
        "(models of transformers: config.use_cache = False)"
    )
