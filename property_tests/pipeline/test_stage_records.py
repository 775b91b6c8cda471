"""The watch of a run: seconds of stages that fail, and notes of its parts."""

import pytest

from mirage_eg.pipeline.stage_records import Watch


def test_the_seconds_of_a_failed_stage_count() -> None:
    watch = Watch()
    with pytest.raises(ValueError, match="failed"), watch.stage("search"):
        raise ValueError("failed")
    assert watch.seconds["search"] > 0


def test_notes_of_a_part_name_it_and_no_other_note_does() -> None:
    watch = Watch()
    watch.notes.append("first")
    with watch.part("region 0") as inner:
        with inner.stage("search"):
            inner.notes.append("cut")
        watch.notes.append("meanwhile")  # of another thread
        with inner.part("equal program") as deeper:
            deeper.notes.append("deep")
    assert watch.notes == ["first", "meanwhile", "region 0: cut", "region 0: equal program: deep"]
    assert "search" in watch.seconds


def test_notes_of_a_part_that_fails_stay() -> None:
    watch = Watch()
    with pytest.raises(ValueError, match="failed"), watch.part("region 1") as inner:
        inner.notes.append("cut")
        raise ValueError("failed")
    assert watch.notes == ["region 1: cut"]
