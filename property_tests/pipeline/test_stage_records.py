"""The watch of a run: seconds of stages that fail."""

import pytest

from mirage_eg.pipeline.stage_records import Watch


def test_the_seconds_of_a_failed_stage_count() -> None:
    watch = Watch()
    with pytest.raises(ValueError, match="failed"), watch.stage("search"):
        raise ValueError("failed")
    assert watch.seconds["search"] > 0
