"""The suite timm of PyTorch's dashboard: models of images by timm's names, with random weights, at the size of their images."""

from collections.abc import Mapping
from typing import Any

import torch

from mirage_eg.lab.bench.suite_model import Built, SuiteModel

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
