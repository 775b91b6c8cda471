"""Each test of the backend begins with fresh records and an empty Dynamo; kernels that a module finds are in one folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mirage_eg.torch_compile.calls import forget_calls
from mirage_eg.torch_compile.records import forget_records
from mirage_eg.torch_compile.segment_store import forget


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Inductor itself uses names that torch deprecates."""
    for item in items:
        if "torch_compile" in str(item.path):
            for kind in ("DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the result cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_EG_CACHE", str(folder))
        yield folder
    forget()


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Dynamo and the records as in a new process."""
    torch._dynamo.reset()
    forget_records()
    forget_calls()
