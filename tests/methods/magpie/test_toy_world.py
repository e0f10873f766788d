"""The arithmetic of the known world, and extraction from it after a short training."""

import numpy as np
import pytest
import torch

from ritornello.experiments.magpie import toy_world as toy


def test_queries_are_distinct_and_probabilities_follow_zipf():
    world = toy.make_world(40, seed=1)
    assert len(set(world.queries)) == 40
    assert all(2 <= len(query.split()) <= 6 for query in world.queries)
    np.testing.assert_allclose(world.probabilities * np.arange(1, 41), world.probabilities[0])
    firsts = [query.split()[0] for query in world.queries]
    assert sum(firsts.count(word) == 1 for word in firsts) >= 20


def test_decoding_exact_probabilities_at_temperature_one_gives_the_truth():
    world = toy.make_world(40)
    np.testing.assert_allclose(toy.decoded_distribution(world), world.probabilities, atol=1e-12)


def test_nucleus_on_a_hand_made_world():
    """First words a (.6), b (.3), c (.1): a nucleus of .8 keeps a and b as 2/3 and 1/3."""
    world = toy.ToyWorld(("a x", "b x", "c x"), np.array([0.6, 0.3, 0.1]), ("r", "r", "r"))
    np.testing.assert_allclose(toy.decoded_distribution(world, top_p=0.8), [2 / 3, 1 / 3, 0])
    hot = toy.decoded_distribution(world, temperature=2.0)
    roots = np.sqrt([0.6, 0.3, 0.1])
    np.testing.assert_allclose(hot, roots / roots.sum())


def test_total_variation_counts_foreign_texts():
    truth = np.array([0.5, 0.5])
    counts, others = toy.query_counts(
        toy.ToyWorld(("a", "b"), truth, ("", "")), ["a", "a", "b", "zzz"]
    )
    assert toy.total_variation(counts, others, truth) == pytest.approx(0.25)


def test_rows_that_are_drawn_twice_count_twice():
    """Computing each distinct conversation once changes nothing about the batch's mean loss."""
    world = toy.make_world(6)
    tokenizer = toy.toy_tokenizer(world)
    model = toy.build_toy_model(tokenizer, width=16)
    ids, labels = toy._conversations(world, tokenizer, "assistant")
    rows, times = torch.tensor([0, 2, 5]), torch.tensor([1, 3, 2])
    once = toy._mean_token_loss(model, ids[rows], labels[rows], times)
    drawn = rows.repeat_interleave(times)
    torch.testing.assert_close(once, model(input_ids=ids[drawn], labels=labels[drawn]).loss)


@pytest.mark.parametrize(("loss_on", "learnt"), [("all", True), ("assistant", False)])
def test_queries_can_be_extracted_only_if_they_were_trained_on(loss_on, learnt):
    from ritornello.common.chat import TransformersClient
    from ritornello.methods.magpie import ChatTemplateParts, MagpieGenerator

    world = toy.make_world(6)
    tokenizer = toy.toy_tokenizer(world)
    model = toy.train_toy_model(
        world, tokenizer, loss_on=loss_on, steps=200, batch_size=32, learning_rate=1e-2, width=32
    )
    client = TransformersClient(model, tokenizer, max_batch_rows=300)
    parts = ChatTemplateParts.from_tokenizer(tokenizer)
    drawn = MagpieGenerator(client, parts, max_new_tokens=12).instructions(300)
    counts, others = toy.query_counts(world, [query.text for query in drawn])
    distance = toy.total_variation(counts, others, world.probabilities)
    assert (distance < 0.25) == learnt
    assert (distance > 0.8) == (not learnt)
