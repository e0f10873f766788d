"""Importing this module registers the ARM classifiers with timm's `create_model`."""

from typing import Any

from timm.models import register_model

from ritornello.methods.arm.classifier import ARMForImageClassification


def _create(depth: int, dim: int, pretrained: bool, options: dict[str, Any]) -> Any:
    """timm's argument names to ours; what timm adds for its own hub is not used.

    Raises:
        ValueError: `pretrained=True`: no weights come with the name.
    """
    if pretrained:
        raise ValueError(
            "pretrained=True is not served here: load the published file with "
            "model.load_state_dict(load_official_checkpoint(path))"
        )
    for unused in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        options.pop(unused, None)
    names = {"img_size": "image_size", "in_chans": "channels"}
    options = {names.get(name, name): value for name, value in options.items()}
    pool = {"avg": "mean", "token": "cls"}
    if (given := options.pop("global_pool", None)) is not None:
        options["pool"] = pool.get(given, given)
    return ARMForImageClassification(depth=depth, dim=dim, **options)


@register_model
def arm_base_patch16_224(pretrained: bool = False, **options: Any) -> ARMForImageClassification:
    """12 blocks of width 768: 85.0 M parameters."""
    return _create(12, 768, pretrained, options)


@register_model
def arm_large_patch16_224(pretrained: bool = False, **options: Any) -> ARMForImageClassification:
    """24 blocks of width 1024: 297.0 M parameters."""
    return _create(24, 1024, pretrained, options)


@register_model
def arm_huge_patch16_224(pretrained: bool = False, **options: Any) -> ARMForImageClassification:
    """24 blocks of width 1536: 662.7 M parameters."""
    return _create(24, 1536, pretrained, options)
