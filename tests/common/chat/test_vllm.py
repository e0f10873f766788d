"""The vLLM client against an engine with vLLM's interface: what is asked and how it is read."""

import sys
from types import SimpleNamespace

import pytest

from ritornello.common.chat import (
    ContextLengthError,
    GenerationParams,
    Message,
    VLLMClient,
    replicates,
)
from ritornello.common.chat.vllm import load_vllm
from ritornello.common.errors import UserError


class Engine:
    """Answers every prompt with the bytes "ok" and its end; log-probabilities by token id."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.settings = []
        self.prompts = []
        self.finish_reason = "stop"
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64))

    def get_tokenizer(self):
        return self.tokenizer

    def generate(self, prompts, settings, use_tqdm):
        settings = settings if isinstance(settings, list) else [settings] * len(prompts)
        self.settings += settings
        self.prompts += [prompt["prompt_token_ids"] for prompt in prompts]
        return [self._output(p["prompt_token_ids"], s) for p, s in zip(prompts, settings)]

    def _output(self, ids, settings):
        answer = [*self.tokenizer("ok")["input_ids"], self.tokenizer.eos_token_id]

        def entry(i):
            return {i: SimpleNamespace(logprob=-i / 10, rank=1 + i % 2, decoded_token=str(i))}

        text = SimpleNamespace(
            text="ok",
            token_ids=answer,
            finish_reason=self.finish_reason,
            stop_reason=None,
            logprobs=[entry(i) for i in answer],
        )
        return SimpleNamespace(
            outputs=[text],
            prompt_token_ids=ids,
            prompt_logprobs=[None, *map(entry, ids[1:])],
            num_cached_tokens=3,
        )


@pytest.fixture
def engine(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
    return Engine(tokenizer)


def test_requests_and_answers_are_translated(engine, tokenizer):
    client = VLLMClient(engine, model_id="v")
    params = GenerationParams(max_tokens=5, temperature=0.7, top_p=0.9, stop=("x",), logprobs=1)
    answers = client.generate(replicates([Message.user("hi")], 2), params)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert engine.prompts == [tokenizer(text, add_special_tokens=False)["input_ids"]] * 2
    first, second = engine.settings
    assert (first.max_tokens, first.temperature, first.top_p, first.stop) == (5, 0.7, 0.9, ["x"])
    assert first.seed != second.seed
    assert answers[0].text == "ok"
    # the engine names no stop reason for the model's own end token
    assert answers[0].stop_reason == tokenizer.eos_token_id
    assert answers[0].logprobs == tuple(-i / 10 for i in answers[0].token_ids)
    # a drawn token that is not among the asked-for alternatives is listed besides them
    expected = tuple({} if i % 2 else {str(i): -i / 10} for i in answers[0].token_ids)
    assert answers[0].top_logprobs == expected
    assert answers[0].usage.cached_tokens == 3
    assert client.generate([], params) == []


def test_an_engine_that_gave_up_and_a_prompt_too_long_are_told(engine):
    client = VLLMClient(engine, model_id="v")
    engine.finish_reason = "abort"
    answer = client.generate(["a"], GenerationParams())[0]
    assert (answer.finish_reason, "abort" in answer.error) == ("error", True)
    sent = len(engine.prompts)
    with pytest.raises(ContextLengthError, match=r"prompt 1 has 70 tokens.*64"):
        client.generate(["a", "b" * 70], GenerationParams())
    with pytest.raises(ContextLengthError, match="64"):
        client.score_continuations(["b" * 60], [["c" * 10]])
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        client.generate([""], GenerationParams())
    assert len(engine.prompts) == sent


def test_continuations_are_scored_by_prompt_logprobs(engine, tokenizer):
    scores = VLLMClient(engine, model_id="v").score_continuations(["ab"], [["c", "de"]])[0]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("c", "de")]
    assert scores.tokens == tuple(tuple(-i / 10 for i in row) for row in ids)
    assert scores.greedy == tuple(all(i % 2 == 0 for i in row) for row in ids)


def test_scoring_follows_the_rule_of_the_other_clients(engine):
    """Blanks at the prompt's end go to the continuation; a blank prompt has no score."""
    client = VLLMClient(engine, model_id="v")
    apart = client.score_continuations(["ab "], [["c"]])[0]
    assert apart.tokens == client.score_continuations(["ab"], [[" c"]])[0].tokens
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        client.score_continuations(["  "], [["c"]])
    with pytest.raises(ValueError, match="empty string"):
        client.score_continuations(["a"], [[""]])


def test_a_missing_vllm_is_told(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match="pip install vllm"):
        load_vllm("some/model")
