"""Chains of modular arithmetic with one hard operation: problems, exact solutions, exact errors.

A problem is `n0 op n1 op n2`, evaluated from left to right modulo 7, with `+`, `*` and the hard
`a @ b = a * b + a`. A hierarchical solution annotates a hard step with a Key that composes it from
two easy facts. Text is made of single-token words, so that a tiny model reads it:

    problem     <P> 3 @ 4 + 5 :
    step        3 @ 4 <K> 3 * 4 = 5 + 3 = 1 ;     (plain style: 3 @ 4 = 1 ;)
    answer      <A> 6
    correction  #1 3 @ 4 <K> 3 * 4 = 5 + 3 = 1 ;  (or <OK> when every step is right)
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ritornello.methods.supercorrect.templates import Correction
from ritornello.methods.supercorrect.traces import Step, Trace

MODULUS = 7
OPERATORS = ("+", "*", "@")
WORDS = (
    *("<pad>", "<eos>", "<P>", ":", ";", "=", "+", "*", "@"),
    *("<K>", "<A>", "<C>", "<OK>", "#1", "#2"),
    *map(str, range(MODULUS)),
)

Style = Literal["plain", "hierarchical"]
Fact = tuple[int, int]
"""Operands of one entry of an operation's table."""


def apply(operator: str, a: int, b: int) -> int:
    """The exact result of one step."""
    if operator == "+":
        return (a + b) % MODULUS
    if operator == "*":
        return a * b % MODULUS
    return (a * b + a) % MODULUS


@dataclass(frozen=True)
class Problem:
    """`start`, then (operator, operand) of each step."""

    start: int
    moves: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        moves = " ".join(f"{operator} {operand}" for operator, operand in self.moves)
        return f"<P> {self.start} {moves} :"

    def states(self) -> list[int]:
        """Exact value before each step and after the last."""
        values = [self.start]
        for operator, operand in self.moves:
            values.append(apply(operator, values[-1], operand))
        return values

    @property
    def answer(self) -> int:
        return self.states()[-1]

    def step(self, index: int, style: Style) -> str:
        """The right text of step `index` (from 0), from the exact previous state."""
        states = self.states()
        return render_step(states[index], *self.moves[index], states[index + 1], style)

    def solution(self, style: Style) -> list[str]:
        """All right steps."""
        return [self.step(index, style) for index in range(len(self.moves))]

    def facts(self) -> Iterator[tuple[str, Fact]]:
        """Table entries needed: the hard operation also needs its multiplication."""
        for state, (operator, operand) in zip(self.states(), self.moves, strict=False):
            if operator != "+":
                yield operator, (state, operand)
            if operator == "@":
                yield "*", (state, operand)

    def first_error(self, steps: list[str]) -> int | None:
        """1-based first step whose operands or result differ from the exact ones.

        Right steps in the wrong number are an error at the first missing one.
        """
        states = self.states()
        for index, (operator, operand) in enumerate(self.moves):
            words = steps[index].split() if index < len(steps) else []
            exact = [str(states[index]), operator, str(operand)]
            if words[:3] != exact or words[-2:] != [str(states[index + 1]), ";"]:
                return index + 1
        return None


def render_step(a: int, operator: str, b: int, result: int, style: Style) -> str:
    """One step; the Key of a hard step in hierarchical style is exact even if `result` is not."""
    key = f" <K> {a} * {b} = {a * b % MODULUS} + {a}" if operator == "@" else ""
    return f"{a} {operator} {b}{key if style == 'hierarchical' else ''} = {result} ;"


@dataclass(frozen=True)
class ModularWorld:
    """Which table entries stage 1 never shows.

    Args:
        withheld: entries of `@` kept from stage 1; their multiplication is shown.
        bottleneck: entries of `*` kept from stage 1, hence also the `@` built on them.
    """

    withheld: frozenset[Fact]
    bottleneck: frozenset[Fact]

    @classmethod
    def draw(
        cls, rng: np.random.Generator, *, withheld: int = 16, bottleneck: int = 8
    ) -> "ModularWorld":
        facts = [(a, b) for a in range(MODULUS) for b in range(MODULUS)]
        order = [facts[index] for index in rng.permutation(len(facts))]
        return cls(
            withheld=frozenset(order[bottleneck : bottleneck + withheld]),
            bottleneck=frozenset(order[:bottleneck]),
        )

    def kind(self, problem: Problem) -> Literal["seen", "withheld", "bottleneck"]:
        """The rarest fact that the exact solution needs."""
        facts = list(problem.facts())
        if any(operator == "*" and fact in self.bottleneck for operator, fact in facts):
            return "bottleneck"
        if any(operator == "@" and fact in self.withheld for operator, fact in facts):
            return "withheld"
        return "seen"

    def sample(
        self, rng: np.random.Generator, problems: Sequence[Problem], count: int
    ) -> list[Problem]:
        """Draws with replacement from those problems that need no withheld fact."""
        seen = [problem for problem in problems if self.kind(problem) == "seen"]
        return [seen[index] for index in rng.integers(len(seen), size=count)]


def split_problems(rng: np.random.Generator, test: int) -> tuple[list[Problem], list[Problem]]:
    """All 3,087 problems of two steps, parted at random into those for training and `test`."""
    numbers = range(MODULUS)
    moves = list(itertools.product(OPERATORS, numbers))
    problems = [
        Problem(*parts[:1], parts[1:]) for parts in itertools.product(numbers, moves, moves)
    ]
    if not 0 < test < len(problems):
        raise ValueError(f"test must be in 1..{len(problems) - 1}, got {test}")
    order = [problems[index] for index in rng.permutation(len(problems))]
    return order[test:], order[:test]


def corrupt(problem: Problem, index: int, style: Style, rng: np.random.Generator) -> list[str]:
    """A solution whose step `index` (from 0) has a wrong result, carried on by the later steps."""
    steps, state = [], problem.start
    for position, (operator, operand) in enumerate(problem.moves):
        result = apply(operator, state, operand)
        if position == index:
            result = (result + int(rng.integers(1, MODULUS))) % MODULUS
        steps.append(render_step(state, operator, operand, result, style))
        state = result
    return steps


@dataclass(frozen=True)
class StageOneData:
    """Rows of stage 1: solving seen problems, and a warm-up of the correction format.

    The warm-up (`correction_share`) shows right solutions answered by <OK> and corrupted ones
    answered by a right step at a place that is random in `noise` of the cases: it teaches the
    format, not the skill.
    """

    world: ModularWorld
    style: Style
    correction_share: float = 0.2
    noise: float = 0.7

    def row(self, problem: Problem, rng: np.random.Generator) -> tuple[str, str]:
        """Prompt and completion of one example."""
        if rng.random() >= self.correction_share:
            return problem.text, render_solution(problem.solution(self.style), problem.answer)
        if rng.random() < 0.5:
            steps, target = problem.solution(self.style), "<OK>"
        else:
            wrong = int(rng.integers(len(problem.moves)))
            steps = corrupt(problem, wrong, self.style, rng)
            place = int(rng.integers(len(problem.moves))) if rng.random() < self.noise else wrong
            target = f"#{place + 1} {problem.step(place, self.style)}"
        return correction_prompt(problem.text, steps), target


def render_solution(steps: list[str], answer: int) -> str:
    return f"{' '.join(steps)} <A> {answer}"


def correction_prompt(problem: str, steps: list[str]) -> str:
    return f"{problem} {' '.join(steps)} <C>"


class WordSolutionTemplate:
    """The solution format of the world, for the pipeline of the method."""

    generalized = False

    def __init__(self, style: Style) -> None:
        self.style = style

    def prompt(self, problem: str, steps: Sequence[str] = ()) -> str:
        return " ".join([problem, *steps])

    def parse(self, text: str) -> Trace:
        body, _, answer = text.partition("<A>")
        steps = [f"{step.strip()} ;" for step in body.split(";") if step.strip()]
        return Trace(tuple(map(Step, steps)), answer=answer.strip() or None)

    def render(self, trace: Trace) -> str:
        return f"{' '.join(step.text for step in trace.steps)} <A> {trace.answer or ''}"


class WordCorrectionTemplate:
    """The correction format of the world; the reference solution is never shown."""

    def prompt(self, problem: str, steps: Sequence[str], solution: str | None = None) -> str:
        return correction_prompt(problem, list(steps))

    def parse(self, text: str) -> Correction | None:
        words = text.split()
        if words[:1] == ["<OK>"]:
            return Correction(None)
        if not words or words[0] not in ("#1", "#2"):
            return None
        return Correction(int(words[0][1:]), text=" ".join(words[1:]))

    def write(self, correction: Correction) -> str:
        return "<OK>" if correction.step is None else f"#{correction.step} {correction.text}"

    def pair(
        self, problem: str, steps: Sequence[str], teacher: Correction, student: Correction | None
    ) -> tuple[str, str, str]:
        rejected = self.write(student or Correction(None))
        return self.prompt(problem, steps), self.write(teacher), rejected


def read_problem(text: str) -> Problem:
    """The inverse of `Problem.text`."""
    words = text.split()[1:-1]
    moves = tuple((words[i], int(words[i + 1])) for i in range(1, len(words), 2))
    return Problem(int(words[0]), moves)


class ModularSolver:
    """Exact knowledge of the world, for `OracleTeacher`."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.format = WordCorrectionTemplate()

    def solution(self, problem: str) -> str:
        exact = read_problem(problem)
        return render_solution(exact.solution(self.style), exact.answer)

    def correction(self, problem: str, steps: Sequence[str]) -> Correction:
        exact = read_problem(problem)
        place = exact.first_error(list(steps))
        if place is None:
            return Correction(None)
        return Correction(place, text=exact.step(place - 1, self.style))

    def write(self, correction: Correction) -> str:
        return self.format.write(correction)

    def is_right_solution(self, problem: str, text: str) -> bool:
        trace = WordSolutionTemplate(self.style).parse(text)
        exact = read_problem(problem)
        return (
            trace.answer == str(exact.answer)
            and exact.first_error([step.text for step in trace.steps]) is None
        )

    def is_right_correction(
        self, problem: str, steps: Sequence[str], correction: Correction
    ) -> bool:
        exact = self.correction(problem, steps)
        if exact.step is None or correction.step != exact.step:
            return exact.step == correction.step
        problem_ = read_problem(problem)
        repaired = [*problem_.solution(self.style)[: exact.step - 1], correction.text]
        return problem_.first_error(repaired) not in range(1, exact.step + 1)
