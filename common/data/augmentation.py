"""The augmentation of ImageNet's training recipes."""

from typing import Any


def training_transform(size: int, **options: Any) -> Any:
    """timm's transform with RandAugment (`rand-m9-mstd0.5-inc1`) and erasing of one in four.

    Args:
        size: side of the images.
        options: further arguments of `timm.data.create_transform`.
    """
    from timm.data import create_transform

    augmentation = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25}
    transform: Any = create_transform(size, is_training=True, **augmentation, **options)
    for step in transform.transforms:
        for operation in getattr(step, "ops", ()):
            if operation.name.startswith("Posterize"):
                # At its largest magnitude timm keeps no bit, which Pillow refuses by now.
                operation.level_fn = _at_least_one_bit(operation.level_fn)
    return transform


def _at_least_one_bit(level_fn: Any) -> Any:
    return lambda level, hparams: (max(1, level_fn(level, hparams)[0]),)
