"""Zoo models through the backend without a search: how many graphs, segments and ops outside, and the error."""

from dataclasses import dataclass
from typing import Any

import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import Decision, forget_records, graph_records
from property_tests.support.library_segments import library_segments
from property_tests.support.model_zoo import MODELS, make
from property_tests.support.torch_import import relative_error


@dataclass(frozen=True)
class CompiledModel:
    """Counts of one model: graphs, those left to Inductor whole, ops in segments, ops in smaller pieces, ops outside."""

    model: str
    graphs: int
    fallbacks: int
    segments: int
    in_segments: int
    small: int
    outside: int
    error: float

    def row(self) -> str:
        """The row of the table in docs/measurements/torch_compile.md."""
        return f"| {self.model} | {self.in_segments} in {self.segments} | {self.small} |"


def compiled_model(name: str, rest: str = "eager", dynamic: bool = False) -> CompiledModel:
    """Compile a model with each segment as library kernels, and compare it with eager torch."""
    torch._dynamo.reset()
    forget_records()
    model, arguments = make(MODELS[name])
    with library_segments(), torch.no_grad():
        options: dict[str, Any] = {"gate": "off", "cache": "off", "rest": rest}
        got = torch.compile(model, backend=backend, options=options, dynamic=dynamic or None)(**arguments)
        error = relative_error(got, model(**arguments))
    records = graph_records()
    used = [it.ops for record in records for it in record.segments if it.decision is Decision.USED]
    small = [it.ops for record in records for it in record.segments if it.decision is not Decision.USED]
    fallbacks = sum(record.fallback is not None for record in records)
    outside = sum(len(record.outside) for record in records)
    return CompiledModel(name, len(records), fallbacks, len(used), sum(used), sum(small), outside, error)
