"""Small word problems whose thoughts and corrections are known."""

import re
from collections.abc import Sequence

import numpy as np

from ritornello.methods.supercorrect.answers import answers_equal
from ritornello.methods.supercorrect.records import MathProblem
from ritornello.methods.supercorrect.templates import Correction
from ritornello.methods.supercorrect.traces import Step, Trace, parse_trace, render_trace

_NAMES = ("Ada", "Ben", "Chloe", "Dan", "Eva", "Finn")


def shop_problems(count: int, *, seed: int) -> list[MathProblem]:
    """Two-step problems about buying and giving away; the reference solution has two lines."""
    rng = np.random.default_rng(seed)
    problems = []
    for index in range(count):
        name, other = (str(n) for n in rng.choice(_NAMES, size=2, replace=False))
        boxes, each = map(int, rng.integers(2, 10, size=2))
        given = int(rng.integers(1, boxes * each))
        text = (
            f"{name} buys {boxes} boxes of {each} pens and gives {given} pens to {other}. "
            f"How many pens does {name} keep?"
        )
        total = boxes * each
        solution = f"{boxes} * {each} = {total}\n{total} - {given} = {total - given}"
        problems.append(
            MathProblem(f"shop-{seed}-{index}", text, str(total - given), solution, "shop")
        )
    return problems


class ShopSolver:
    """Exact thoughts and corrections of `shop_problems`, for `OracleTeacher`."""

    def solution(self, problem: str) -> str:
        first, second, answer = self._steps(problem)
        key = "Boxes times pens in a box: every box holds the same number."
        return render_trace(
            Trace(
                (Step(first, key=key), Step(second)),
                "Multiply equal groups first, then subtract what is given away.",
                answer,
            )
        )

    def correction(self, problem: str, steps: Sequence[str]) -> Correction:
        right = self._steps(problem)
        for place, (step, exact) in enumerate(zip(steps, right[:2], strict=False), 1):
            if not answers_equal(_result(step), _result(exact)):
                return Correction(place, "The result does not follow.", exact, right[2])
        if len(steps) < 2:
            return Correction(len(steps), "A step is missing.", right[len(steps)], right[2])
        return Correction(None, answer=right[2])

    def write(self, correction: Correction) -> str:
        place = correction.step or 0
        empty = [Step("...")] * max(place - 1, 0)
        wrong = [Step("...", cause=correction.cause, correction=correction.text)] if place else []
        steps = tuple(empty + wrong) or (Step("..."),)
        return render_trace(Trace(steps, answer=correction.answer))

    def is_right_solution(self, problem: str, text: str) -> bool:
        trace = parse_trace(text)
        steps = [step.text for step in trace.steps]
        return (
            trace.answer == self._steps(problem)[2] and self.correction(problem, steps).step is None
        )

    def is_right_correction(
        self, problem: str, steps: Sequence[str], correction: Correction
    ) -> bool:
        exact = self.correction(problem, steps)
        return exact.step == correction.step and (
            exact.step is None or answers_equal(_result(correction.text), _result(exact.text))
        )

    def _steps(self, problem: str) -> tuple[str, str, str]:
        boxes, each, given = map(int, re.findall(r"\d+", problem))
        total = boxes * each
        return (
            f"{boxes} * {each} = {total}",
            f"{total} - {given} = {total - given}",
            str(total - given),
        )


def _result(step: str) -> str | None:
    return step.rpartition("=")[2].strip() or None


def shop_split(split: str, limit: int | None = None) -> list[MathProblem]:
    """Generated problems; train and test come from different seeds."""
    return shop_problems(limit or 32, seed=0 if split == "train" else 1)
