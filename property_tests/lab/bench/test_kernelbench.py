"""`bench kernelbench` on problems in the form of KernelBench's: what imports is right, and the rest says why not."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.frontend import torch_export
from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.bench import kernelbench
from mirage_eg.lab.bench.kernelbench import Import, ImportRow, Problem, find_problems, import_rows, summary
from mirage_eg.lab.bench.shrinking import SHRINKINGS, run_source
from property_tests.support.kernelbench import kernelbench_folder
from property_tests.support.parameters import few

FOLDER = kernelbench_folder()
RANDOM = "level2/66_Matmul_Dropout_Softmax"


NAMES = [problem.name for problem in find_problems(FOLDER)]
QUICK = {*NAMES[::8], RANDOM}


@cache
def rows(quick: bool) -> dict[str, ImportRow]:
    """The rows of an eighth of the problems, or of the others."""
    problems = [problem for problem in find_problems(FOLDER) if (problem.name in QUICK) is quick]
    return {row.problem: row for row in import_rows(problems, shrink=True, seconds=60)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in NAMES])
def test_a_problem_imports_and_is_right(name: str) -> None:
    row = rows(name in QUICK)[name]
    assert row.result is Import.RIGHT, row.reason
    assert row.ops > 0 and row.error is not None and row.error < 1e-4


def test_the_summary_counts_every_problem_once() -> None:
    head, *levels, total = summary(list(rows(True).values()))
    assert head == ("", *Import, "all")
    assert [sum(map(int, line[1:-1])) for line in (*levels, total)] == [int(line[-1]) for line in (*levels, total)]
    assert int(total[-1]) == len(QUICK)


def _problem(folder: Path, body: str) -> Problem:
    path = folder / "KernelBench" / "level1" / "1_Problem.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        f"        {body}\n\nN = 4096\n\ndef get_inputs():\n    return [torch.rand(N, 3)]\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    return find_problems(folder)[0]


@pytest.mark.parametrize(
    ("body", "result", "reason"),
    few(
        [
            ("return x + torch.ones(7, 7, 7)", Import.NO_REFERENCE, "the model fails at smaller sizes"),
            ("return x.new_tensor(x.sum().item()) * x", Import.OUTSIDE, "torch.export"),
            ("return torch.log(-torch.abs(x) - 1)", Import.NO_REFERENCE, "its result is not finite"),
            ("while True: pass", Import.FAILED, "stopped after 4 s"),
            ("import os; os._exit(3)", Import.FAILED, "exit code 3"),
            ("return nonsense", Import.NO_REFERENCE, "name 'nonsense' is not defined"),
        ],
        1,
    ),
)
def test_a_problem_that_cannot_be_compared_says_why(tmp_path: Path, body: str, result: Import, reason: str) -> None:
    problem = _problem(tmp_path, body)
    [row] = import_rows([problem], shrink=True, seconds=4 if "4 s" in reason else 60)
    assert row.result is result and reason in row.reason and "\n" not in row.reason


def test_a_model_in_float64_has_its_own_tensors_closures_and_random_numbers() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = self.inner = torch.nn.Linear(4, 4)
            self.shift = torch.ones(4)
            self.apply_inner = lambda x, *, scale=2.0: inner(x) * scale + self.shift

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.shift = self.shift + torch.randn(4)
            return torch.nn.functional.linear(self.apply_inner(x) * torch.rand_like(x, dtype=torch.float32), torch.randn(4, 4))

    model, x = Model(), torch.randn(2, 4)
    exact = kernelbench.in_float64(model)
    torch.manual_seed(1)
    result = exact(x)
    torch.manual_seed(1)
    assert result.dtype is torch.float64 and torch.allclose(result.float(), model(x), atol=1e-6)
    assert model.inner.weight.dtype is model.shift.dtype is torch.float32


def test_a_model_that_is_random_and_keeps_a_state_is_right(tmp_path: Path) -> None:
    body = (
        "self.state = (self.state * x).mean(0) + torch.randn(3)\n        return self.state\n\n"
        "    def __init__(self):\n        super().__init__()\n        self.state = torch.ones(3)"
    )
    row = kernelbench.import_problem(_problem(tmp_path, body), True)
    assert row.result is Import.RIGHT and row.segments == 1, row.reason


def test_a_wrong_import_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    x = torch.randn(4, 4)
    trials = [([x], [torch.relu(x).double()])]
    assert kernelbench.compared_row("relu", Model(), trials).result is Import.RIGHT
    right = torch_export.import_program

    def wrong(program: Any) -> Any:
        imported = right(program)
        return replace(imported, run=lambda *inputs: imported.run(*inputs) * 1.001)

    monkeypatch.setattr(torch_export, "import_program", wrong)
    row = kernelbench.compared_row("relu", Model(), trials)
    assert row.result is Import.WRONG and "an error of 1.0e-03 of the largest element" in row.reason


@given(st.lists(st.integers(17, 1 << 20), min_size=1, max_size=5), st.sampled_from(sorted(SHRINKINGS)))
def test_a_shrinking_makes_sizes_smaller_and_keeps_their_order(sizes: list[int], name: str) -> None:
    small = SHRINKINGS[name](sizes)
    assert all(1 < one <= size for one, size in zip(small, sizes, strict=True))
    assert small == [4, *sizes[1:]] if name == "the first to 4" else max(small) <= 1024
    if name.startswith("by one factor"):
        assert [one for one, _ in sorted(zip(sizes, small, strict=True))] == sorted(sizes)


def test_only_sizes_at_the_top_level_shrink() -> None:
    source = "A = 4096\nB, C = (512, [2048, 3])\nD: int = A * 2\nE = 8\nF = 0.5\ndef f(x=1000):\n    return 5000 + x\n"
    module = run_source(source, "problem.py", "by one factor").__dict__
    assert [module[name] for name in "ABCDEF"] == [64, 8, [32, 3], 128, 8, 0.5] and module["f"]() == 6000


def test_a_folder_without_problems_and_an_unknown_problem_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="wanted a checkout of KernelBench"):
        find_problems(tmp_path)
    with pytest.raises(OptionError, match="problem: got 'level9'"):
        find_problems(FOLDER, ["level9"])
    assert [problem.name for problem in find_problems(FOLDER, ["level1/19"])] == ["level1/19_ReLU"]


def test_named_problems_are_in_the_order_of_the_names_each_once() -> None:
    first, *others = find_problems(FOLDER, ["level1/19", "level1", "level1/19_ReLU"])
    assert first.number == 19 and [problem for problem in find_problems(FOLDER, ["level1"]) if problem != first] == others


@pytest.mark.slow
def test_the_command_prints_a_line_a_problem_and_writes_json_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirage_eg.cli.main import app

    out = tmp_path / "rows.jsonl"
    command = ["bench", "kernelbench", "--shrink", "--seconds", "60", "--out", str(out), "level1/50", "level2/66"]
    assert app([*command, "--dir", str(FOLDER)], standalone_mode=False)() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("level1/50_conv_standard_2D__square_input__square_kernel: right: error")
    assert printed[1].startswith("level2/66_Matmul_Dropout_Softmax: outside: aten.dropout")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["result"] for line in lines] == ["right", "outside"]
    with pytest.raises(OptionError, match="--dir: wanted the folder of a KernelBench checkout"):
        app(command, standalone_mode=False)()
