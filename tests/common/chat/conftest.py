"""A tiny random model with a byte tokenizer and a ChatML template."""

import pytest

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(specials + alphabet)}
    backend = Tokenizer(models.BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=specials[0],
        eos_token=specials[1],
        pad_token=specials[1],
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="session")
def model():
    from ritornello.common.models import tiny_causal_lm

    # wide initial logits, so that greedy choices are no ties and answers end at various lengths
    tiny = tiny_causal_lm(vocabulary=258, width=32, hidden=64, heads=4, key_value_heads=2, seed=3)
    for parameter in tiny.parameters():
        parameter.data.mul_(6.0) if parameter.dim() > 1 else None
    return tiny


@pytest.fixture
def client(model, tokenizer):
    from ritornello.common.chat import TransformersClient

    return TransformersClient(model, tokenizer, model_id="tiny")
