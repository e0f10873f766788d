"""Conversion replaces what it knows and lists what it does not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ritornello.methods.umup import functional as U
from ritornello.methods.umup import param_groups
from ritornello.methods.umup.convert import unit_scale
from ritornello.methods.umup.modules import Embedding, LayerNorm, Linear, LinearReadout


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        x = torch.tanh(self.up(x))[..., :8] + x
        return self.head(x)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_modules_functions_and_residual_sums_become_unit_scaled():
    converted, report = unit_scale(Net(), generator=generator())
    kinds = [type(converted.get_submodule(n)) for n in ("embedding", "norm", "up", "head")]
    assert kinds == [Embedding, LayerNorm, Linear, LinearReadout]
    assert report.unmapped == ["tanh: function tanh"]
    assert sum("residual sum" in line for line in report.changed) == 2
    param_groups(converted, 1.0)
    ids = torch.arange(6)[None] % 7
    taus = [1.0, 2**-0.5]
    x = U.embedding(ids, converted.embedding.weight)
    x = U.residual_apply(
        lambda b: converted.down(U.gelu(converted.up(U.layer_norm(b)))), x, taus[0]
    )
    x = U.residual_apply(lambda b: torch.tanh(converted.up(b))[..., :8], x, taus[1])
    expected = converted.head(x)
    out = converted(ids)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn(out.shape, generator=generator())
    weights = list(converted.parameters())
    ours = torch.autograd.grad(out, weights, upstream)
    for a, b in zip(ours, torch.autograd.grad(expected, weights, upstream), strict=True):
        torch.testing.assert_close(a, b)


def test_the_original_is_left_alone():
    net = Net()
    before = net.up.weight.clone()
    unit_scale(net, generator=generator())
    assert type(net.up) is nn.Linear
    assert torch.equal(net.up.weight, before)


def test_untraceable_code_and_unknown_modules_are_listed():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.out = nn.Bilinear(4, 4, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.mix(x, x) if x.sum() > 0 else x)

    converted, report = unit_scale(Odd())
    assert isinstance(converted.out, LinearReadout)
    assert any("Bilinear" in line for line in report.unmapped)
    assert any("not traceable" in line for line in report.unmapped)
    assert "Bilinear" in str(report)


def test_a_transformers_llama_becomes_a_umup_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=True, max_position_embeddings=8,
    )  # fmt: skip
    converted, report = unit_scale(transformers.LlamaForCausalLM(config))
    assert any("tie_word_embeddings" in line for line in report.changed)
    assert converted(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 11)
