"""Simple, fixed rules that say what sampled queries look like."""

import itertools
import re
from collections.abc import Mapping, Sequence

# fmt: off
_REQUEST_WORDS = frozenset((
    "i", "i'm", "i've", "my", "can", "could", "would", "please", "what", "how", "why", "when",
    "where", "who", "which", "is", "are", "do", "does", "write", "create", "explain", "give",
    "generate", "list", "describe", "help", "suggest", "design", "develop", "tell", "provide",
))
# fmt: on
_RULES: Mapping[str, str] = {
    "Math": r"\b(solve|equation|integral|derivative|triangle|probability|fraction|sum of|algebra|"
    r"geometry|calculate|multipl\w+|polynomial|theorem|prime|math\w*|number|percent|area|volume)\b",
    "Coding & Debugging": r"\b(code|python|java|javascript|function|script|sql|html|css|program|"
    r"debug|algorithm|api|class)\b",
    "Creative writing": r"\b(story|poem|song|lyrics|haiku|novel|fiction|screenplay)\b",
    "Editing": r"\b(rewrite|rephrase|proofread|edit|grammar|paraphrase|summari[sz]e)\b",
    "Planning": r"\b(plan|schedule|itinerary|strategy|roadmap|organi[sz]e)\b",
    "Advice seeking": r"\b(should i|advice|recommend\w*|suggest\w*|tips|help me)\b",
    "Brainstorming": r"\b(ideas|brainstorm|names for)\b",
    "Data analysis": r"\b(data ?set|statistics|regression|chart|spreadsheet|analy[sz]e)\b",
    "Information seeking": r"^(what|who|when|where|which|is|are|does|do)\b",
    "Reasoning": r"^(why|how)\b",
}
_MATH = re.compile(_RULES["Math"] + r"|\d+\s*[-+*/=^]\s*\d+|\b[xyn]\s*[\^=]", re.IGNORECASE)


def is_request(text: str) -> bool:
    """Contains a question mark, or begins with one of a fixed list of request words."""
    words = re.findall(r"[A-Za-z']+", text)
    return "?" in text or bool(words and words[0].lower() in _REQUEST_WORDS)


def is_mathematical(text: str) -> bool:
    """Names a mathematical notion or holds a formula."""
    return bool(_MATH.search(text))


def rule_tag(text: str) -> str:
    """The first task tag whose key words occur; "Others" if none does."""
    lowered = text.lower()
    return next((tag for tag, rule in _RULES.items() if re.search(rule, lowered)), "Others")


def distinct_2(texts: Sequence[str]) -> float:
    """Different pairs of neighbouring words over all pairs of neighbouring words; 0 without any."""
    pairs = [pair for text in texts for pair in _bigrams(text)]
    return len(set(pairs)) / len(pairs) if pairs else 0.0


def _bigrams(text: str) -> list[tuple[str, str]]:
    words = re.findall(r"\w+", text.lower())
    return list(itertools.pairwise(words))
