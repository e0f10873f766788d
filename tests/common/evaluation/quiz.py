"""A small task of lettered questions."""

from dataclasses import dataclass

from ritornello.common.chat import GenerationParams, Message, Text
from ritornello.common.evaluation import Answer, Choice, ChoiceTarget, Query, Sample, Score
from ritornello.common.evaluation.options import (
    OptionParser,
    option_keys,
    render_options,
    vlmevalkit_option,
)

COLOURS = ("red", "blue", "green", "yellow")


@dataclass
class Quiz:
    """`number` questions about colours; the right option takes every slot in turn."""

    number: int = 12
    scored: bool = False
    name: str = "quiz"
    cluster_size: int = 1

    def samples(self):
        return [
            Sample(
                f"q{i}",
                (Text(f"Question {i}: which colour?"),),
                tuple(Choice.of(colour, key=colour) for colour in COLOURS),
                ChoiceTarget.of(i % 4),
                cluster=f"c{i // self.cluster_size}",
                labels={"parity": i % 2},
            )
            for i in range(self.number)
        ]

    def render(self, sample):
        shown = render_options(sample.choices)
        message = Message.user((*sample.parts, Text("\n"), *shown))
        if self.scored:
            return Query([message], continuations=tuple(f" {c.text}" for c in sample.choices))
        return Query([message], GenerationParams(max_tokens=50))

    def parse(self, sample, response):
        if self.scored:
            return {"ours": Answer(response.best)}
        texts = [choice.text for choice in sample.choices]
        keys = option_keys(len(texts))
        letter = vlmevalkit_option(response.text, dict(zip(keys, texts, strict=True)))
        official = Answer(keys.index(letter)) if letter in keys else Answer.unparsed()
        return {"ours": OptionParser(keys, texts)(response.text), "official": official}

    def score(self, sample, answer):
        return Score(float(answer.value in sample.gold))
