"""Files that others wrote or spoiled: each command that reads one answers with one line, exit code 2, and writes nothing."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.backends.cost.devices import DEVICES
from property_tests.support.command import run_command
from property_tests.support.parameters import few
from property_tests.support.programs import rms_linear

SPOILED: dict[str, Callable[[str], str | bytes]] = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "nested deeply": lambda text: "[" * 100_000,
    "objects nested deeply": lambda text: '{"graph":' * 100_000,
    "a field twice": lambda text: text.replace("{", '{"target": "sm_90", "target": "sm_90", ', 1),
    "not text": lambda text: b"\xff\xfe\x00" + text.encode(),
    "a huge number": lambda text: f"{'9' * 9_999}",
    "another kind": lambda text: "[1, 2]",
    "a number for a text": lambda text: json.dumps(dict.fromkeys(json.loads(text), 3)),
    "no fields": lambda text: "{}",
    "numbers beyond floats": lambda text: json.dumps(
        {name: 10**400 if isinstance(value, int | float) else value for name, value in json.loads(text).items()}
    ),
    "numbers that are nearly zero": lambda text: json.dumps(
        {name: 5e-324 if isinstance(value, int | float) else value for name, value in json.loads(text).items()}
    ),
}
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "program": ("optimize", "FILE", "--out", "OUT"),
    "verified": ("verify", "rmsnorm", "FILE"),
    "shown": ("show", "FILE"),
    "rewritten": ("rewrite", "FILE", "--out", "OUT"),
    "gpu": ("optimize", "rmsnorm", "--gpu", "FILE", "--out", "OUT"),
    "calibrated": ("bench", "cost", "FILE", "--out", "OUT.json"),
    "times": ("tune", "--import", "FILE"),
}


def right(command: str) -> str:
    """A file that the command reads."""
    if command == "gpu":
        return json.dumps(asdict(DEVICES["H100"]))
    return mi.to_json(rms_linear())


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("command", few(COMMANDS, len(COMMANDS)))
def test_a_spoiled_file_is_one_line_and_nothing_is_written(
    command: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "cache"))
    file, out = tmp_path / "given.json", tmp_path / "out"
    spoiled: Any = SPOILED[how](right(command))
    file.write_bytes(spoiled if isinstance(spoiled, bytes) else spoiled.encode())
    words = [
        {"FILE": str(file), "OUT": str(out), "OUT.json": str(out / "gpu.json")}.get(word, word) for word in COMMANDS[command]
    ]
    code, _, error = run_command(capsys, *words)
    if command == "times" and how == "empty":  # no measurements
        assert code == 0
        return
    assert code == 2 and error.count("\n") == 1 and "given.json" in error, error
    assert not out.exists() and not (tmp_path / "cache").exists()
