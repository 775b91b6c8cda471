"""The suites of `bench models`, the element type of each, and the models that are meant by the beginnings of their names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from mirage_eg.ir.errors import OptionError
from mirage_eg.lab.bench.block_models import BLOCKS
from mirage_eg.lab.bench.decode_models import DECODE
from mirage_eg.lab.bench.model_layers import ROWS, LayerRow, layer_of, shrunk
from mirage_eg.lab.bench.quantized_models import QUANTIZED
from mirage_eg.lab.bench.suite_model import Built, SuiteModel
from mirage_eg.lab.bench.torchbench_models import TORCHBENCH
from mirage_eg.lab.bench.transformers_models import HUGGINGFACE

_SMALL_IMAGE, _SMALL_CLASSES = 64, 10
_SMALL_TRANSFORMER = {"img_size": 56, "embed_dim": 48, "depth": 2, "num_heads": 4}
_SMALL_SWIN = {"img_size": 56, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4)}
_SMALL_VISFORMER = {"img_size": 64, "init_channels": 16, "embed_dim": 48, "depth": (1, 1, 1), "num_heads": 4}


def _timm(name: str, batch: int, small_sizes: Mapping[str, Any] | None = None, small_image: int = _SMALL_IMAGE) -> SuiteModel:
    def build(batch: int, small: bool, dtype: torch.dtype) -> Built:
        import timm

        chosen = {"num_classes": _SMALL_CLASSES, **(small_sizes or {})} if small else {}
        model = timm.create_model(name, pretrained=False, **chosen)
        channels, image, _ = model.default_cfg["input_size"]
        if small:
            image = chosen.get("img_size", small_image)
        return Built(model.eval().to(dtype), (torch.randn(batch, channels, image, image).to(dtype),))

    return SuiteModel(batch, build, "timm")


TIMM: Mapping[str, SuiteModel] = {
    "adv_inception_v3": _timm("adv_inception_v3", 128, small_image=96),
    "beit_base_patch16_224": _timm("beit_base_patch16_224", 128, _SMALL_TRANSFORMER | {"img_size": 64}),
    "convnextv2_nano.fcmae_ft_in22k_in1k": _timm(
        "convnextv2_nano.fcmae_ft_in22k_in1k", 128, {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)}
    ),
    "deit_base_distilled_patch16_224": _timm("deit_base_distilled_patch16_224", 128, _SMALL_TRANSFORMER | {"img_size": 64}),
    "deit_tiny_patch16_224.fb_in1k": _timm("deit_tiny_patch16_224.fb_in1k", 128, _SMALL_TRANSFORMER | {"img_size": 64}),
    "dm_nfnet_f0": _timm("dm_nfnet_f0", 128),
    "ghostnet_100": _timm("ghostnet_100", 512),
    "inception_v3": _timm("inception_v3", 128, small_image=96),
    "mobilenetv2_100": _timm("mobilenetv2_100", 128),
    "mobilenetv3_large_100": _timm("mobilenetv3_large_100", 512),
    "mobilevit_s": _timm("mobilevit_s", 128),
    "nfnet_l0": _timm("nfnet_l0", 128),
    "repvgg_a2": _timm("repvgg_a2", 128),
    "swin_base_patch4_window7_224": _timm("swin_base_patch4_window7_224", 128, _SMALL_SWIN),
    "tf_efficientnet_b0": _timm("tf_efficientnet_b0", 128),
    "visformer_small": _timm("visformer_small", 128, _SMALL_VISFORMER),
    "vit_base_patch14_dinov2.lvd142m": _timm("vit_base_patch14_dinov2.lvd142m", 128, _SMALL_TRANSFORMER),
    "vit_base_patch16_siglip_256": _timm("vit_base_patch16_siglip_256", 128, _SMALL_TRANSFORMER | {"img_size": 64}),
}


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
