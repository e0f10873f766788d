"""Models from one node of a configuration."""

from functools import partial

import pytest

from ritornello.common.chat import GenerationParams
from ritornello.common.errors import UserError
from ritornello.common.evaluation.clients import causal_lm_client, local_client
from ritornello.common.models import tiny_causal_lm


class Letters:
    """A tokenizer of one token per byte."""

    chat_template = None
    eos_token_id = 0

    def __call__(self, texts, add_special_tokens=False):
        encoded = [list(text.encode()) for text in texts]
        return {"input_ids": encoded}

    def decode(self, ids, **kwargs):
        return bytes(ids).decode(errors="replace")


def test_a_model_and_its_tokenizer_make_a_client():
    client = local_client(partial(tiny_causal_lm, vocabulary=256), Letters, max_batch_rows=2)
    (answer,) = client.generate(["abc"], GenerationParams(max_tokens=4))
    assert 1 <= len(answer.token_ids) <= 4
    assert client.max_batch_rows == 2
    assert "scores" in client.capabilities


def test_a_checkpoint_that_is_not_there_is_told():
    with pytest.raises(UserError, match="there is no folder"):
        causal_lm_client("./nowhere", device="cpu")
