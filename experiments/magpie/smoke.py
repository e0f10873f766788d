"""Stand-ins that make the smoke profile run in seconds: a short training, hashed words."""

import hashlib

import numpy as np

from ritornello.experiments.magpie.toy_world import make_world, toy_tokenizer, train_toy_model


def barely_trained_model():
    """The toy world's model after as many steps as it takes to end its turns."""
    world = make_world()
    return train_toy_model(world, toy_tokenizer(world), loss_on="all", steps=80)


def toy_world_tokenizer():
    """The toy world's tokenizer."""
    return toy_tokenizer(make_world())


class WordHashEncoder:
    """Sentences to the normalised sum of one random direction per word."""

    def encode(self, sentences: list[str]) -> np.ndarray:
        rows = np.zeros((len(sentences), 16), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            for word in sentence.split() or ["<empty>"]:
                key = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
                rows[row] += np.random.default_rng(key).standard_normal(16)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)
