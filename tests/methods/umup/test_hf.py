"""The Llama for transformers: generation, saving, training, export."""

import copy

import pytest
import torch

pytest.importorskip("transformers")
from transformers import LlamaConfig

from ritornello.methods.umup import AdamW, UMuP
from ritornello.methods.umup.hf import UmupLlamaForCausalLM, export_llama


def config(**changes) -> LlamaConfig:
    sizes = {
        "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 12,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-12, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": None,
    }  # fmt: skip
    return LlamaConfig(**(sizes | changes))


def model(parametrization: UMuP | None = None) -> UmupLlamaForCausalLM:
    torch.manual_seed(0)
    return UmupLlamaForCausalLM(config(), parametrization).eval()


IDS = torch.tensor([[3, 7, 2, 9, 4], [5, 5, 1, 8, 18]])


def test_generation_with_a_cache_equals_generation_without():
    llama = model()
    cached = llama.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=True)
    plain = llama.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False)
    assert cached.shape == (2, 11)
    assert torch.equal(cached, plain)


def test_left_padding_changes_nothing():
    llama = model()
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), IDS], dim=1)
    mask = (padded != 0).long()
    mask[:, 3:] = 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        expected = llama(IDS).logits
        found = llama(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
    torch.testing.assert_close(found, expected)


def test_export_to_a_plain_llama_has_the_same_logits():
    scheme = UMuP(
        attention_softmax=2.0, ffn_activation=0.5, residual_branches=1.5,
        residual_attention_ratio=0.5, loss_softmax=3.0,
    )  # fmt: skip
    llama = model(scheme).double()
    with torch.no_grad():
        expected = llama(IDS).logits
        found = export_llama(llama)(IDS).logits
    # Our norm takes its mean square in fp32.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_saved_model_loads_with_its_tags(tmp_path):
    llama = model()
    llama.save_pretrained(tmp_path)
    loaded = UmupLlamaForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, llama(IDS).logits)
    ours = {name: p.mup_type for name, p in llama.named_parameters()}
    assert {name: p.mup_type for name, p in loaded.named_parameters()} == ours
    depths = {p.mup_scaling_depth for p in loaded.decoder.layers.parameters()}
    assert depths == {2}


def test_training_with_labels_lowers_the_loss():
    llama = copy.deepcopy(model()).train()
    optimizer = AdamW(llama, 0.5)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = llama(IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    "changes",
    [{"tie_word_embeddings": True}, {"attention_bias": True}, {"hidden_act": "gelu"}],
    ids=str,
)
def test_unsupported_configurations_are_named(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        UmupLlamaForCausalLM(config(**changes))


def test_tying_later_is_refused_with_advice():
    llama = model()
    with pytest.raises(ValueError, match="untied"):
        llama.decoder.readout.weight = llama.decoder.embedding.weight
