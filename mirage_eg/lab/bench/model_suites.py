"""The suites of `bench models`, the element type of each, and the models that are meant by the beginnings of their names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import torch

from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.bench.block_models import BLOCKS
from mirage_eg.lab.bench.decode_models import DECODE
from mirage_eg.lab.bench.model_layers import ROWS, LayerRow, layer_of, shrunk
from mirage_eg.lab.bench.quantized_models import QUANTIZED
from mirage_eg.lab.bench.suite_model import Built, SuiteModel
from mirage_eg.lab.bench.torchbench_models import TORCHBENCH
from mirage_eg.lab.bench.transformers_models import HUGGINGFACE
from mirage_eg.lab.bench.vision_models import TIMM


def _layer(row: LayerRow) -> SuiteModel:
    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        chosen = replace(row, batch=batch)
        return Built(*layer_of(shrunk(chosen) if small else chosen, str(torch.get_default_device()), dtype))

    return SuiteModel(row.batch, build)


SUITES: Mapping[str, Mapping[str, SuiteModel]] = {
    "decode": DECODE,
    "huggingface": HUGGINGFACE,
    "timm": TIMM,
    "torchbench": TORCHBENCH,
    "layers": {name: _layer(row) for name, row in ROWS.items()} | BLOCKS,
    "quantized": QUANTIZED,
}
DTYPES: Mapping[str, str] = dict.fromkeys(("decode", "layers", "quantized"), "float16") | dict.fromkeys(
    ("huggingface", "timm", "torchbench"), "bfloat16"
)
"""On a GPU; on a CPU all are float32."""


def chosen_models(suite: str, names: Sequence[str] = ()) -> list[str]:
    """The models of a suite with these names or beginnings of names; all without.

    Raises OptionError: a name that no model begins with.
    """
    models = SUITES[suite]
    for name in names:
        if not any(model.startswith(name) for model in models):
            raise OptionError(f"--models: got {name!r}, wanted the beginning of one of {', '.join(models)}")
    return [
        model
        for model in models
        if not names or any(model == name or (name not in models and model.startswith(name)) for name in names)
    ]


def with_package(suite: str, models: Sequence[str]) -> tuple[list[str], list[str]]:
    """The models whose package is installed, and a line for each package that is not.

    Raises OptionError: none of the models has its package.
    """
    missing = [it for it in dict.fromkeys(SUITES[suite][model].package for model in models) if find_spec(it) is None]
    kept = [model for model in models if SUITES[suite][model].package not in missing]
    counts = {it: sum(SUITES[suite][model].package == it for model in models) for it in missing}
    lines = [
        f"{count} of {len(models)} models need {it}, which is not installed; try: pip install {it}"
        for it, count in counts.items()
    ]
    if not kept:
        raise OptionError(f"--suite {suite}: {'; '.join(lines)}")
    return kept, lines
