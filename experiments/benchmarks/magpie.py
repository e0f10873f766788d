"""Magpie: drawing queries, and finding near-duplicates."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from ritornello.common.chat import TransformersClient
from ritornello.common.models import load_smollm2, load_smollm2_tokenizer
from ritornello.common.models.embedded import smollm2_directory
from ritornello.common.optional import require
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.magpie.dedup import NearestNeighborDeduplicator
from ritornello.methods.magpie.generator import MagpieGenerator
from ritornello.methods.magpie.templates import ChatTemplateParts


def benchmarks() -> Iterator[Benchmark]:
    """All comparisons of Magpie."""
    yield _queries()
    yield _duplicates()
    yield _distilabel()


def _queries() -> Benchmark:
    """As many queries under an equal budget; the peer is the official transformers fall-back."""
    model, tokenizer = load_smollm2(), load_smollm2_tokenizer()
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    client = TransformersClient(model, tokenizer)
    generator = MagpieGenerator(client, parts, temperature=0.7, max_new_tokens=32)
    ids = torch.tensor([parts.pre_query_ids] * 32)

    def ours() -> int:
        return len(generator.instructions(32))

    def peer() -> int:
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=0.7,
                top_k=0,
                max_new_tokens=32,
            )
        return len(tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True))

    return Benchmark("SmolLM2, 32 queries of up to 32 tokens", ours, peer, "generate", target=2.5)


def _distilabel() -> Benchmark:
    """The same model, template and token budget through distilabel's transformers backend.

    Raises:
        UserError: distilabel is not installed.
    """
    require("distilabel", extra="bench")
    from distilabel.models import TransformersLLM
    from distilabel.steps.tasks import MagpieGenerator as PeerGenerator

    tokenizer = load_smollm2_tokenizer()
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    client = TransformersClient(load_smollm2(), tokenizer)
    generator = MagpieGenerator(client, parts, temperature=0.7, max_new_tokens=16)
    # its own templates, "llama3" and "qwen2", do not fit this model
    step = PeerGenerator(
        llm=TransformersLLM(
            model=str(smollm2_directory()),
            torch_dtype="float32",
            use_magpie_template=True,
            magpie_pre_query_template=parts.pre_query,
            generation_kwargs={
                "max_new_tokens": 16,
                "temperature": 0.7,
                "repetition_penalty": 1.0,
            },
        ),
        only_instruction=True,
        num_rows=8,
        batch_size=8,
    )
    step.load()

    def ours() -> int:
        return len([query.text for query in generator.instructions(8)])

    def peer() -> int:
        rows, _ = next(step.process())
        return len([row["instruction"] for row in rows])

    def agree(a: int, b: int) -> None:
        if (a, b) != (8, 8):
            raise AssertionError(f"eight queries were wanted, got {a} and {b}")

    title = "SmolLM2, 8 queries of up to 16 tokens"
    name = "distilabel MagpieGenerator, transformers backend (one prompt after the other)"
    return Benchmark(title, ours, peer, name, agree=agree)


def _duplicates() -> Benchmark:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((10_000, 384)).astype(np.float32)
    points[5000:5200] = points[:200] + 0.005 * rng.standard_normal((200, 384))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    search, name = _flat_search()

    def ours() -> np.ndarray:
        return NearestNeighborDeduplicator().fit(points).min_neighbor_distance

    def peer() -> np.ndarray:
        return search(points)

    def agree(a: np.ndarray, b: np.ndarray) -> None:
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)

    title = "nearest neighbours of 10,000 x 384"
    return Benchmark(title, ours, peer, name, target=1.0, agree=agree)


def _flat_search() -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """Nearest other row by a flat index, 500 neighbours as in the official script."""
    try:
        import faiss
    except ModuleNotFoundError:
        from sklearn.neighbors import NearestNeighbors

        def brute(points: np.ndarray) -> np.ndarray:
            found = NearestNeighbors(n_neighbors=500, algorithm="brute").fit(points)
            return found.kneighbors(points)[0][:, 1] ** 2

        return brute, "scikit-learn brute force, 500 neighbours"

    def flat(points: np.ndarray) -> np.ndarray:
        index = faiss.IndexFlatL2(points.shape[1])
        index.add(points)
        return index.search(points, 500)[0][:, 1]

    return flat, "faiss.IndexFlatL2, 500 neighbours"
