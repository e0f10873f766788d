"""Audits over a real socket, the command line, and what may stand behind an endpoint."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from ritornello.common.chat import (
    FakeServer,
    Fault,
    GenerationParams,
    Message,
    OpenAIClient,
    Prompt,
    ScriptedClient,
    TransformersClient,
    replicates,
)
from ritornello.common.errors import UserError
from ritornello.common.models import tiny_causal_lm
from ritornello.experiments.model_equality_testing.experiment import RemoteEndpoint
from ritornello.experiments.model_equality_testing.served import (
    Served,
    Source,
    add_watermark,
    round_weights,
)
from ritornello.methods.model_equality_testing import (
    AuditSettings,
    audit_endpoint,
    encode_unicode,
    estimate_cost,
    records,
)
from ritornello.methods.model_equality_testing.__main__ import main

PROMPTS = ["abc", "the sea", "one two"]
SETTINGS = AuditSettings(repeats=2, alpha=0.05, max_tokens=6, length=12, n_resamples=99)


class Characters:
    """A tokenizer of single characters."""

    chat_template = None
    eos_token_id = 0

    def __call__(self, texts, add_special_tokens=False):
        return {"input_ids": [[min(ord(c), 127) for c in text] for text in texts]}

    def decode(self, ids, **options):
        ids = [ids] if isinstance(ids, int) else list(ids)
        return "".join(chr(i) for i in ids)


@pytest.fixture(scope="module")
def model():
    tiny = tiny_causal_lm(vocabulary=128, width=32, hidden=64, seed=3)
    for parameter in tiny.parameters():
        # peaked distributions, so that rounding matters
        parameter.data.mul_(20.0 if parameter.dim() > 1 else 1.0)
    tiny.generation_config.eos_token_id = 0
    return tiny


def client_of(model):
    return TransformersClient(model, Characters(), model_id="tiny")


def served_by(model):
    """An endpoint that answers with the model over HTTP."""
    return FakeServer(client_of(model))


def test_a_silently_quantised_model_is_flagged_and_an_honest_one_is_not(model):
    quantised = copy.deepcopy(model)
    round_weights(quantised.get_decoder(), bits=2, group_size=None)
    reports = {}
    for name, weights in {"honest": model, "quantised": quantised}.items():
        with served_by(weights) as server:
            reports[name] = audit_endpoint(
                OpenAIClient(server.base_url, "tiny"), client_of(model), PROMPTS[:2], 12,
                settings=SETTINGS, name=name,
            )  # fmt: skip
    assert reports["quantised"].flagged
    assert not reports["honest"].flagged
    assert reports["quantised"].rejection_rate == 1.0
    report = reports["honest"].to_json()
    assert report["asked"] == 2 * 12 * 2
    assert report["completion_tokens"] > 0
    assert len(report["p_values"]["reference"]) == 2


def test_an_interrupted_audit_goes_on_without_asking_twice(model, tmp_path):
    broken = {"from": 20}

    def misbehave(number, body):
        return Fault("status", status=401) if number >= broken["from"] else None

    def audit(server):
        endpoint = OpenAIClient(server.base_url, "tiny", max_concurrency=1)
        return audit_endpoint(
            endpoint, client_of(model), PROMPTS, 6, settings=SETTINGS, cache=tmp_path / "cache"
        )

    with FakeServer(client_of(model), misbehave=misbehave) as server:
        with pytest.raises(Exception, match="401"):
            audit(server)
        broken["from"] = 10**9
        before = len(server.requests)
        report = audit(server)
        assert len(server.requests) - before == 36 - 20
        again = audit(server)
        assert again.asked == 0
        assert again.p_values == report.p_values


def test_two_endpoints_of_one_model_do_not_share_answers(model, tmp_path):
    """The names tell providers apart, and the reference never answers for the endpoint."""
    said = {"a": ScriptedClient(lambda p, g: "a"), "b": ScriptedClient(lambda p, g: "b")}
    reference = ScriptedClient(lambda p, g: "a", model_id="tiny")
    outcome = {}
    for name, script in said.items():
        with FakeServer(script) as server:
            outcome[name] = audit_endpoint(
                OpenAIClient(server.base_url, "tiny"), reference, PROMPTS, 6,
                settings=SETTINGS, name=name, cache=tmp_path,
            )  # fmt: skip
    assert not outcome["a"].flagged
    assert outcome["b"].flagged


def test_a_composite_null_accepts_either_reference():
    served = ScriptedClient(lambda p, g: "b")
    a, b = ScriptedClient(lambda p, g: "a"), ScriptedClient(lambda p, g: "b")
    alone = audit_endpoint(served, a, PROMPTS, 6, settings=SETTINGS)
    both = audit_endpoint(served, {"fp32": a, "fp16": b}, PROMPTS, 6, settings=SETTINGS)
    assert alone.flagged
    assert not both.flagged
    assert set(both.p_values) == {"fp32", "fp16"}


def test_costs_are_told_before_anything_is_sent():
    prompts = [[Message.user("x" * 40)], "y" * 10]
    cost = estimate_cost(prompts, 5, SETTINGS, prices=(1.0, 2.0))
    assert (cost.requests, cost.prompt_tokens) == (20, 10 * (10 + 3))
    assert cost.completion_tokens == 20 * 6
    assert cost.price == pytest.approx((130 + 2 * 120) / 1e6)
    client = ScriptedClient(lambda p, g: "x")
    with pytest.raises(ValueError, match="max_price"):
        audit_endpoint(client, client, prompts, 5, settings=SETTINGS, prices=(1, 2), max_price=0)
    assert not client.calls


@pytest.mark.parametrize(
    ("prompts", "n", "message"), [([], 5, "at least one"), (["a", "a"], 5, "1 of them distinct"),
                                  (["a"], 1, "n_per_prompt >= 2")]
)  # fmt: skip
def test_an_audit_of_nothing_is_refused(prompts, n, message):
    client = ScriptedClient(lambda p, g: "x")
    with pytest.raises(ValueError, match=message):
        audit_endpoint(client, client, prompts, n)


def test_the_models_own_watermark_is_that_of_generate(model):
    """Forced continuation: logits after any token carry the processor's green list."""
    from transformers import WatermarkingConfig

    marked = copy.deepcopy(model)
    add_watermark(marked, bias=2.5)
    ids = torch.randint(1, 127, (3, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain, ours = model(ids).logits, marked(ids).logits
        last = marked(ids, logits_to_keep=1).logits
    processor = WatermarkingConfig(greenlist_ratio=0.25, bias=2.5, context_width=1)
    processor = processor.construct_processor(128, "cpu")
    for position in range(5):
        expected = processor(ids[:, : position + 1], plain[:, position])
        torch.testing.assert_close(ours[:, position], expected)
    torch.testing.assert_close(last[:, 0], ours[:, -1])
    green = (ours - plain > 1).float().mean()
    assert float(green) == pytest.approx(0.25)


def test_rounding_leaves_as_many_levels_as_bits_allow(model):
    rounded = copy.deepcopy(model)
    round_weights(rounded.get_decoder(), bits=3, group_size=8)
    weight = rounded.get_decoder().layers[0].mlp.up_proj.weight
    before = model.get_decoder().layers[0].mlp.up_proj.weight
    group, kept = weight[0, :8].detach(), before[0, :8].detach()
    assert len(torch.unique((group * 1e5).round())) <= 7
    step = kept.abs().max() / 3
    assert float((group - kept).abs().max()) <= float(step) / 2 + 1e-6
    with pytest.raises(ValueError, match="group_size=7 must divide"):
        round_weights(rounded.get_decoder(), bits=3, group_size=7)


def test_pools_are_drawn_once_and_differ_by_what_is_served(tmp_path, monkeypatch):
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path))
    loads = []

    def load():
        loads.append(1)
        return tiny_causal_lm(vocabulary=128, seed=3)

    class Chat(Characters):
        chat_template = "x"

        def apply_chat_template(self, turns, **options):
            return turns[-1]["content"] + ":"

    source = Source(load, Chat, lambda: PROMPTS[:2], '"', per_prompt=4, max_tokens=5, batch_rows=4)
    first, again = source.draw(Served(seed=1)), source.draw(Served(seed=1))
    assert len(loads) == 1
    assert first == again
    assert [len(prompt) for prompt in first] == [4, 4]
    other = source.draw(Served(seed=2))
    assert len(loads) == 2
    assert other != first
    sample = source.sample(Served(seed=1))
    assert sample.completions[0].tolist()[: len(first[0][0].token_ids)] == list(
        first[0][0].token_ids
    )
    letters = replace(source, characters=3).sample(Served(seed=1))
    assert letters.completions[0].tolist() == encode_unicode([first[0][0].text], 3)[0].tolist()
    prompt = Prompt((Message.user(PROMPTS[0]),), prefill='"')
    client = TransformersClient(load(), Chat())
    direct = client.generate(
        replicates(prompt, 4), GenerationParams(max_tokens=5, temperature=1.0, seed=1)
    )
    assert [c.token_ids for c in direct] == [c.token_ids for c in first[0]]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_command_line_tests_two_files(tmp_path, capsys):
    a = [{"prompt_id": p, "completion": f"yes {i % 2}"} for p in ("x", "y") for i in range(12)]
    b = [{"prompt_id": p, "completion": f"no way {i % 2}"} for p in ("y", "x") for i in range(12)]
    files = write(tmp_path / "a.jsonl", a), write(tmp_path / "b.jsonl", b)
    assert main(["test", *files, "--permutations", "99"]) == 3
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["different"]
    assert outcome["p_value"] == 0.01
    half = write(tmp_path / "c.jsonl", a[::2]), write(tmp_path / "d.jsonl", a[1::2])
    assert main(["test", half[0], half[0], "--kernel", "spectrum"]) == 0
    assert main(["test", files[0], str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_command_line_estimates_an_audit(tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a\n\nb\n")
    arguments = ["audit", "--base-url", "http://localhost:1", "--model", "m", "--prompts"]
    arguments += [str(prompts), "--reference", "smollm2", "--estimate", "--prices", "1", "2"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 200


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "must be an object"),
        ('{"prompt_id": 1}', "must be an object"),
        ("[1]", "must be an object"),
        ('{"prompt_id": 1, "completion": 5}', "a string or a list of token ids"),
        ("", "holds no completions"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        records.read_samples([path])


def test_completions_may_hold_line_separators(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt_id": 0, "completion": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert records.read_samples([path])[0].completions.shape == (1, 5)


def test_token_lists_and_strings_do_not_mix(tmp_path):
    tokens = write(tmp_path / "t.jsonl", [{"prompt_id": 0, "completion": [1, 2, 3]}] * 2)
    text = write(tmp_path / "s.jsonl", [{"prompt_id": 0, "completion": "abc"}] * 2)
    assert records.read_samples([tokens])[0].completions.tolist() == [[1, 2, 3]] * 2
    with pytest.raises(ValueError, match="got both"):
        records.read_samples([tokens, text])


def test_a_killed_audit_of_a_remote_endpoint_asks_for_the_rest_only(tmp_path):
    """An audit is thousands of requests at one a second."""
    served = ScriptedClient(lambda prompt, params: f"so {prompt.sample}")
    asked = replicates([Message.user("abc")], 6)
    params = GenerationParams(max_tokens=3, temperature=1.0)
    refusing = []

    def misbehave(number, body):
        return Fault("status", 404) if refusing else None

    with FakeServer(served, misbehave=misbehave) as server:
        arm = RemoteEndpoint(server.base_url, "served", requests_per_minute=None)
        arm.prepare()
        with arm.client(dict, [], tmp_path) as client:
            client.generate(asked[:4], params)
        with arm.client(dict, [], tmp_path) as client:
            client.generate(asked, params)
        assert len(server.requests) == 1 + 6
        refusing.append(True)
        with pytest.raises(UserError, match="served answered 404"):
            arm.prepare()
