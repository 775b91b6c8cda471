"""Where stderr is no terminal a long command says every few seconds where it stands, and a short one says nothing."""

import os
import re
import subprocess
import sys
from time import sleep

import pytest

from mirage_eg.cli import terminal

LINE = re.compile(r" *\d+ s: (.+)")


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the lines on stderr say behind the seconds; nothing is on stdout."""
    out, err = capsys.readouterr()
    lines = [LINE.fullmatch(line) for line in err.splitlines()]
    assert out == "" and all(lines)
    return [line[1] for line in lines if line]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS_A_LINE", 0.05)
    monkeypatch.delenv(terminal.PROGRESS_VARIABLE)


def test_lines_say_where_the_work_stands_and_are_rare(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress() as observe:
        for done in range(1000):
            observe("search", done, 1000, f"{done} states")
        sleep(0.12)
    lines = said(capsys)
    assert 1 <= len(lines) <= 5
    assert lines[-1] == "search 999 of 1000, 999 states"


def test_a_stage_that_tells_nothing_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress() as observe:
        observe("simplify", 0, None, "")
        sleep(0.4)
    assert said(capsys).count("simplify") >= 2


def test_what_ends_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress() as observe:
        observe("search", 1, 1, "")
    assert said(capsys) == []


def test_progress_that_is_switched_off_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(terminal.PROGRESS_VARIABLE, terminal.OFF)
    with terminal.progress() as observe:
        observe("search", 1, 1, "")
        sleep(0.2)
    assert said(capsys) == []


def test_the_first_command_tells_where_it_is_on_a_pipe() -> None:
    code = (
        "from mirage_eg.cli import terminal; terminal.SECONDS_A_LINE = 0.2\n"
        "from mirage_eg.cli.terminal import progress\n"
        "with progress() as observe:\n    observe('verify', 1, 2, ''); import time; time.sleep(0.7)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != terminal.PROGRESS_VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout) == (0, "")
    assert all(LINE.fullmatch(line) for line in done.stderr.splitlines()) and done.stderr.count("verify 1 of 2") >= 2
