"""MM-IMDb on frozen encoders: CLIP's kind, and BLIP-2's."""

import json

import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell
from ritornello.experiments.comm.arms import (
    CoMMArm,
    CrossSelfArm,
    FineTunedArm,
    FrozenArm,
    SupervisedArm,
)
from ritornello.experiments.comm.movies import FrozenTokens, Movies, QueryTokens
from ritornello.experiments.comm.training import Recipe


class Words:
    """A tokenizer of single letters."""

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = 0, 1, 2, 3

    def __call__(self, plots, *, max_length, **_):
        ids = torch.zeros(len(plots), max_length, dtype=torch.long)
        for row, plot in enumerate(plots):
            letters = [1, *(4 + ord(c) % 20 for c in plot[: max_length - 2]), 2]
            ids[row, : len(letters)] = torch.tensor(letters)
        return {"input_ids": ids}


def tiny_vision():
    from transformers import CLIPVisionConfig, CLIPVisionModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return CLIPVisionModel(CLIPVisionConfig(num_attention_heads=2, patch_size=112, **sizes))


def tiny_text():
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(vocab_size=32, dim=16, hidden_dim=16, n_layers=1, n_heads=2)
    return DistilBertModel(config), Words()


def tiny_blip2():
    from transformers import Blip2Config

    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    vision = {**size, "num_attention_heads": 2, "patch_size": 112}
    qformer = {**size, "num_attention_heads": 2, "vocab_size": 32, "use_qformer_text_input": True}
    words = {"model_type": "opt", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 32}
    return Blip2Config(
        vision_config=vision, qformer_config=qformer, text_config=words, num_query_tokens=3,
        image_text_hidden_size=8,
    )  # fmt: skip


def tiny_queries():
    from transformers import Blip2VisionModelWithProjection

    model = Blip2VisionModelWithProjection(tiny_blip2())
    torch.nn.init.normal_(model.query_tokens)
    return QueryTokens(model)


def tiny_words():
    from transformers import Blip2TextModelWithProjection

    return Blip2TextModelWithProjection(tiny_blip2()), Words()


@pytest.fixture
def mmimdb(tmp_path):
    """Three films a split."""
    from PIL import Image

    folder = tmp_path / "mmimdb"
    (folder / "dataset").mkdir(parents=True)
    splits = {"train": [f"{i:03d}" for i in range(8)], "test": [f"{i:03d}" for i in range(8, 14)]}
    (folder / "split.json").write_text(json.dumps(splits))
    for i in range(14):
        film = {"plot": ["a war" if i % 2 else "love and songs", "more"], "genres": ["Drama"]}
        film["genres"].append("War" if i % 2 else "Musical")
        (folder / "dataset" / f"{i:03d}.json").write_text(json.dumps(film))
        Image.new("RGB", (30, 40), (i, 0, 0)).save(folder / "dataset" / f"{i:03d}.jpeg")
    return folder


@pytest.mark.parametrize(
    "arm",
    [
        CoMMArm(head_hidden=16, head_dim=8),
        CrossSelfArm(hidden=16, embed_dim=8),
        FineTunedArm(head_hidden=16, head_dim=8),
        FrozenArm(),
        SupervisedArm(),
    ],
)
def test_films_train_and_are_probed(mmimdb, context, arm):
    part = Movies(
        Recipe(steps=2, batch=4, warmup_steps=1),
        {"metric": "f1_weighted", "costs": [1.0]},
        folder=str(mmimdb),
        vision=tiny_vision,
        text=tiny_text,
        tokens=8,
    )
    part.prepare()
    before = part.encoders[1].state_dict()["transformer.layer.0.ffn.lin1.weight"].clone()
    measured = list(part.measure(arm, Cell("movies", "arm", 0), context))
    assert [m.metric for m in measured] == ["f1_weighted", "f1_macro"]
    assert measured[0].value > 50  # every film is a drama
    after = part.encoders[1].state_dict()["transformer.layer.0.ffn.lin1.weight"]
    assert torch.equal(before, after)


@pytest.mark.parametrize("arm", [CoMMArm(head_hidden=16, head_dim=8), FrozenArm()])
def test_films_are_probed_on_blip2(mmimdb, context, arm):
    part = Movies(
        Recipe(steps=1, batch=4, warmup_steps=0),
        {"costs": [1.0]},
        folder=str(mmimdb),
        vision=tiny_queries,
        text=tiny_words,
        tokens=8,
    )
    part.prepare()
    measured = list(part.measure(arm, Cell("movies", "arm", 0), context))
    assert [m.metric for m in measured] == ["f1_weighted", "f1_macro"]


def test_blip2_gives_its_queries_of_a_picture_and_the_words_of_a_text():
    """BLIP-2 projects and normalises the queries' output; texts are read without queries."""
    vision, (text, words) = tiny_queries().eval(), tiny_words()
    pictures = torch.randn(2, 3, 224, 224)
    queries = FrozenTokens(vision)(pictures)["token_embeddings"]
    assert queries.shape == (2, 3, 16)
    projected = torch.nn.functional.normalize(vision.model.vision_projection(queries), dim=-1)
    torch.testing.assert_close(vision.model(pictures).image_embeds, projected)
    ids = words(["a war", "love"], max_length=8)["input_ids"]
    tokens = FrozenTokens(text.eval(), words.pad_token_id)(ids)
    assert tokens["token_embeddings"].shape == (2, 8, 16)
    assert tokens["attention_mask"].sum(dim=1).tolist() == [1, 2]
    longer = FrozenTokens(text, words.pad_token_id)(torch.nn.functional.pad(ids, (0, 3)))
    torch.testing.assert_close(longer["token_embeddings"][:, :4], tokens["token_embeddings"][:, :4])


def test_a_missing_film_folder_is_told():
    with pytest.raises(UserError, match=r"settings\.mmimdb"):
        Movies(Recipe(steps=1)).prepare()
