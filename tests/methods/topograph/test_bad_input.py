"""Every documented error names the argument and what is accepted."""

import pytest
import torch

from ritornello.methods.topograph import (
    DIU,
    DiceTopographLoss,
    SoftDiceCLDiceLoss,
    TopographLoss,
    betti_errors,
    component_graph,
    critical_regions,
    diu,
)

LOGITS, TARGET = torch.zeros(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.long)


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(2, 3, 4, 5, 6), TARGET, "2D images only"),
        (torch.zeros(3, 4, 5), TARGET, "logits must be"),
        (torch.zeros(0, 3, 4, 5), TARGET[:0], "must not be empty"),
        (torch.zeros(2, 3, 0, 5), TARGET[:, :0], "must not be empty"),
        (torch.zeros(2, 1, 4, 5), TARGET, "at least 2 classes"),
        (torch.zeros(2, 3, 4, 5, dtype=torch.int64), TARGET, "floating point"),
        (torch.full((2, 3, 4, 5), torch.nan), TARGET, "NaN"),
        (LOGITS, TARGET + 3, r"in \[0, 3\), got values from 3 to 3"),
        (LOGITS, TARGET - 1, r"in \[0, 3\)"),
        (LOGITS, TARGET[:1], "target must be class indices"),
        (LOGITS, TARGET.float(), "integer class indices"),
        (LOGITS, torch.zeros(2, 3, 4, 5), "one-hot"),
        (LOGITS, torch.full((2, 3, 4, 5), 1 / 3), "one-hot"),
    ],
)
@pytest.mark.parametrize("loss", [TopographLoss(), SoftDiceCLDiceLoss(), DiceTopographLoss()])
def test_losses(loss, logits, target, message):
    with pytest.raises(ValueError, match=message):
        loss(logits, target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"connectivity": 6}, "connectivity must be 4 or 8, got 6"),
        ({"aggregation": "median"}, "aggregation must be one of mean, rms"),
        ({"threshold_noise": "laplace"}, "threshold_noise must be one of"),
        ({"threshold_scale": -1.0}, "threshold_scale must be >= 0"),
        ({"backend": "fast"}, "backend must be one of auto, compiled"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        TopographLoss(**options)


def test_weights():
    with pytest.raises(ValueError, match="alpha"):
        DiceTopographLoss(-0.1)
    with pytest.raises(ValueError, match="beta"):
        DiceTopographLoss(0.1, beta=2)
    with pytest.raises(ValueError, match="iterations"):
        SoftDiceCLDiceLoss(0.5, iterations=-1)


@pytest.mark.parametrize("function", [diu, component_graph, critical_regions, betti_errors])
def test_masks(function):
    mask = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="one shape"):
        function(mask, torch.zeros(4, 5))
    with pytest.raises(ValueError, match="only 0 and 1"):
        function(mask + 0.5, mask)
    with pytest.raises(ValueError, match="2D images only"):
        function(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match="must not be empty"):
        function(torch.zeros(0, 4), torch.zeros(0, 4))


def test_other_arguments():
    mask = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="connectivity"):
        diu(mask, mask, 6)
    with pytest.raises(ValueError, match="boundary must be"):
        diu(mask, mask, boundary="open")
    with pytest.raises(ValueError, match="one image"):
        component_graph(mask[None], mask[None])
    with pytest.raises(ValueError, match="backend='cuda'"):
        critical_regions(mask, mask, backend="cuda")


def test_metric():
    with pytest.raises(ValueError, match="num_classes"):
        DIU(num_classes=1)
    metric = DIU(num_classes=2)
    with pytest.raises(ValueError, match="target must be in"):
        metric.update(TARGET, TARGET + 2)
    with pytest.raises(ValueError, match="channels"):
        metric.update(LOGITS, TARGET)
    with pytest.raises(ValueError, match="pred must be"):
        metric.update(TARGET[0], TARGET)
