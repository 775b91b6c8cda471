"""`mi.torch.explain`: how much of a model is covered, and of a compiled model what the backend did with each graph."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mirage_eg.frontend import torch_export
from mirage_eg.frontend.coverage import Coverage
from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.torch_compile.records import Compilation, GraphRecord, graph_records, watched_graphs
from mirage_eg.torch_compile.segment_store import FoundSegment


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


def write_reports(folder: Path, record: GraphRecord, found: Sequence[FoundSegment]) -> None:
    """Write `graph_N.txt`, `graph_N.json`, and for each segment its kernels and the report of their search.

    Raises OptionError: the folder cannot be written.
    """
    name = f"graph_{record.number}"
    write_atomically(folder / f"{name}.txt", f"{Compilation((record,))}\n")
    write_atomically(folder / f"{name}.json", json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n")
    for segment in found:
        short = f"segment_{segment.key[:12]}"
        report = json.dumps(segment.result.report.data(), indent=2, ensure_ascii=False)
        write_atomically(folder / f"{short}.json", report + "\n")
        if segment.candidate is not None:
            write_atomically(folder / f"{short}.py", segment.candidate.source)
