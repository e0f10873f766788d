"""Rows of the seven tasks become questions."""

import json

import pytest

from ritornello.common.data.commonsense import commonsense_questions
from ritornello.common.errors import UserError

ROWS = {
    ("boolq", "data", "validation"): {
        "passage": "Ice is cold.", "question": "is ice cold", "answer": True,
    },
    ("piqa", "data", "validation"): {
        "goal": "Cool soup", "sol1": "Wait.", "sol2": "Heat it.", "label": 0,
    },
    ("hellaswag", "data", "validation"): {
        "activity_label": "Sailing", "ctx_a": "A boat [header] sails.", "ctx_b": "the wind",
        "endings": ["blows.", "eats."], "label": "0",
    },
    ("winogrande", "winogrande_debiased", "validation"): {
        "sentence": "The cup fell off the shelf because _ was loose.", "option1": "the cup",
        "option2": "the shelf", "answer": "2",
    },
    ("arc_easy", "ARC-Easy", "test"): {
        "question": "What melts?", "choices": {"label": ["A", "B"], "text": ["stone", "ice"]},
        "answerKey": "B",
    },
    ("openbookqa", "main", "test"): {
        "question_stem": "Plants need", "choices": {"label": ["A", "B"], "text": ["light", "tin"]},
        "answerKey": "A",
    },
}  # fmt: skip
EXPECTED = {
    "boolq": ("Ice is cold.\nQuestion: is ice cold?\nAnswer:", (" no", " yes"), 1),
    "piqa": ("Question: Cool soup\nAnswer:", (" Wait.", " Heat it."), 0),
    "hellaswag": ("Sailing: A boat sails. The wind", (" blows.", " eats."), 0),
    "winogrande": (
        "The cup fell off the shelf because",
        (" the cup was loose.", " the shelf was loose."),
        1,
    ),
    "arc_easy": ("Question: What melts?\nAnswer:", (" stone", " ice"), 1),
    "openbookqa": ("Plants need", (" light", " tin"), 0),
}


@pytest.mark.parametrize(("task", "folder", "split"), ROWS)
def test_questions_of_a_local_folder(tmp_path, task, folder, split):
    (tmp_path / folder).mkdir()
    row = json.dumps(ROWS[task, folder, split])
    (tmp_path / folder / f"{split}.jsonl").write_text(f"{row}\n{row}\n")
    first, second = commonsense_questions(task, str(tmp_path))
    assert first == second
    assert (first.context, first.choices, first.answer) == EXPECTED[task]


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match="task must be one of boolq, piqa"):
        commonsense_questions("chess")
    with pytest.raises(UserError, match=r"neither validation\*.parquet nor"):
        commonsense_questions("boolq", str(tmp_path))
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        commonsense_questions("boolq", "nobody/nothing")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "validation.jsonl").write_text('{"question": "who"}')
    with pytest.raises(UserError, match=r"not laid out as google/boolq: KeyError\('passage'\)"):
        commonsense_questions("boolq", str(tmp_path))
