"""Reports of the backend as files: a table of each graph, and the report of the search of each segment."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.torch_compile.records import Compilation, GraphRecord
from mirage_eg.torch_compile.segment_store import FoundSegment


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
