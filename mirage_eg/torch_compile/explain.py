"""`mi.torch.explain`: how much of a model is covered, and of a compiled model what the backend did with each graph."""

from typing import Any

from mirage_eg.frontend import torch_export
from mirage_eg.frontend.coverage import Coverage
from mirage_eg.torch_compile.records import Compilation, graph_records, watched_graphs


def explain(model: Any, *args: Any, **kwargs: Any) -> Coverage | Compilation:
    """A record that prints as a table.

    Of a model that `torch.compile` returned: it is called with the arguments, without gradients, and the record has the graphs
    that this call runs. Of another torch module, or an ExportedProgram without
    further arguments: segments and ops outside, as import sees them.

    Raises ProgramError: torch is not installed, or torch.export does not export the model.
    """
    if not _is_compiled(model):
        return torch_export.explain(model, *args, **kwargs)
    import torch

    with torch.no_grad(), watched_graphs() as called:
        model(*args, **kwargs)
    return Compilation(tuple(record for record in graph_records() if record.number in called))


def _is_compiled(model: Any) -> bool:
    """Whether torch.compile has made a module or function."""
    return hasattr(model, "_torchdynamo_orig_callable") or type(model).__name__ == "OptimizedModule"
