"""The chat core: decoding, scoring, storing and asking, each against the usual way of doing it."""

import asyncio
import json
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from ritornello.common.chat import (
    CachedClient,
    Completion,
    FakeServer,
    Fault,
    GenerationParams,
    Journal,
    Message,
    OpenAIClient,
    ScriptedClient,
    TransformersClient,
    as_prompt,
)
from ritornello.common.models import load_smollm2, load_smollm2_tokenizer, tiny_causal_lm
from ritornello.experiments.benchmarks import Benchmark

_QUESTIONS = (
    "What is the capital of France? Answer in one short sentence.",
    "Name one fruit. Only its name.",
    "How do I bake bread?",
    "Explain gravity to a child.",
)


def benchmarks() -> Iterator[Benchmark]:
    """All comparisons of the chat core."""
    yield from _decoding()
    yield _scoring()
    yield _storing()
    yield _asking()


def _decoding() -> Iterator[Benchmark]:
    model, tokenizer = load_smollm2(), load_smollm2_tokenizer()
    tokenizer.padding_side = "left"
    client = TransformersClient(model, tokenizer)
    plain = TransformersClient(model, tokenizer, pack_weights=False)
    questions = [f"{text} ({i})" for i in range(8) for text in _QUESTIONS]
    prompts = [[Message.user(text)] for text in questions]
    texts = [client.render(as_prompt(prompt)) for prompt in prompts]
    params = GenerationParams(max_tokens=24)

    def ours() -> list[tuple[int, ...]]:
        return [answer.token_ids for answer in client.generate(prompts, params)]

    def unpacked() -> list[tuple[int, ...]]:
        return [answer.token_ids for answer in plain.generate(prompts, params)]

    def peer() -> list[tuple[int, ...]]:
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=24, do_sample=False)
        rows = out[:, batch["input_ids"].shape[1] :].tolist()
        return [_until_end(row, tokenizer.eos_token_id) for row in rows]

    name = "SmolLM2, 32 chats, 24 greedy tokens, many ending early"
    yield Benchmark(name, ours, peer, "model.generate", target=2.5, agree=_same)
    yield Benchmark(f"{name}, unpacked weights", unpacked, peer, "model.generate", target=1.3)


def _until_end(row: list[int], end: int) -> tuple[int, ...]:
    return tuple(row[: row.index(end) + 1] if end in row else row)


def _same(ours: object, theirs: object) -> None:
    if ours != theirs:
        raise AssertionError("the two sides disagree")


def _scoring() -> Benchmark:
    tokenizer = load_smollm2_tokenizer()
    model = tiny_causal_lm(
        layers=6, width=256, hidden=512, vocabulary=len(tokenizer), max_positions=2048
    )
    client = TransformersClient(model, tokenizer)
    document = "The river rose slowly through the night. " * 110
    options = ["It rained.", "The dam broke.", "Snow melted.", "A pump failed.", "Nobody knows."]

    def ours() -> list[float]:
        return list(client.score_continuations([document], [options])[0].total)

    def peer() -> list[float]:
        totals = []
        for option in options:
            start = len(tokenizer(document.rstrip(), add_special_tokens=False)["input_ids"])
            ids = tokenizer(document + option, add_special_tokens=False, return_tensors="pt")
            ids = ids["input_ids"]
            with torch.inference_mode():
                logprobs = torch.log_softmax(model(ids).logits[0, start - 1 : -1], dim=-1)
            totals.append(logprobs.gather(1, ids[0, start:, None]).sum().item())
        return totals

    def agree(a: list[float], b: list[float]) -> None:
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-3)

    name = "five options after a 900-token document"
    return Benchmark(name, ours, peer, "one full pass per option", target=3.0, agree=agree)


def _storing() -> Benchmark:
    answers = 3000
    reply = Completion("x" * 200)
    prompts = [str(i) for i in range(answers)]

    def ours() -> int:
        with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "log.jsonl") as log:
            store = Path(folder) / "cache.sqlite"
            client = CachedClient(ScriptedClient(lambda prompt, params: reply), store, journal=log)
            return len(client.generate(prompts, GenerationParams()))

    def peer() -> int:
        known = {}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "answers.pkl"
            for prompt in prompts:
                known[prompt] = json.dumps(reply.to_json())
                file.write_bytes(pickle.dumps(known))
        return len(known)

    name = f"cache and journal of {answers} answers"
    return Benchmark(name, ours, peer, "one pickle rewritten per answer", target=15.0, agree=_same)


def _asking() -> Benchmark:
    requests, wait = 320, 0.05
    prompts = [str(i) for i in range(requests)]
    late = Fault("delay", seconds=wait)

    def ours() -> int:
        server = FakeServer(ScriptedClient(lambda p, q: "ok"), misbehave=lambda n, body: late)
        with server:
            return len(OpenAIClient(server.base_url, "fake").generate(prompts, GenerationParams()))

    def peer() -> int:
        server = FakeServer(ScriptedClient(lambda p, q: "ok"), misbehave=lambda n, body: late)
        with server:
            return asyncio.run(_static_pool(server.base_url, prompts))

    name = f"{requests} requests to a server that takes {wait * 1000:.0f} ms"
    return Benchmark(name, ours, peer, "openai SDK, 32 at a time", target=0.9, agree=_same)


async def _static_pool(base_url: str, prompts: list[str]) -> int:
    from openai import AsyncOpenAI

    gate = asyncio.Semaphore(32)
    async with AsyncOpenAI(base_url=base_url, api_key="none") as sdk:

        async def ask(prompt: str) -> object:
            async with gate:
                return await sdk.completions.create(model="fake", prompt=prompt, max_tokens=8)

        return len(await asyncio.gather(*map(ask, prompts)))
