"""The exported tasks run in lm-evaluation-harness."""

import json
from importlib.util import find_spec

import pytest

from ritornello.methods.k_halu import make_synthetic_khalu, write_lm_eval_tasks

pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-evaluation-harness")


def test_the_harness_scores_both_tasks(tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = []
    for sample in make_synthetic_khalu(10, 0, "ko"):
        row = {choice.key: choice.text for choice in sample.choices}
        row |= {"date": sample.meta["date"], "document": sample.text}
        row |= {"instruction": sample.meta["instruction"], "label": list(sample.gold)}
        rows.append(json.dumps(row, ensure_ascii=False))
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(rows))
    write_lm_eval_tasks(tmp_path / "tasks", str(data))
    names = ["ritornello_k_halu_log", "ritornello_k_halu_em"]
    results = lm_eval.simple_evaluate(
        "dummy",
        tasks=names,
        task_manager=TaskManager(include_path=str(tmp_path / "tasks")),
        bootstrap_iters=10,
    )
    log, em = (results["results"][name] for name in names)
    assert 0 <= log["acc_norm,none"] <= 1
    assert 0 <= log["official_f1,none"] <= 1
    assert em["acc,none"] == em["acc_ours,none"] == 0
