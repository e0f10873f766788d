"""What is shown to the model: both official layouts, in Korean or English."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ritornello.common.evaluation import Sample

WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "ko": {
            "date": "작성일: ",
            "document": "문서: ",
            "instruction": "지시:",
            "options": "선택지: ",
            "answer": "정답: ",
            "rules": "각 선택지가 지시에 맞으면 1, 맞지 않으면 0으로 나타낸다. 다섯 숫자의 목록만 "
            "쓰고 다른 말은 쓰지 않는다.\n[예시]",
            "supported": "문서로 확인되는 문장인가? 답:",
            "yes": " 예",
            "no": " 아니오",
        },
        "en": {
            "date": "Date: ",
            "document": "Document: ",
            "instruction": "Instruction:",
            "options": "Options: ",
            "answer": "Answer: ",
            "rules": "Write 1 for every option that fits the instruction and 0 for every other. "
            "Reply with nothing but the list of five numbers.\n[Example]",
            "supported": "Does the document support this statement? Answer:",
            "yes": " Yes",
            "no": " No",
        },
    }
)
EXAMPLE = "[1, 0, 1, 1, 0]"


def words(sample: Sample) -> Mapping[str, str]:
    """The labels in the sample's language."""
    language = sample.meta["language"]
    if language not in WORDS:
        raise ValueError(f"language must be one of {sorted(WORDS)}, got {language!r}")
    return WORDS[language]


def knowledge(sample: Sample) -> str:
    """Date and document, each behind its label."""
    label = words(sample)
    date = f"{label['date']}{sample.meta['date']}"
    return f"{date}\n{label['document']}{sample.text.strip()}"


def numbered(sample: Sample) -> list[str]:
    """The options behind their 1-based numbers, their text untouched."""
    return [f"{number}. {choice.text}" for number, choice in enumerate(sample.choices, start=1)]


def likelihood_context(sample: Sample) -> str:
    """Protocol A: date, document, instruction, a line each; the options follow one at a time."""
    return f"{knowledge(sample)}\n{sample.meta['instruction']}\n"


def worked_examples(samples: Sequence[Sample]) -> str:
    """Questions with their right options, to put before the context of another one."""
    shown = []
    for sample in samples:
        options = numbered(sample)
        right = "\n".join(options[index] for index in sample.gold)
        shown.append(likelihood_context(sample) + right + "\n\n")
    return "".join(shown)


def list_prompt(sample: Sample, *, example_lines: int = 3, rules: str | None = None) -> str:
    """Protocol B: everything at once, then the start of the answer's line.

    Args:
        sample: the question.
        example_lines: how often the example list is shown; the official prompt shows one list
            three times, and weak models copy it.
        rules: how to answer; ours unless given.
    """
    label = words(sample)
    example = f"\n{label['answer']}{EXAMPLE}" * example_lines
    options = "\n".join(numbered(sample))
    return (
        f"\n{knowledge(sample)}\n{label['instruction']}{sample.meta['instruction']}\n"
        f"{rules or label['rules']}{example}\n"
        f"\n{label['options']}{options}\n{label['answer']}"
    )


def support_prompt(sample: Sample, index: int) -> str:
    """The document, one option, and whether the document supports it."""
    return (
        f"{knowledge(sample)}\n{sample.choices[index].text.strip()}\n{words(sample)['supported']}"
    )
