"""Clients that know the questions: what oracle, chance and bad habits score, exactly.

>>> client = scripted(task, oracle, write=letters)          # doctest: +SKIP
>>> evaluate(task, client)                                  # doctest: +SKIP

A *policy* picks options of a sample; `write` puts them into the words that the task reads. Where a
task has continuations scored, the picked ones (continuation i belongs to option i) are likely and
the others are not.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from ritornello.common.chat.protocol import GenerationParams, Prompt
from ritornello.common.chat.scripted import ScriptedClient
from ritornello.common.evaluation.chance import most_frequent
from ritornello.common.evaluation.options import Style, option_keys
from ritornello.common.evaluation.sample import Sample, SampleError
from ritornello.common.evaluation.task import Task

Policy = Callable[[Sample], Sequence[int]]
Write = Callable[[Sample, Sequence[int]], str]
_REFUSAL = "I'm sorry, but I can't help with that."
_UNLIKELY = -1000.0


def letters(sample: Sample, picked: Sequence[int], style: Style = "A.") -> str:
    """The keys of the picked options, with a comma between them."""
    keys = option_keys(len(sample.choices), style)
    return ", ".join(keys[index] for index in picked)


def scripted(task: Task, policy: Policy, *, write: Write = letters, name: str) -> ScriptedClient:
    """A client that answers each of the task's prompts by a policy.

    Args:
        task: whose questions are rendered once, at the first call.
        policy: picks options.
        write: the reply that means them.
        name: the client's `model_id`.

    Raises:
        SampleError: (when asked) a prompt is none of the task's, or stands for two questions
            with different right answers, so that no client could answer both.
    """
    known: dict[str, tuple[Sample, tuple[str, ...]]] = {}

    def asked(prompt: Prompt) -> tuple[Sample, tuple[str, ...]]:
        if not known:
            for sample in task.samples():
                query = task.render(sample)
                entry = (sample, query.continuations)
                other, _ = known.setdefault(_key(query.asked), entry)
                if other.target != sample.target:
                    raise SampleError(f"samples {other.id} and {sample.id} have one prompt")
        found = known.get(_key(prompt))
        if found is None:
            raise SampleError(f"a prompt is none of {task.name}: {str(prompt.content())[:120]}")
        return found

    def score(prompt: Prompt, continuation: str) -> tuple[float]:
        sample, continuations = asked(prompt)
        return (0.0 if continuations.index(continuation) in policy(sample) else _UNLIKELY,)

    def reply(prompt: Prompt, params: GenerationParams) -> str:
        sample, _ = asked(prompt)
        return write(sample, policy(sample))

    return ScriptedClient(reply, score=score, model_id=name)


def saying(text: str = _REFUSAL, *, name: str = "refuser") -> ScriptedClient:
    """A client that says the same to everything; by default it refuses."""
    return ScriptedClient(lambda prompt, params: text, model_id=name)


def oracle(sample: Sample) -> Sequence[int]:
    """The right options."""
    return sample.gold


def liar(sample: Sample) -> Sequence[int]:
    """As many wrong options as there are right ones, or all wrong ones if they are fewer."""
    wrong = [index for index in range(len(sample.choices)) if index not in sample.gold]
    return wrong[: len(sample.gold)]


def fixed_slot(slot: int) -> Policy:
    """Always the same place."""
    return lambda sample: (slot % len(sample.choices),)


def fixed_content(key: str) -> Policy:
    """Always the option with this key, wherever it stands; the first one where it is absent."""

    def pick(sample: Sample) -> Sequence[int]:
        keys = [choice.key for choice in sample.choices]
        return (keys.index(key) if key in keys else 0,)

    return pick


def frequency(samples: Sequence[Sample]) -> Policy:
    """Always the right answer that is most frequent among `samples`."""
    picked = most_frequent(samples)
    return lambda sample: picked


def uniform(seed: int) -> Policy:
    """As many options as are right, drawn uniformly; from the seed and the sample's id alone."""

    def pick(sample: Sample) -> Sequence[int]:
        rng = keyed_generator(seed, sample.id)
        drawn = rng.choice(len(sample.choices), len(sample.gold), replace=False)
        return sorted(drawn.tolist())

    return pick


def uniform_single(seed: int) -> Policy:
    """One option, drawn uniformly."""
    return lambda sample: (int(keyed_generator(seed, sample.id).integers(len(sample.choices))),)


def uniform_subset(seed: int) -> Policy:
    """A set of options, drawn uniformly from the non-empty ones."""

    def pick(sample: Sample) -> Sequence[int]:
        bits = int(keyed_generator(seed, sample.id).integers(1, 2 ** len(sample.choices)))
        return [index for index in range(len(sample.choices)) if bits >> index & 1]

    return pick


def rambling(number: int) -> Write:
    """One of ten awkward ways of naming a single lettered option."""
    forms = (
        "{key}",
        "({key})",
        "**{key}**",
        "{key}.",
        "The answer is {key}.",
        "Well, let me think about it.\n\nAnswer: ({key})",
        'I reason step by step. {{"answer": "{key}"}}',
        "It could be many things.\n{key}",
        "I looked at every option, and the correct answer is **{key}**, without a doubt.",
        "Clearly it must be {text}",
    )

    def write(sample: Sample, picked: Sequence[int]) -> str:
        (index,) = picked
        key = option_keys(len(sample.choices))[index]
        return forms[number % len(forms)].format(key=key, text=sample.choices[index].text)

    return write


def keyed_generator(seed: int, key: object) -> np.random.Generator:
    """Random numbers of one question: they depend on no other, nor on the order of asking."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))


def _key(prompt: Prompt) -> str:
    return hashlib.blake2b(repr(prompt.content()).encode(), digest_size=16).hexdigest()
