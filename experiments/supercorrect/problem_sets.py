"""Word problems: small generated ones with exact thoughts, and the public sets of the paper."""

import re
from collections.abc import Sequence

import numpy as np

from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot
from ritornello.methods.supercorrect.answers import answers_equal, boxed_content
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


def gsm8k_problems(
    split: str, limit: int | None = None, *, path: str = "openai/gsm8k"
) -> list[MathProblem]:
    """GSM8K, configuration main, by hub id or local folder."""
    problems = [
        MathProblem(
            f"gsm8k-{split}-{index}",
            row["question"],
            row["answer"].split("####")[-1].strip().replace(",", ""),
            re.sub(r"<<.*?>>", "", row["answer"].split("####")[0]).strip(),
            "gsm8k",
        )
        for index, row in enumerate(_rows(path, split, "main"))
    ]
    return problems[:limit]


def math_problems(
    split: str, limit: int | None = None, *, path: str = "EleutherAI/hendrycks_math"
) -> list[MathProblem]:
    """MATH (7,500 training and 5,000 test problems), by hub id or local folder.

    The files are of one subject each, so the problems are mixed, the same way every time.
    """
    rows = _rows(path, split, "*")
    problems = []
    for index in np.random.default_rng(0).permutation(len(rows)):
        row = rows[index]
        answer = boxed_content(row["solution"])
        if answer and answer.strip():
            level = re.search(r"\d", str(row["level"]))
            graded = int(level.group()) if level else None  # a few are of "Level ?"
            name = f"math-{split}-{index}"
            problems.append(
                MathProblem(name, row["problem"], answer, row["solution"], "math", graded)
            )
    return problems[:limit]


def paper_problems(
    split: str,
    limit: int | None = None,
    *,
    math: str = "EleutherAI/hendrycks_math",
    gsm8k: str = "openai/gsm8k",
) -> list[MathProblem]:
    """MATH and GSM8K together (the paper adds GaoKao, NuminaMath and MetaMath to 100K)."""
    return [*math_problems(split, limit, path=math), *gsm8k_problems(split, limit, path=gsm8k)]


def shop_split(split: str, limit: int | None = None) -> list[MathProblem]:
    """Generated problems; train and test come from different seeds."""
    return shop_problems(limit or 32, seed=0 if split == "train" else 1)


def _rows(path: str, split: str, configuration: str) -> list[dict[str, str]]:
    """The rows of a split: `<configuration>/<split>-*.parquet`, as the hub lays data sets out."""
    import pandas as pd

    folder = hub_snapshot(path, repo_type="dataset")
    files = sorted(folder.glob(f"{configuration}/{split}-*.parquet"))
    if not files:
        raise UserError(f"{path} has no file {configuration}/{split}-*.parquet")
    return [row for file in files for row in pd.read_parquet(file).to_dict("records")]
