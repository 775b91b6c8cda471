"""Calls of a segment's kernels."""

import gc
from pathlib import Path

import torch

from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.records import graph_records
from mirage_eg.torch_compile.segment_call import SegmentCall
from mirage_eg.torch_compile.segment_store import segment_by_key
from property_tests.support.torch_cases import WIDTH, projected


def test_the_file_of_a_source_stays_as_long_as_its_call() -> None:
    with torch.no_grad():
        torch.compile(projected, backend=backend, options={"budget": 20.0, "rest": "eager", "gate": "off"})(
            torch.zeros(8, WIDTH)
        )
    [segment] = graph_records()[-1].segments
    call = SegmentCall(segment_by_key(segment.key))
    path = Path(call.module.__file__)
    gc.collect()
    assert path.read_text() == call.source
    del call
    gc.collect()
    assert not path.exists()
