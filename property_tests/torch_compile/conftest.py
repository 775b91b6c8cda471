"""Each test of the backend begins with fresh records and an empty Dynamo; kernels that tests find are in one folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mirage_eg.pipeline.run import executors
from mirage_eg.torch_compile.calls import forget_calls
from mirage_eg.torch_compile.records import forget_records
from mirage_eg.torch_compile.segment_store import forget


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Inductor itself uses names that torch deprecates."""
    for item in items:
        if "torch_compile" in str(item.path):
            for kind in ("DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(scope="session")
def found_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the result cache: the files share the searches of their common product."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def cache(found_kernels: Path) -> Iterator[Path]:
    """The folder of the result cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_EG_CACHE", str(found_kernels))
        yield found_kernels
    forget()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo and the records as in a new process, which searches by itself: a pool for each graph takes longer to start."""
    monkeypatch.setattr(executors, "usable_cores", lambda: 1)
    torch._dynamo.reset()
    forget_records()
    forget_calls()
