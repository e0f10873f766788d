"""Brings a final answer to a normal form, so that equal answers become equal strings.

`compat="qwen"` follows the rule parser published with Qwen2.5-Math, which the paper's evaluation
uses, oddities included: unit words vanish wherever they stand ("east", "a"), decimals keep trailing
zeros, "1{,}000" stays as it is. `compat="default"` shares the notation rules, not the oddities.
"""

import re
from collections.abc import Callable
from typing import Literal

Compat = Literal["default", "qwen"]

# The unit words of that parser (mostly from MathQA), in the order in which it removes them, which
# matters where several stand together; a dot there is any character.
_UNIT_WORDS = (  # noqa: SIM905
    "east,degree,mph,kmph,ft,m sqaure, m east,sq m,deg,mile,q .,monkey,prime,ratio,"
    "profit of rs,rd,o,gm,p . m,lb,tile,per,dm,lt,gain,ab,way,west,a .,b .,c .,d .,e .,f .,"
    "g .,h .,t,a,h,no change,men,soldier,pie,bc,excess,st,inches,noon,percent,by,gal,kmh,c,"
    "acre,rise,a . m,th,π r 2,sq,mark,l,toy,coin,sq . m,gallon,° f,profit,minw,yr,women,feet,"
    "am,pm,hr,cu cm,square,v â € ™,are,rupee,rounds,cubic,cc,mtr,s,ohm,number,kmph,day,hour,"
    "minute,min,second,man,woman,sec,cube,mt,sq inch,mp,∏ cm ³,hectare,more,sec,unit,cu . m,"
    "cm 2,rs .,rs,kg,g,month,km,m,cm,mm,apple,liter,loss,yard,pure,year,increase,decrease,d,"
    "less,Surface,litre,pi sq m,s .,metre,meter,inch"
).split(",")
_UNITS = [  # text any match contains, pattern: left to `re` to compile and keep when it is met
    (words.split(".")[0], rf"(^|\W){words}($|\W)")
    for words in (*_UNIT_WORDS, *(f"{base}s" for base in _UNIT_WORDS))
]
_UNIT_NAMES = {unit for base in _UNIT_WORDS for unit in (base, f"{base}s")} | {"dollars", "cents"}

_SMALL_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS = {
    **{word: value for value, word in enumerate(_SMALL_NUMBERS.split())},
    **{word: 10 * value for value, word in enumerate(_TENS.split(), 2)},
}
_SCALES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}


def word_number(text: str) -> str:
    """ "twenty-one" -> "21", "twelve apples" -> "12"; text that is not one number stays."""
    words = [word for word in text.replace("-", " ").lower().split() if word != "and"]
    while words and words[-1] in _UNIT_NAMES:
        words.pop()
    whole, _, decimals = " ".join(words).partition(" point ")
    value = _spoken_integer(whole.split())
    digits = [_NUMBER_WORDS.get(word, 10) for word in decimals.split()]
    if value is None or any(digit > 9 for digit in digits):
        return text
    return f"{value}.{''.join(map(str, digits))}" if digits else str(value)


def _spoken_integer(words: list[str]) -> int | None:
    """The integer that the words name, or None where they name none or several."""
    if words == ["zero"]:
        return 0
    total, group, scale = 0, 0, max(_SCALES.values()) + 1
    for word in words:
        value = _NUMBER_WORDS.get(word, 0)
        ends_tens = 0 < value < 10 and group % 100 >= 20 and group % 10 == 0
        if value and (group % 100 == 0 or ends_tens):
            group += value
        elif word == "hundred" and group < 100:
            group = max(group, 1) * 100
        elif _SCALES.get(word, scale) < scale:
            scale = _SCALES[word]
            total, group = total + max(group, 1) * scale, 0
        else:
            return None
    return total + group or None


def _published_word_number(text: str) -> str:
    """The word reader of the published parser: words that are no number are passed over.

    Its oddities are kept: each group of words before a scale is read by its length alone ("hundred
    five" is 500), and a last scale can be counted twice ("one million two hundred thousand").
    """
    if text.isdigit():
        return str(int(text)) if len(text) < 4_300 and text.isdecimal() else text
    known = {**_NUMBER_WORDS, "hundred": 100, **_SCALES, "point": 0}
    words = [word for word in text.replace("-", " ").lower().split() if word in known]
    if not words or any(words.count(word) > 1 for word in (*_SCALES, "point")):
        return text
    point = words.index("point") if "point" in words else len(words)
    whole, decimals = words[:point], words[point + 1 :]
    scales = [scale for scale in ("billion", "million", "thousand") if scale in whole]
    places = [whole.index(scale) for scale in scales]
    if places != sorted(places):
        return text
    starts = [0, *(place + 1 for place in places)]
    groups = [whole[start:place] for start, place in zip(starts, places, strict=False)]
    factors = [_SCALES[scale] for scale in scales]
    after = [place + 1 for place in places if place + 1 < len(whole)]
    if len(whole) == 1:
        groups, factors = [whole], [1]
    elif after or not places:
        groups, factors = [*groups, whole[after[-1] if after else 0 :]], [*factors, 1]
    if not all(groups) and whole:
        return text
    total = sum(
        _published_group([known[word] for word in group]) * factor
        for group, factor in zip(groups, factors, strict=True)
        if group
    )
    if decimals and all(_NUMBER_WORDS.get(word, 10) < 10 for word in decimals):
        return str(total + float("0." + "".join(str(known[word]) for word in decimals)))
    return str(total)


def _published_group(values: list[int]) -> int:
    if len(values) in (3, 4) or (len(values) == 2 and 100 in values):
        return values[0] * values[1] + sum(values[2:])
    return sum(values) if len(values) == 2 else values[0]


def brace_fractions(text: str) -> str:
    r"""`\frac12` -> `\frac{1}{2}`, `\frac1{72}` -> `\frac{1}{72}`; malformed text is left alone."""
    arguments = text.split("\\frac")[1:]
    if any(len(argument) < 2 and not argument.startswith("{") for argument in arguments):
        return text

    def braced(match: re.Match[str]) -> str:
        first, second = match.groups()
        return f"\\frac{{{first}}}" + (f"{{{second}}}" if second is not None else "")

    return re.sub(r"\\frac(?!\{)(.)(?:(?=\{)|(.))", braced, text)


def slash_to_fraction(text: str) -> str:
    r"""`3/4` -> `\frac{3}{4}` for plain integers (and for roots)."""
    parts = text.split("/")
    if len(parts) != 2:
        return text
    plain = all("sqrt" in part or re.fullmatch(r"0|-?[1-9][0-9]*", part) for part in parts)
    return "\\frac{{{}}}{{{}}}".format(*parts) if plain else text


def _drop_units_anywhere(text: str) -> str:
    for _ in range(2):
        for literal, pattern in _UNITS:
            if literal in text:
                text = re.sub(pattern, r"\1\2", text) or text
    return text


def _drop_trailing_text(text: str) -> str:
    return re.sub(r"\\text{.*?}$", "", text).strip() or text


def _drop_trailing_unit(text: str) -> str:
    """ "5 cm" and "12 red apples" -> the number; a lone letter goes only if it is a unit."""
    match = re.fullmatch(r"(.*[\d}])(?:\\,)?\s*((?:[A-Za-z]+[\s.]*)+)(?:\^\{?\d\}?)?", text)
    if match is None or re.search(r"\\[A-Za-z]*$", match[1]):
        return text
    words = match[2].replace(".", " ").split()
    spaced = text[match.end(1)] in " \\"
    if len(words) == 1 and len(words[0]) == 1:  # 3 m, but neither 3 x nor 2a
        unit = spaced and words[0] in "ghlms"
    else:
        unit = words[0] in _UNIT_NAMES or (spaced and (len(words) > 1 or len(words[0]) > 2))
    return match[1].strip() if unit else text


def _drop_decimal_zeros_of_integers(text: str) -> str:
    text = re.sub(r"(\d+)\.0*([^\d])", r"\1\2", text)
    return re.sub(r"(\d+)\.0*$", r"\1", text)


def _drop_decimal_zeros(text: str) -> str:
    text = re.sub(r"(\.\d*?[1-9])0+(?!\d)", r"\1", text)
    return re.sub(r"(\d)\.0*(?!\d)", r"\1", text)


def _drop_thousands_separators(text: str) -> str:
    text = text.replace("{,}", ",").replace("\\,", "")
    return (
        text.replace(",", "") if re.fullmatch(r"[-+$\s]*\d{1,3}(,\d{3})+(\.\d+)?", text) else text
    )


def _imaginary_unit(text: str) -> str:
    return text.replace("j", "i") if "j" in text and "i" not in text else text


def _infinity(text: str) -> str:
    text = text.replace("infinity", "\\infty")
    return text if "\\infty" in text else text.replace("inf", "\\infty")


def _drop_short_left_side(text: str) -> str:
    parts = text.split("=")
    return parts[1] if len(parts) == 2 and len(parts[0]) <= 2 else text


def _drop_variable_name(text: str) -> str:
    return re.sub(r"^\s*[A-Za-z]{1,2}\s*=(?=[^=]*$)", "", text)


def _leading_zero(text: str) -> str:
    return f"0{text}" if text.startswith(".") else text


def _replace(*pairs: tuple[str, str]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return text

    return apply


_LAYOUT = _replace(
    ("\\!", ""),
    *((f"{size}frac", "frac") for size in "td"),
    *((f"\\{relation}q", f"\\{relation}") for relation in ("ne", "le", "ge")),
    ("\\left", ""),
    ("\\right", ""),
    ("\\{", "{"),
    ("\\}", "}"),
)
_SYMBOLS = _replace(
    *((f"{name}{sign}", "") for sign in ("=", "\\in", "\\to") for name in "xyz"),
    ("\\emptyset", "{}"),
    ("(-\\infty,\\infty)", "\\mathbb{R}"),
    ("\\%", ""),
    ("%", ""),
    (" .", " 0."),
    ("{.", "{0."),
)


def _matrices(text: str) -> str:
    text = re.sub(r"\\begin\{array\}\{.*?\}", r"\\begin{pmatrix}", text)
    return text.replace("\\end{array}", "\\end{pmatrix}").replace("bmatrix", "pmatrix")


def _unwrap_text(text: str) -> str:
    return re.sub(r"\\text\{(.*?)\}", r"\1", text)


def _unwrap_fonts(text: str) -> str:
    return re.sub(r"\\(?:text|mbox|(?:text|math)(?:bf|rm|it))\s*\{(.*?)\}", r"\1", text)


def _drop_spaces(text: str) -> str:
    r"""All but the one that ends a command: `\pi r` (`\frac a b` is braced afterwards)."""
    kept = r"(\\(?!frac)[A-Za-z]+)\s+(?=[A-Za-z])"
    return re.sub(rf"{kept}|\s", lambda match: f"{match[1]} " if match[1] else "", text)


def _braced_roots(text: str) -> str:
    return re.sub(r"\\sqrt(\w+)", r"\\sqrt{\1}", text)


_OPENING = (
    str.strip,
    lambda text: text.replace("\n", "").rstrip("."),
    _replace(("\\!", "")),
    _matrices,
    _LAYOUT,
)
_SIGNS = _replace(
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("$", ""), ("\\(", ""), ("\\)", "")
)
_FRACTIONS = (brace_fractions, slash_to_fraction)
_RULES: dict[Compat, tuple[Callable[[str], str], ...]] = {
    "qwen": (
        *_OPENING,
        _drop_trailing_text,
        _drop_units_anywhere,
        _SIGNS,
        _published_word_number,
        _unwrap_text,
        _SYMBOLS,
        _infinity,
        _replace(("and", ""), ("\\mathbf", "")),
        lambda text: re.sub(r"\\mbox{.*?}", "", text),
        _imaginary_unit,
        _drop_decimal_zeros_of_integers,
        _leading_zero,
        _drop_short_left_side,
        _braced_roots,
        lambda text: text.replace(" ", ""),
        *_FRACTIONS,
    ),
    "default": (
        *_OPENING,
        _SIGNS,
        _replace(("°", ""), ("\\;", " "), ("~", " "), ("\\varnothing", "\\emptyset")),
        _unwrap_fonts,
        _drop_trailing_unit,
        _SYMBOLS,
        str.strip,
        lambda text: text if re.search(r"[\\\d]|^-", text) else word_number(text),
        _drop_thousands_separators,
        lambda text: re.sub(r"\b(?<!\\)inf(inity)?\b", r"\\infty", text),
        _drop_decimal_zeros,
        _leading_zero,
        _drop_variable_name,
        _braced_roots,
        _drop_spaces,
        *_FRACTIONS,
    ),
}


def normalize_answer(text: str, compat: Compat = "default") -> str:
    """The normal form of an answer.

    Raises:
        ValueError: an unknown `compat`.
    """
    if compat not in _RULES:
        raise ValueError(f"compat must be one of {list(_RULES)}, got {compat!r}")
    for rule in _RULES[compat]:
        text = rule(text)
    return text
