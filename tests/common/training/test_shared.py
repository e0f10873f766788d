"""One trains, all have it."""

import pytest
import torch
from torch import nn

from ritornello.common.training.shared import train_once


def test_the_first_trains_and_the_others_read(tmp_path):
    trained = []

    def train():
        model = nn.Linear(2, 3)
        trained.append(model)
        return model

    file = tmp_path / "run" / "model.safetensors"
    models = [train_once(file, train=train, build=lambda: nn.Linear(2, 3)) for _ in range(3)]
    assert len(trained) == 1
    assert all(torch.equal(model.weight, trained[0].weight) for model in models)
    assert len({id(model) for model in (*models, *trained)}) == 4, "each cell has its own model"


def test_a_training_that_fails_leaves_nothing_behind(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_once(file, train=lambda: (_ for _ in ()).throw(KeyboardInterrupt), build=nn.Identity)
    assert not file.exists()
    model = nn.Linear(1, 1)
    read = train_once(file, train=lambda: model, build=lambda: nn.Linear(1, 1))
    assert torch.equal(read.weight, model.weight)
