"""Documents that do not fit the model: cut at their start, never at the instruction."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ritornello.common.chat import ContextLengthError, Text
from ritornello.common.evaluation import Sample


def truncate_documents(
    samples: Sequence[Sample],
    prompt: Callable[[Sample], str],
    count_tokens: Callable[[str], int],
    max_tokens: int,
) -> list[Sample]:
    """Cuts documents from the left until each prompt fits; `labels["truncated"]` says where.

    lm-evaluation-harness cuts the left of the whole context instead, date and labels first.

    Args:
        samples: questions.
        prompt: the text of a question that must fit, options included.
        count_tokens: length of a text for the model.
        max_tokens: what fits, room for a reply taken off.

    Raises:
        ContextLengthError: a question does not fit even without its document.
    """
    fitted = []
    for sample in samples:
        cut = _cut(sample, prompt, count_tokens, max_tokens)
        kept = sample.text[cut:]
        labels = {**sample.labels, "truncated": cut > 0}
        fitted.append(replace(sample, parts=(Text(kept),), labels=labels))
    return fitted


def _cut(
    sample: Sample,
    prompt: Callable[[Sample], str],
    count_tokens: Callable[[str], int],
    max_tokens: int,
) -> int:
    """Fewest characters to cut, by bisection."""

    def fits(cut: int) -> bool:
        return count_tokens(prompt(replace(sample, parts=(Text(sample.text[cut:]),)))) <= max_tokens

    low, high = 0, len(sample.text)
    if fits(0):
        return 0
    if not fits(high):
        raise ContextLengthError(
            f"sample {sample.id} needs more than {max_tokens} tokens without its document"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
