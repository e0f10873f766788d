"""The local client equals plain `generate` and plain scoring, whatever the batching."""

import itertools

import pytest
import torch

from ritornello.common.chat import (
    CapabilityError,
    ContextLengthError,
    GenerationParams,
    Message,
    Prompt,
    TransformersClient,
    replicates,
)

QUESTIONS = ["Hi", "What is rain?", "Name a fruit, any fruit at all.", "x", "Why is it so?"]


def conversations(n=9):
    return [
        [Message.system("Be brief."), Message.user(f"{text} {index}")]
        for index, text in zip(range(n), itertools.cycle(QUESTIONS))
    ]


def plain_generate(model, tokenizer, text, tokens):
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(
            **ids, max_new_tokens=tokens, do_sample=False, eos_token_id=1, pad_token_id=1
        )
    return tuple(out[0, ids["input_ids"].shape[1] :].tolist())


@pytest.mark.parametrize(("rows", "pack"), [(1, False), (4, True), (32, True), (32, False)])
def test_greedy_text_equals_generate_for_every_batching(model, tokenizer, rows, pack):
    """Prefix sharing, padding, compaction, refilling and packed weights change no token."""
    client = TransformersClient(model, tokenizer, max_batch_rows=rows, pack_weights=pack)
    prompts = conversations()
    answers = client.generate(prompts, GenerationParams(max_tokens=20))
    for prompt, answer in zip(prompts, answers, strict=True):
        text = client.render(Prompt(tuple(prompt)))
        assert answer.token_ids == plain_generate(model, tokenizer, text, 20)


def test_what_some_prompts_begin_with_is_computed_once(model, tokenizer):
    """Four long questions in four variants: each question once, and no token changes."""
    computed = []
    hook = model.register_forward_pre_hook(
        lambda module, args, given: computed.append(given["input_ids"].numel()), with_kwargs=True
    )
    prompts = [f"{letter * (30 + ord(letter) % 3)} {n}" for n in "pqrs" for letter in "abcd"]
    answers = TransformersClient(model, tokenizer).generate(prompts, GenerationParams(max_tokens=4))
    hook.remove()
    assert computed[:2] == [4 * 33, 16], "the questions, then one token of each variant"
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == plain_generate(model, tokenizer, prompt, 4)


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "opt"])
def test_other_architectures_equal_generate(tokenizer, architecture):
    from ritornello.common.models import tiny_causal_lm

    model = tiny_causal_lm(architecture, vocabulary=258, width=32, hidden=64)
    for parameter in model.parameters():
        parameter.data.mul_(6.0) if parameter.dim() > 1 else None
    client = TransformersClient(model, tokenizer)
    prompts = ["abcdef", "abc", "abz which is longer"]
    answers = client.generate(prompts, GenerationParams(max_tokens=8))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == plain_generate(model, tokenizer, prompt, 8)


def test_eager_attention_equals_sdpa(model, tokenizer):
    import copy

    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    params = GenerationParams(max_tokens=12)
    prompts = conversations()
    ours = TransformersClient(eager, tokenizer).generate(prompts, params)
    theirs = TransformersClient(model, tokenizer).generate(prompts, params)
    assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in theirs]


def test_sampled_text_does_not_depend_on_batch_size_order_or_company(model, tokenizer):
    """Each request has its own generator, keyed by seed, content and replicate number."""
    params = GenerationParams(max_tokens=16, temperature=1.0, top_p=0.9, seed=7)
    prompts = [p for prompt in conversations(4) for p in replicates(prompt, 3)]
    whole = TransformersClient(model, tokenizer).generate(prompts, params)
    alone = TransformersClient(model, tokenizer, max_batch_rows=1).generate(prompts[::-1], params)
    some = TransformersClient(model, tokenizer, max_batch_rows=3).generate(prompts[5:], params)
    assert [a.text for a in whole] == [a.text for a in alone[::-1]]
    assert [a.text for a in whole[5:]] == [a.text for a in some]
    assert len({a.text for a in whole[:3]}) == 3, "replicates are independent draws"
    other = TransformersClient(model, tokenizer).generate(
        prompts, GenerationParams(max_tokens=16, temperature=1.0, top_p=0.9, seed=8)
    )
    assert [a.text for a in whole] != [a.text for a in other]


def test_sampling_follows_the_models_probabilities(model, tokenizer, client):
    """First tokens of 4,000 draws against softmax(logits / T): total variation near 0."""
    ids = tokenizer("What", add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        probs = torch.softmax(model(ids).logits[0, -1] / 2.0, -1)
    answers = TransformersClient(model, tokenizer, max_batch_rows=1000).generate(
        replicates("What", 4000), GenerationParams(max_tokens=1, temperature=2.0)
    )
    counts = torch.bincount(
        torch.tensor([answer.token_ids[0] for answer in answers]), minlength=probs.numel()
    )
    distance = (counts / 4000 - probs).abs().sum() / 2
    # expected distance of 4000 true draws is at most sqrt(K / (2 pi n)), K effective tokens
    assert distance < 0.5 * (258 / (2 * torch.pi * 4000)) ** 0.5 + 0.05


def test_logprobs_are_those_of_the_plain_model(model, tokenizer, client):
    prompt = conversations(1)[0]
    answer = client.generate(
        [prompt, "other"], GenerationParams(max_tokens=6, temperature=1.5, logprobs=3)
    )[0]
    text = client.render(Prompt(tuple(prompt)))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([ids + list(answer.token_ids)])).logits[0]
    logprobs = torch.log_softmax(logits, -1)[len(ids) - 1 : -1]
    expected = logprobs.gather(1, torch.tensor(answer.token_ids)[:, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, rtol=1e-4, atol=1e-4)
    best = max(answer.top_logprobs[0].values())
    assert best == pytest.approx(logprobs[0].max().item(), abs=1e-4)
    assert 1 <= len(answer.top_logprobs[0]) <= 3, "bytes that are no text share a name"


def test_scores_equal_one_full_pass_per_continuation(model, tokenizer, client):
    prompts = [*conversations(5), "raw text with a blank "]
    options = [["yes", " no", "a much longer continuation", "z"]] * 5 + [["yes", "no"]]
    scores = client.score_continuations(prompts, options)
    for prompt, texts, score in zip(prompts, options, scores, strict=True):
        context = client.render(Prompt(text=prompt) if isinstance(prompt, str) else Prompt(prompt))
        start = len(tokenizer(context.rstrip(" "), add_special_tokens=False)["input_ids"])
        for text, tokens, greedy in zip(texts, score.tokens, score.greedy, strict=True):
            ids = torch.tensor(tokenizer(context + text, add_special_tokens=False)["input_ids"])
            with torch.inference_mode():
                logprobs = torch.log_softmax(model(ids[None]).logits[0], -1)[start - 1 : -1]
            expected = logprobs.gather(1, ids[start:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(tokens), expected, rtol=1e-4, atol=1e-4)
            assert greedy == bool((logprobs.argmax(-1) == ids[start:]).all())


def test_scores_do_not_depend_on_the_batch(model, tokenizer):
    prompts, options = conversations(7), [["a", "bcd"]] * 7
    many = TransformersClient(model, tokenizer).score_continuations(prompts, options)
    single = TransformersClient(model, tokenizer, max_batch_rows=1).score_continuations(
        prompts, options
    )
    for a, b in zip(many, single, strict=True):
        assert a.total == pytest.approx(b.total, abs=1e-4)


def test_scores_hold_few_logits_at_a_time(model, tokenizer, client, monkeypatch):
    """However large the vocabulary and however many the options of one prompt."""
    from ritornello.common.chat import scoring

    options = [[text * n for text in "abcdef" for n in (1, 2, 4)]]
    expected = client.score_continuations(["Hi"], options)[0]
    vocabulary = model.config.vocab_size
    monkeypatch.setattr(scoring, "_LOGITS", 8 * vocabulary)
    held = []
    hook = model.register_forward_hook(lambda module, args, out: held.append(out.logits.numel()))
    score = client.score_continuations(["Hi"], options)[0]
    hook.remove()
    assert max(held) <= 8 * vocabulary
    assert score.greedy == expected.greedy
    for ours, theirs in zip(score.tokens, expected.tokens, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_stop_string_across_token_boundaries_cuts_the_text(model, tokenizer, client):
    """Tokens are bytes here, so every stop string of two letters spans two tokens."""
    free = client.generate(["seed text"], GenerationParams(max_tokens=40))[0]
    stop = free.text[10:13]
    place = free.text.index(stop)
    cut = client.generate(["seed text"], GenerationParams(max_tokens=40, stop=(stop,)))[0]
    assert cut.text == free.text[:place]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert len(cut.token_ids) < len(free.token_ids)


def test_ending_token_is_reported_and_left_out_of_the_text(model, tokenizer, client):
    free = client.generate(["ab"], GenerationParams(max_tokens=12))[0]
    end = free.token_ids[5]
    first = free.token_ids.index(end)
    answer = client.generate(["ab"], GenerationParams(max_tokens=12, stop_token_ids=(end,)))[0]
    assert answer.token_ids == free.token_ids[: first + 1]
    assert answer.stop_reason == end
    assert answer.text == tokenizer.decode(answer.token_ids[:-1])


def test_first_token_settings_touch_the_first_token_alone(client):
    free = client.generate(["ab"], GenerationParams(max_tokens=4))[0]
    banned = GenerationParams(max_tokens=4, banned_first_token_ids=(free.token_ids[0],))
    assert client.generate(["ab"], banned)[0].token_ids[0] != free.token_ids[0]
    later = GenerationParams(max_tokens=4, banned_first_token_ids=(free.token_ids[1],))
    if free.token_ids[1] != free.token_ids[0]:
        assert client.generate(["ab"], later)[0].token_ids == free.token_ids


def test_completions_arrive_as_they_end(client):
    seen = []
    answers = client.generate(
        conversations(6),
        GenerationParams(max_tokens=10),
        on_completion=lambda index, answer: seen.append((index, answer)),
    )
    assert sorted(index for index, _ in seen) == list(range(6))
    assert all(answers[index] is answer for index, answer in seen)


def test_the_model_is_untouched_after_a_call(model, client):
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    client.generate(["a"], GenerationParams(max_tokens=2))
    for name, module in model.named_modules():
        assert module.__dict__.keys() == before[name].keys()


def test_changed_weights_are_packed_again(tokenizer):
    from ritornello.common.models import tiny_causal_lm

    model = tiny_causal_lm(vocabulary=258, seed=1)
    client = TransformersClient(model, tokenizer, model_id="x")
    client.generate(["abc"], GenerationParams(max_tokens=3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    fresh = TransformersClient(model, tokenizer, pack_weights=False, model_id="x")
    params = GenerationParams(max_tokens=5, logprobs=0)
    ours, expected = (c.generate(["abc"], params)[0].logprobs for c in (client, fresh))
    assert ours == pytest.approx(expected, abs=1e-5)


def test_identity_follows_the_weights(tokenizer):
    from ritornello.common.models import tiny_causal_lm

    ids = [
        TransformersClient(tiny_causal_lm(vocabulary=258, seed=seed), tokenizer).model_id
        for seed in (0, 0, 1)
    ]
    assert ids[0] == ids[1] != ids[2]


def test_an_answer_may_end_where_the_context_does(model, tokenizer):
    client = TransformersClient(model, tokenizer, end_at_context=True)
    prompts, params = ["a" * 500, "a" * 508, "a" * 512, "a" * 600], GenerationParams(max_tokens=8)
    seen = []
    answers = client.generate(prompts, params, on_completion=lambda index, _: seen.append(index))
    assert sorted(seen) == [0, 1, 2, 3]
    whole = TransformersClient(model, tokenizer).generate(prompts[:1], params)
    assert answers[0].token_ids == whole[0].token_ids
    assert len(answers[1].token_ids) == 4
    for answer in answers[2:]:
        assert (answer.text, answer.token_ids, answer.finish_reason) == ("", (), "length")


def test_bad_requests_are_told_before_anything_runs(model, tokenizer, client):
    with pytest.raises(ContextLengthError, match="512"):
        client.generate(["a" * 500], GenerationParams(max_tokens=20))
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        client.generate([""], GenerationParams())
    with pytest.raises(ValueError, match="empty string"):
        client.score_continuations(["a"], [[""]])
    with pytest.raises(ValueError, match="one entry per prompt"):
        client.score_continuations(["a"], [])
    with pytest.raises(ValueError, match="max_batch_rows"):
        TransformersClient(model, tokenizer, max_batch_rows=0)
    assert client.generate([], GenerationParams()) == []


def test_messages_need_a_chat_template(model, tokenizer):
    import copy

    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(CapabilityError, match="messages"):
        TransformersClient(model, bare).generate([[Message.user("hi")]], GenerationParams())


def test_prefill_continues_the_answer(client):
    prompt = (Message.user("hi"),)
    text = client.render(Prompt(prompt)) + "Sure"
    params = GenerationParams(max_tokens=6)
    assert (
        client.generate([Prompt(prompt, prefill="Sure")], params)[0].token_ids
        == client.generate([text], params)[0].token_ids
    )
