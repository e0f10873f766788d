"""Brings a final answer to a normal form, so that equal answers become equal strings.

`compat="qwen"` follows the rule parser published with Qwen2.5-Math, which the paper's evaluation
uses, oddities included: unit words vanish wherever they stand ("east", "a"), decimals keep trailing
zeros, "1{,}000" stays as it is. `compat="default"` shares the notation rules, not the oddities.
"""

import re
from collections.abc import Callable
from typing import Literal

Compat = Literal["default", "qwen"]

# The unit words of that parser (mostly from MathQA), alphabetically; a dot there is any character.
_UNIT_WORDS = (  # noqa: SIM905
    "a,a .,a . m,ab,acre,am,apple,are,b .,bc,by,c,c .,cc,cm,cm 2,coin,cu . m,cu cm,cube,"
    "cubic,d,d .,day,decrease,deg,degree,dm,e .,east,excess,f .,feet,ft,g,g .,gain,gal,"
    "gallon,gm,h,h .,hectare,hour,hr,inch,inches,increase,kg,km,kmh,kmph,l,lb,less,liter,"
    "litre,loss,lt,m,m east,m sqaure,man,mark,men,meter,metre,mile,min,minute,minw,mm,monkey,"
    "month,more,mp,mph,mt,mtr,no change,noon,number,o,ohm,p . m,per,percent,pi sq m,pie,pm,"
    "prime,profit,profit of rs,pure,q .,ratio,rd,rise,rounds,rs,rs .,rupee,s,s .,sec,second,"
    "soldier,sq,sq . m,sq inch,sq m,square,st,Surface,t,th,tile,toy,unit,v â € ™,way,west,"
    "woman,women,yard,year,yr,° f,π r 2,∏ cm ³"
).split(",")
_UNITS = [
    (words.split(".")[0], re.compile(rf"(^|\W){words}($|\W)"))
    for base in sorted(_UNIT_WORDS, key=len, reverse=True)
    for words in (base, f"{base}s")
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
    """ "twenty-one" -> "21"; words that are no number are passed over, as the parser does."""
    words = text.replace("-", " ").lower().split()
    known = [
        word for word in words if word in _NUMBER_WORDS or word in _SCALES or word == "hundred"
    ]
    if not known or len([w for w in known if w in _SCALES]) != len({*known} & {*_SCALES}):
        return text
    total = current = 0
    for word in known:
        if word == "hundred":
            current = max(current, 1) * 100
        elif word in _SCALES:
            total, current = total + max(current, 1) * _SCALES[word], 0
        else:
            current += _NUMBER_WORDS[word]
    return str(total + current)


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
    plain = all("sqrt" in part or re.fullmatch(r"0|-?[1-9]\d*", part) for part in parts)
    return "\\frac{{{}}}{{{}}}".format(*parts) if plain else text


def _drop_units_anywhere(text: str) -> str:
    for _ in range(2):
        for literal, pattern in _UNITS:
            if literal in text:
                text = pattern.sub(r"\1\2", text) or text
    return text


def _drop_trailing_text(text: str) -> str:
    return re.sub(r"\\text{.*?}$", "", text).strip() or text


def _drop_trailing_unit(text: str) -> str:
    """ "5 cm" and "12 red apples" -> the number; a lone letter goes only if it is a unit."""
    match = re.fullmatch(
        r"(.*[\d}])\s*(?:\\(?:text|mbox|mathrm|textbf)\s*\{)?\s*"
        r"((?:[A-Za-z]+[\s.]*)+)(?:\^\{?\d\}?)?\}?(?:\^\{?\d\}?)?",
        text,
    )
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
_CLOSING = (
    _braced_roots,
    lambda text: text.replace(" ", ""),
    brace_fractions,
    slash_to_fraction,
)
_RULES: dict[Compat, tuple[Callable[[str], str], ...]] = {
    "qwen": (
        *_OPENING,
        _drop_trailing_text,
        _drop_units_anywhere,
        _SIGNS,
        lambda text: str(int(text)) if text.isdecimal() else word_number(text),
        _unwrap_text,
        _SYMBOLS,
        _infinity,
        _replace(("and", ""), ("\\mathbf", "")),
        lambda text: re.sub(r"\\mbox{.*?}", "", text),
        _imaginary_unit,
        _drop_decimal_zeros_of_integers,
        _leading_zero,
        _drop_short_left_side,
        *_CLOSING,
    ),
    "default": (
        *_OPENING,
        _SIGNS,
        _replace(("°", ""), ("\\;", " "), ("~", " ")),
        _drop_trailing_unit,
        _unwrap_text,
        _SYMBOLS,
        str.strip,
        lambda text: text if re.search(r"[\\\d]", text) else word_number(text),
        _drop_thousands_separators,
        lambda text: re.sub(r"\b(?<!\\)inf(inity)?\b", r"\\infty", text),
        _drop_decimal_zeros,
        _leading_zero,
        _drop_variable_name,
        *_CLOSING,
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
