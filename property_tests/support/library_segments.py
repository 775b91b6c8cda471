"""Segments without a search: each program as library kernels stands in as its own fused kernel. For tests of the rewriting."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.result import Candidate, CompileRecord, Result
from mirage_eg.torch_compile import compile_graph, segment_store
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

COMPILED = CompileRecord("sm_90", ())


@contextmanager
def library_segments(compiled: CompileRecord = COMPILED) -> Iterator[None]:
    """Searches find the library form alone, `compiled` so; use it with gate="off" and cache="off"."""

    lasts = True

    def search(name: str, program: Graph, *rest: Any) -> Result:
        assert lasts, "an undone patch has put back what stood in for a search"
        candidate = Candidate(
            graph=program,
            predicted_us=0.0,
            fused=True,
            source=emit(program, program=program),
            schedule=(),
            compile=compiled,
            verdict=Verdict(Equality.EQUAL, 0, 0, 0, 0, 0.0, "it is the program", 1.0),
            float_check=FloatCheck(True, 0.0, 0.0, None),
        )
        report: Any = None
        return Result((candidate,), report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_store, "search_segment", search)
        patch.setattr(compile_graph, "searches_of", lambda *_: ({}, {}))  # workers would search
        yield
    lasts = False
    segment_store.forget()
