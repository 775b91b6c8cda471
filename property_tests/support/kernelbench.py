"""Problems in the form of KernelBench's, as a checkout has them: written from `kernelbench.txt`, with words of our own.

A problem there has lines for its name and what `Model` takes, its sizes, the layers, the inputs and the body of `forward`.
"""

import atexit
import re
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

_FILE = """import math
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, {parameters}):
        super().__init__()
        {layers}

    def forward(self, {operands}):
        {forward}


{sizes}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{given}]
"""


@cache
def kernelbench_folder() -> Path:
    """A checkout with all problems, which is removed when the process ends."""
    folder = Path(mkdtemp(prefix="kernelbench_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for head, sizes, lines in re.findall(r"^(\S.*)\n    (.*)\n((?:    .*\n)+)", text, re.MULTILINE):
        name, taken = head.removesuffix(")").split("(", 1)
        path = folder / "KernelBench" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_source(taken, sizes, lines.splitlines()), encoding="utf-8")
    return folder


def _source(taken: str, sizes: str, lines: list[str]) -> str:
    """The file of a problem; an input is a line `name: expression`, layers stand before the inputs and `forward` behind."""
    given = [pair.partition("=") for pair in re.split(r", (?![^(]*\))", taken) if pair]
    inputs = [line.strip().partition(": ") for line in lines if re.match(r"    \w+: ", line)]
    first = next(place for place, line in enumerate(lines) if line.strip().partition(": ") == inputs[0])
    return _FILE.format(
        parameters=", ".join(name for name, _, _ in given),
        layers="\n    ".join(lines[:first]).strip(),
        operands=", ".join(name for name, _, _ in inputs),
        forward="\n    ".join(lines[first + len(inputs) :]).strip(),
        sizes=sizes.replace("=", " = ").replace(" ", "\n").replace("\n=\n", " = "),
        inputs=", ".join(value for _, _, value in inputs),
        given=", ".join(value or name for name, _, value in given),
    )
