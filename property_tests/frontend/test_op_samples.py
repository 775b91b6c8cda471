"""Every tenth op and module of PyTorch's own databases is right inside, right outside, or refused."""

import pytest

from property_tests.support.op_samples import KINDS, check, tenth


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in tenth(kind)])
@pytest.mark.filterwarnings("ignore")
def test_samples_of_torch_are_right(kind: str, name: str) -> None:
    found = check(kind, tenth(kind)[name])
    assert not found.counts["wrong"] and not found.counts["crash"], found.faults
