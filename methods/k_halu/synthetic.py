"""Questions generated from a small lexicon: every fact and every corruption is known."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ritornello.common.chat import Text
from ritornello.common.evaluation import Choice, ChoiceTarget, Sample
from ritornello.methods.k_halu.lexicon import (
    CAUSES,
    EFFECTS,
    INSTRUCTIONS,
    NAMES,
    PARTICLES,
    PEOPLE,
    PLACES,
    RELATIONS,
    SUBJECTS,
    UNSUPPORTED,
    Language,
    Relation,
    with_particle,
)
from ritornello.methods.k_halu.metrics import OPTIONS

Corruption = Literal["number_shift", "entity_swap", "negation", "relation_reversal", "unsupported"]
MAX_SYLLABLES = 120
_SHARES = (0.6, 0.3)
_NUMBERS = {"staff": (20, 900), "visitors": (1000, 90000), "rooms": (10, 200)}
_POOLS: Mapping[str, int] = {
    "located": len(PLACES),
    "director": len(PEOPLE),
    "budget": len(NAMES),
    "cause": len(CAUSES),
}


@dataclass(frozen=True)
class Fact:
    """A relation with its object: a number, or a place in the relation's word list.

    `effect` is what a cause brought about.
    """

    relation: Relation
    value: int
    effect: int = 0


@dataclass(frozen=True)
class Document:
    """A subject and the facts about it, in no language yet."""

    domain: str
    name: int
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Statement:
    """An option: a fact told rightly (`corruption` None), told wrongly, or made up."""

    corruption: Corruption | None
    fact: Fact | None
    value: int


def make_synthetic_khalu(
    n: int, seed: int, lang: Language = "ko", domains: int = 7
) -> list[Sample]:
    """Generates questions in the form of the benchmark.

    60 / 30 / 10 % of them have one / two / three right options of five, half ask for faithful and
    half for hallucinated statements; the domains take turns. Right options are paraphrases of
    facts, or corruptions of them: a number shifted by 5 to 40 % (a year by 3 to 25), an entity of
    another document in place of the own, a denial, cause and effect or the sides of a comparison
    exchanged, or a sentence of which the document says nothing. The five options of a question are
    about five different facts. The two languages give the same questions.

    Args:
        n: how many.
        seed: of all draws.
        lang: "ko" or "en".
        domains: how many of the seven domains.

    Returns:
        Samples whose `meta["corruptions"]` names the corruption of each option, None for a
        faithful one.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    if lang not in ("ko", "en"):
        raise ValueError(f"lang must be ko or en, got {lang!r}")
    if not 1 <= domains <= len(SUBJECTS):
        raise ValueError(f"domains must be in 1..{len(SUBJECTS)}, got {domains}")
    rng = np.random.default_rng(seed)
    letters = list(SUBJECTS)[:domains]
    documents = [_document(letters[i % domains], rng) for i in range(n)]
    samples = []
    for number, (n_gold, polarity) in enumerate(_mix(n, rng)):
        document = documents[number]
        faithful = n_gold if polarity == "faithful" else OPTIONS - n_gold
        statements = _statements(document, documents, faithful, rng)
        order = rng.permutation(OPTIONS)
        statements = [statements[place] for place in order]
        samples.append(_sample(number, seed, document, statements, polarity, lang))
    return samples


def _mix(n: int, rng: np.random.Generator) -> list[tuple[int, str]]:
    """Number of right options and polarity of each question."""
    one, two = (round(share * n) for share in _SHARES)
    counts = [1] * one + [2] * min(two, n - one) + [3] * max(0, n - one - two)
    pairs = [
        (count, "faithful" if place % 2 == 0 else "hallucinated")
        for place, count in enumerate(counts)
    ]
    return [pairs[place] for place in rng.permutation(n)]


def _document(domain: str, rng: np.random.Generator) -> Document:
    """A subject with five to eight facts that fit into 120 Korean syllables."""
    name = int(rng.integers(len(NAMES)))
    relations = [RELATIONS[i] for i in rng.permutation(len(RELATIONS))]
    wanted = int(rng.integers(OPTIONS, len(RELATIONS) + 1))
    facts: list[Fact] = []
    for relation in relations[:wanted]:
        fact = Fact(relation, _value(relation, name, rng), int(rng.integers(len(EFFECTS))))
        grown = Document(domain, name, (*facts, fact))
        if len(facts) < OPTIONS or _syllables(_told(grown, "ko")) <= MAX_SYLLABLES:
            facts.append(fact)
    return Document(domain, name, tuple(facts))


def _value(relation: Relation, name: int, rng: np.random.Generator) -> int:
    if relation.name == "opened":
        return int(rng.integers(1950, 2021))
    if relation.kind == "number":
        low, high = _NUMBERS[relation.name]
        return int(rng.integers(low, high))
    others = [i for i in range(_POOLS[relation.name]) if relation.name != "budget" or i != name]
    return int(rng.choice(others))


def _statements(
    document: Document, documents: Sequence[Document], faithful: int, rng: np.random.Generator
) -> list[Statement]:
    """`faithful` faithful statements, then corrupted ones, each about a fact of its own."""
    facts = [document.facts[i] for i in rng.permutation(len(document.facts))[:OPTIONS]]
    told = [Statement(None, fact, fact.value) for fact in facts[:faithful]]
    made_up = iter(rng.permutation(len(UNSUPPORTED)).tolist())
    for fact in facts[faithful:]:
        possible = _possible(fact)
        kind = possible[int(rng.integers(len(possible)))]
        if kind == "unsupported":
            told.append(Statement("unsupported", None, next(made_up)))
        elif kind == "number_shift":
            told.append(Statement("number_shift", fact, _shifted(fact, rng)))
        elif kind == "entity_swap":
            told.append(Statement("entity_swap", fact, _swapped(fact, document, documents, rng)))
        else:
            told.append(Statement(kind, fact, fact.value))
    return told


def _possible(fact: Fact) -> list[Corruption]:
    kinds: list[Corruption] = ["negation", "unsupported"]
    kinds.append("number_shift" if fact.relation.kind in ("number", "date") else "entity_swap")
    if fact.relation.reversed:
        kinds.append("relation_reversal")
    return kinds


def _shifted(fact: Fact, rng: np.random.Generator) -> int:
    sign = int(rng.choice([-1, 1]))
    if fact.relation.kind == "date":
        return fact.value + sign * int(rng.integers(3, 26))
    return fact.value + sign * max(1, round(fact.value * rng.uniform(0.05, 0.4)))


def _swapped(
    fact: Fact, document: Document, documents: Sequence[Document], rng: np.random.Generator
) -> int:
    """What another document says of the same relation; any other word where none does."""
    forbidden = {fact.value} | ({document.name} if fact.relation.name == "budget" else set())
    said = {
        other.value
        for elsewhere in documents
        for other in elsewhere.facts
        if other.relation is fact.relation
    } - forbidden
    options = said or set(range(_POOLS[fact.relation.name])) - forbidden
    return int(rng.choice(sorted(options)))


def _sample(
    number: int,
    seed: int,
    document: Document,
    statements: Sequence[Statement],
    polarity: str,
    lang: Language,
) -> Sample:
    column = ("ko", "en").index(lang)
    right = [
        place
        for place, statement in enumerate(statements)
        if (statement.corruption is None) == (polarity == "faithful")
    ]
    name = f"synthetic-{seed}-{number}"
    return Sample(
        id=name,
        parts=(Text(_told(document, lang)),),
        choices=tuple(
            Choice.of(_said(statement, document, lang), str(place))
            for place, statement in enumerate(statements, start=1)
        ),
        target=ChoiceTarget.of(*right),
        cluster=name,
        labels={"n_gold": len(right), "polarity": polarity, "domain": document.domain},
        meta={
            "date": f"2021{number % 12 + 1:02d}{number % 28 + 1:02d}",
            "instruction": INSTRUCTIONS[polarity][column],
            "language": lang,
            "corruptions": tuple(statement.corruption for statement in statements),
            "statements": tuple(statements),
        },
    )


def _told(document: Document, lang: Language) -> str:
    column = ("ko", "en").index(lang)
    return " ".join(
        _filled(fact.relation.document[column], document, fact, fact.value, lang)
        for fact in document.facts
    )


def _said(statement: Statement, document: Document, lang: Language) -> str:
    column = ("ko", "en").index(lang)
    fact = statement.fact
    if fact is None:
        return _filled(UNSUPPORTED[statement.value][column], document, None, 0, lang)
    forms = fact.relation.option
    if statement.corruption == "negation":
        forms = fact.relation.negated
    elif statement.corruption == "relation_reversal":
        forms = fact.relation.reversed or forms
    return _filled(forms[column], document, fact, statement.value, lang)


def _filled(
    template: str, document: Document, fact: Fact | None, value: int, lang: Language
) -> str:
    column = ("ko", "en").index(lang)

    def subject(name: int) -> str:
        noun = SUBJECTS[document.domain][column]
        given = NAMES[name][column]
        return given + noun if lang == "ko" else f"{given} {noun.title()}"

    fields = {"S": subject(document.name)}
    if fact is not None:
        if fact.relation.name == "budget":
            fields["O"] = subject(value)
        elif fact.relation.name == "cause":
            noun, clause, english_noun, english_clause = EFFECTS[fact.effect]
            fields["C"] = CAUSES[value][column]
            fields["E"] = noun if lang == "ko" else english_noun
            fields["clause"] = clause if lang == "ko" else english_clause
        elif fact.relation.kind in ("place", "person"):
            fields["O"] = {"located": PLACES, "director": PEOPLE}[fact.relation.name][value][column]
        else:
            fields["O"] = str(value)

    def fill(match: re.Match[str]) -> str:
        word = fields[match[1]]
        return with_particle(word, match[2]) if match[2] else word

    particles = "".join(PARTICLES)
    text = re.sub(rf"{{(\w+?)}}(?:{{([{particles}])}})?", fill, template)
    return text[0].upper() + text[1:]


def _syllables(text: str) -> int:
    return sum("가" <= character <= "힣" for character in text)
