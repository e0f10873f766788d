"""The published text pipeline's values (tests/golden/magpie): exact, embeddings rtol 1e-4."""

import json

import numpy as np
import pytest
import torch

from ritornello.common.chat import GenerationParams
from ritornello.common.chat.sampling import first_token_logits
from ritornello.methods.magpie import (
    NearestNeighborDeduplicator,
    build_preferences,
    filter_rows,
    longest,
    sanitize_instruction,
)
from ritornello.methods.magpie.sanitizer import multiple_choice_end, remove_prefix


@pytest.fixture(scope="module")
def values(golden):
    return json.loads((golden / "magpie" / "text_pipeline.json").read_text())


def test_official_sanitiser(values):
    for case in values["sanitize"]:
        text = case["text"]
        for family in ("gemma-2", "llama-3"):
            assert list(sanitize_instruction(text, family, "official")) == case[family], text
        assert list(sanitize_instruction(text)) == case["other"]
        assert remove_prefix(text) == case["remove_prefix"]
        is_choice, end = case["mcq"]
        assert multiple_choice_end(text) == (end if is_choice else None)


def test_notebook_filter_and_longest_responses(values):
    case = values["filter"]
    kept = filter_rows(case["rows"], "notebook")
    assert [row["conversation_id"] for row in kept] == case["kept_ids"]
    top = longest(kept, case["top_k"])
    assert sorted(row["conversation_id"] for row in top) == case["longest_ids"]


def test_preference_picks(values):
    for case in values["preference"]:
        responses = [f"answer {i}" for i in range(len(case["scores"]))]
        row = {"instruction": "q", "responses": responses, "rewards": case["scores"]}
        pair = build_preferences([row], ties="keep")[0]
        assert pair["chosen"][1]["content"] == responses[case["chosen_index"]]
        assert pair["rejected"][1]["content"] == responses[case["rejected_index"]]


def test_first_token_processors(values):
    """ "Flaming" scales the first logits; banned ids cannot be drawn (ours: -inf, not -1e4)."""
    case = values["logits_processors"]
    logits = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0))
    flaming = first_token_logits(logits, GenerationParams(first_token_temperature=1.2))
    torch.testing.assert_close(
        flaming / logits, torch.full_like(logits, case["flaming_first_scale"])
    )
    banned = GenerationParams(banned_first_token_ids=tuple(case["de_md_masked_ids"]))
    masked = first_token_logits(logits, banned)
    changed = (masked != logits).any(0).nonzero().flatten().tolist()
    assert changed == sorted(case["de_md_masked_ids"])
    assert (masked[:, changed] <= case["de_md_value"]).all()


def test_flat_index_neighbours(golden):
    arrays = np.load(golden / "magpie" / "dedup.npz")
    found = NearestNeighborDeduplicator().fit(arrays["embeddings"])
    np.testing.assert_allclose(
        found.min_neighbor_distance, arrays["min_neighbor_distance"], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(found.repeat_count, arrays["repeat_count"])
    np.testing.assert_array_equal(found.min_similar_index, arrays["min_similar_index"])
