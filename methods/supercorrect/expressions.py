"""Equality of two mathematical expressions in LaTeX or plain notation.

A recursive-descent parser evaluates both at fixed points with 50 digits (mpmath): two expressions
are equal when they agree to 30 digits at all of them. Nothing is simplified and nothing executed,
so the time is bounded by the length of the text; powers are bounded by `MAX_EXPONENT`.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from mpmath.ctx_mp import MPContext

MAX_LENGTH = 400
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 1_000
# Where variables are evaluated: no special relations, both signs, off the real axis once.
_POINTS = ((0.7310585786, 0.0), (-1.3862943611, 0.0), (2.2360679774, 0.6180339887))
_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "ln", "exp")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*|\.\d+)|\\(?P<command>[A-Za-z]+)|(?P<word>"
    + "|".join(sorted((*_FUNCTIONS, "sqrt", "log", "pi"), key=len, reverse=True))
    + r")|(?P<letter>[A-Za-zπ])|(?P<sign>\*\*|[-+*/^_(){}\[\]|!,=]))"
)
_RATIONAL = re.compile(
    r"(?P<sign>-?)(?:(?P<whole>\d+(?:\.\d+)?)|\\frac\{(?P<top>-?\d+)\}\{(?P<bottom>-?\d+)\})"
)


class _Unreadable(Exception):
    pass


def expressions_equal(a: str, b: str) -> bool:
    """Whether both parse and agree; see `answers_equal` for the tolerance of decimals."""
    if max(len(a), len(b)) > MAX_LENGTH:
        return False
    if a.count("=") == 1 and b.count("=") == 1:  # equations: equal up to a factor is not tried
        sides = [text.split("=") for text in (a, b)]
        return all(expressions_equal(x, y) for x, y in zip(*sides, strict=True)) or all(
            expressions_equal(x, y) for x, y in zip(sides[0], reversed(sides[1]), strict=True)
        )
    decimal = "." in a or "." in b
    left, right = _rational(a), _rational(b)
    if left is not None and right is not None:
        difference, scale = abs(left - right), max(abs(left), abs(right))
        return difference <= (scale / 10_000 if decimal else 0)
    context = _context()
    try:
        for point in _POINTS:
            first, second = (_Parser(text, point, context).value() for text in (a, b))
            if not (context.isfinite(first) and context.isfinite(second)):
                return bool(first == second)
            scale = max(abs(first), abs(second), context.mpf(10) ** -20)
            tolerance = context.mpf(10) ** (-4 if decimal else -30)
            if not abs(first - second) <= tolerance * scale:
                return False
    except (_Unreadable, ArithmeticError, ValueError, RecursionError):
        return False
    return True


@lru_cache(maxsize=1)
def _context() -> "MPContext":
    """Arithmetic with 50 digits; its precision never changes, so threads may share it."""
    import mpmath

    context = mpmath.mp.clone()
    context.dps = 50
    return context


def _rational(text: str) -> Fraction | None:
    """Integers, decimals and fractions of integers, exactly."""
    match = _RATIONAL.fullmatch(text)
    if match is None:
        return None
    whole, top, bottom = match["whole"], match["top"], match["bottom"]
    if whole is None and int(bottom) == 0:
        return None
    value = Fraction(whole) if whole is not None else Fraction(int(top), int(bottom))
    return -value if match["sign"] else value


class _Parser:
    """Evaluates one expression while it reads it: sum > product > sign > power > atom."""

    def __init__(self, text: str, point: tuple[float, float], context: "MPContext") -> None:
        self.context = context
        self.point = point
        self.tokens: list[tuple[str, str]] = []
        cursor = 0
        while cursor < len(text.rstrip()):
            match = _TOKEN.match(text, cursor)
            if match is None:
                raise _Unreadable(text)
            assert match.lastgroup is not None  # every alternative is a named group
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            cursor = match.end()
        self.place = 0

    def value(self) -> Any:
        result = self._sum()
        if self.place != len(self.tokens):
            raise _Unreadable
        return result

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "")

    def _take(self, *texts: str) -> bool:
        if self._peek()[1] in texts:
            self.place += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise _Unreadable

    def _sum(self) -> Any:
        result = self._product()
        while self._peek()[1] in ("+", "-"):
            sign = 1 if self._take("+") else -1
            self._take("-")
            result = result + sign * self._product()
        return result

    def _product(self) -> Any:
        result = self._signed()
        while True:
            kind, text = self._peek()
            if self._take("*", "cdot", "times"):
                result = result * self._signed()
            elif self._take("/", "div"):
                result = result / self._signed()
            elif kind in ("letter", "word") or text in (
                "(",
                "{",
                "sqrt",
                "pi",
                "frac",
                "ln",
                "log",
            ):
                result = result * self._power()  # juxtaposition
            elif kind == "command" and text in _FUNCTIONS:
                result = result * self._power()
            else:
                return result

    def _signed(self) -> Any:
        if self._take("-"):
            return -self._signed()
        self._take("+")
        return self._power()

    def _power(self) -> Any:
        base = self._postfix(self._atom())
        if not self._take("^", "**"):
            return base
        exponent = self._signed()
        if abs(exponent) > MAX_EXPONENT:
            raise _Unreadable
        return self.context.power(base, exponent)

    def _postfix(self, value: Any) -> Any:
        while self._take("!"):
            if not 0 <= value.real <= MAX_FACTORIAL:
                raise _Unreadable
            value = self.context.factorial(value)
        return value

    def _atom(self) -> Any:
        kind, text = self._peek()
        self.place += 1
        if kind == "number":
            number = self.context.mpf(text)
            if self._peek() == ("command", "frac") and "." not in text:
                return number + self._atom()  # a mixed number
            return number
        if text in ("(", "{", "[", "|"):
            result = self._sum()
            self._need({"(": ")", "{": "}", "[": "]", "|": "|"}[text])
            return abs(result) if text == "|" else result
        if text in ("pi", "π"):
            return self.context.pi
        if kind == "letter":
            return self._letter(text)
        if text in ("frac", "sqrt", "log", "infty", *_FUNCTIONS):
            return self._command(text)
        raise _Unreadable

    def _letter(self, letter: str) -> Any:
        if letter == "i":
            return self.context.mpc(0, 1)
        if letter == "e":
            return self.context.e
        if self._take("_"):
            start = self.place
            self._atom()
            subscript = (text for _, text in self.tokens[start : self.place])
            letter += "_" + "".join(subscript).strip("{}")
        shift = 0.5 + crc32(letter.encode()) / 2**32  # each variable has its own value
        return (
            self.context.mpc(self.point[0] * shift, self.point[1])
            if self.point[1]
            else (self.context.mpf(self.point[0]) * shift)
        )

    def _command(self, name: str) -> Any:
        if name == "infty":
            return self.context.inf
        if name == "frac":
            numerator, denominator = self._atom(), self._atom()
            return numerator / denominator
        if name == "sqrt":
            index = self.context.mpf(2)
            if self._take("["):
                index = self._sum()
                self._need("]")
            return self.context.root(self._atom(), int(index.real))
        if name == "log":
            base = self._subscript() if self._take("_") else self.context.mpf(10)
            return self.context.log(self._argument()) / self.context.log(base)
        names = {f"arc{stem}": f"a{stem}" for stem in ("sin", "cos", "tan")}
        function: Callable[[Any], Any] = getattr(self.context, names.get(name, name))
        exponent = self._atom() if self._take("^") else 1
        return function(self._argument()) ** exponent

    def _subscript(self) -> Any:
        kind, text = self._peek()
        if kind == "number" and len(text) > 1:  # LaTeX reads one digit: log_28 is log_2 of 8
            self.tokens[self.place] = (kind, text[1:])
            return self.context.mpf(text[0])
        return self._atom()

    def _argument(self) -> Any:
        return self._power()
