"""Ranking answers by likelihood, against sums written out."""

from types import SimpleNamespace

import pytest
import torch

from ritornello.common.evaluation.multiple_choice import Question, score_choices


class Letters:
    """One token a letter, after a BOS (1)."""

    bos_token_id = 1

    def __call__(self, text):
        return {"input_ids": [1, *(ord(c) - 95 for c in text)]}


class Bigrams:
    """Predicts from the present token alone."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(30, 30, generator=generator)
        self.shapes = []

    def __call__(self, input_ids, attention_mask):
        self.shapes.append(tuple(input_ids.shape))
        # Pads are on the left.
        assert (attention_mask.diff(dim=1) >= 0).all()
        return SimpleNamespace(logits=self.table[input_ids])


QUESTIONS = [
    Question("abc", ("d", "ef"), 0),
    Question("xy", ("zzz", "ab", "c"), 2),
    Question("b", ("ba", "ab"), 1),
]


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_losses_are_summed_over_the_choice_alone(batch_size):
    model, tokenizer = Bigrams(), Letters()
    expected = {"accuracy": [], "normalised": []}
    for question in QUESTIONS:
        losses = []
        for choice in question.choices:
            ids = tokenizer(question.context)["input_ids"] + tokenizer(choice)["input_ids"][1:]
            table = model.table.log_softmax(-1)
            pairs = list(zip(ids[-len(choice) - 1 : -1], ids[-len(choice) :], strict=True))
            losses.append(-sum(table[a, b].item() for a, b in pairs))
        per_token = [loss / len(c) for loss, c in zip(losses, question.choices, strict=True)]
        for name, values in (("accuracy", losses), ("normalised", per_token)):
            expected[name].append(float(values.index(min(values)) == question.answer))
    found = score_choices(model, tokenizer, QUESTIONS, batch_size=batch_size, max_tokens=20)
    assert found.accuracy.tolist() == expected["accuracy"]
    assert found.normalised.tolist() == expected["normalised"]
    assert [rows for rows, _ in model.shapes] == [batch_size] * (7 // batch_size) + (
        [7 % batch_size] if 7 % batch_size else []
    )


def test_long_contexts_lose_their_start():
    model = Bigrams()
    score_choices(model, Letters(), QUESTIONS, batch_size=7, max_tokens=4)
    assert model.shapes == [(7, 4)]


def test_bad_input():
    with pytest.raises(ValueError, match="at least one question"):
        score_choices(Bigrams(), Letters(), [], batch_size=1, max_tokens=8)
    empty = [Question("", ("a", "b"), 0), *QUESTIONS]
    with pytest.raises(ValueError, match="a context must have at least one token"):
        score_choices(
            Bigrams(), lambda text: {"input_ids": [ord(c) - 95 for c in text]}, empty,
            batch_size=8, max_tokens=8,
        )  # fmt: skip
    with pytest.raises(ValueError, match="max_tokens=3"):
        score_choices(Bigrams(), Letters(), QUESTIONS, batch_size=1, max_tokens=3)
    with pytest.raises(ValueError, match="answer must be in"):
        Question("a", ("b", "c"), 2)
