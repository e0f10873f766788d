"""The training augmentation survives its own extremes."""

import pytest
from PIL import Image

from ritornello.common.data.augmentation import training_transform


def test_every_operation_runs_at_its_largest_magnitude():
    pytest.importorskip("timm")
    image = Image.radial_gradient("L").resize((16, 16)).convert("RGB")
    steps = training_transform(16).transforms
    (operations,) = [step.ops for step in steps if hasattr(step, "ops")]
    assert any(operation.name.startswith("Posterize") for operation in operations)
    for operation in operations:
        operation.prob, operation.magnitude, operation.magnitude_std = 1.0, 10, 0
        assert operation(image).size == (16, 16)
    assert training_transform(16)(image).shape == (3, 16, 16)
