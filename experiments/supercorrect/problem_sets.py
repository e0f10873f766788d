"""The public sets of word problems that the paper trains on."""

import re

import numpy as np

from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot
from ritornello.methods.supercorrect.answers import boxed_content
from ritornello.methods.supercorrect.records import MathProblem


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


def _rows(path: str, split: str, configuration: str) -> list[dict[str, str]]:
    """The rows of a split: `<configuration>/<split>-*.parquet`, as the hub lays data sets out."""
    import pandas as pd

    folder = hub_snapshot(path, repo_type="dataset")
    files = sorted(folder.glob(f"{configuration}/{split}-*.parquet"))
    if not files:
        raise UserError(f"{path} has no file {configuration}/{split}-*.parquet")
    return [row for file in files for row in pd.read_parquet(file).to_dict("records")]
