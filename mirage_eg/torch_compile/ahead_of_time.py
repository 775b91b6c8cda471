"""`mi.torch.compile`: a model compiled before its first call, as a module that torch.export can save."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirage_eg.frontend import torch_export
from mirage_eg.ir.errors import OptionError, ProgramError
from mirage_eg.torch_compile.compile_graph import compile_graph
from mirage_eg.torch_compile.operator import segment_op
from mirage_eg.torch_compile.records import GraphRecord, add_record, graph_records, new_number, withdraw_records
from mirage_eg.torch_compile.settings import Settings
from mirage_eg.torch_compile.unexpected_errors import reason_of

_DEFAULT = Settings()


def compile(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    settings: Settings = _DEFAULT,
) -> Any:
    """The model for inference on arguments like these, as a torch module whose segments are in our kernels.

    Weights stay parameters and may change. `dynamic_shapes` is that of torch.export.export; one search serves all sizes. With
    rest="inductor", torch.compile compiles the rest at the first call. torch.export.export and save keep the module in a file;
    the kernels are in the cache (`load`).

    Raises:
        ProgramError: torch is not installed, or torch.export does not export the model.
        OptionError: settings of another type, or with an op that torch does not have.
    """
    torch = torch_export.torch_module()
    if not isinstance(model, torch.nn.Module):
        raise ProgramError(f"compile: got a {type(model).__qualname__}, wanted a torch.nn.Module")
    if not isinstance(settings, Settings):
        raise OptionError(f"settings: got {settings!r}, wanted mi.torch.Settings(...)")
    try:
        with torch.no_grad():
            program = torch.export.export(model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ProgramError(f"compile: torch.export: {' '.join(str(error).split())[:300]}") from error
    module = torch_export.functional(program).module(check_guards=False)
    before, nodes = len(graph_records()), len(module.graph.nodes)
    try:
        compile_graph(module, {}, settings, in_place=False)
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001 - an exported model must not fail here; the record and the log say why
        reason = reason_of(error)
        module = torch_export.functional(program).module(check_guards=False)
        withdraw_records(before)
        add_record(GraphRecord(new_number(), nodes, fallback=reason, unexpected=True))
    if settings.rest == "inductor":
        module.compile(backend="inductor")
    return module


def load(path: str | Path) -> Any:
    """The exported program in a file that torch.export.save wrote, with our ops; load only files that you trust.

    A file may hold any code, in pickles and in the texts of sizes, which torch runs.

    Its kernels are taken from the cache when it runs.

    Raises ProgramError: torch is not installed, or the file holds no exported program that this torch can read.
    """
    torch_export.torch_module()
    segment_op()
    return torch_export.load(path, trusted=True)
