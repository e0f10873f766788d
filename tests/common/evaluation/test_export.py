"""Tasks in the form of other harnesses."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from quiz import Quiz

from ritornello.common.errors import UserError
from ritornello.common.evaluation.export import to_inspect_task, to_lm_eval_yaml


def test_lm_eval_gets_a_yaml_and_the_questions(tmp_path):
    path = to_lm_eval_yaml(Quiz(number=3, scored=True), tmp_path)
    config = yaml.safe_load(path.read_text())
    assert config["output_type"] == "multiple_choice"
    data = config["dataset_kwargs"]["data_files"]["test"]
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]
    assert [row["gold"] for row in rows] == [0, 1, 2]
    assert rows[0]["choices"] == [" red", " blue", " green", " yellow"]


def test_what_cannot_be_exported_is_told(tmp_path):
    with pytest.raises(UserError, match="no accepted texts"):
        to_lm_eval_yaml(Quiz(), tmp_path)
    with pytest.raises(UserError, match="no samples"):
        to_lm_eval_yaml(Quiz(number=0), tmp_path)


@pytest.mark.skipif(find_spec("inspect_ai") is not None, reason="inspect-ai is installed")
def test_without_inspect_ai_the_command_to_install_it_is_named():
    with pytest.raises(UserError, match="pip install inspect-ai"):
        to_inspect_task(Quiz())


@pytest.mark.skipif(find_spec("inspect_ai") is None, reason="needs inspect-ai")
def test_inspect_ai_scores_as_we_do(tmp_path):
    import inspect_ai
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    outputs = [ModelOutput.from_content("mockllm/model", "A") for _ in range(8)]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = to_inspect_task(Quiz(number=8))
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(tmp_path))
    found = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert found == {"ours": 0.25, "official": 0.25}


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-evaluation-harness")
def test_lm_eval_runs_what_is_exported(tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    to_lm_eval_yaml(Quiz(number=8, scored=True), tmp_path)
    manager = TaskManager(include_path=str(tmp_path))
    results = lm_eval.simple_evaluate("dummy", tasks=["quiz"], task_manager=manager)
    assert results["n-samples"]["quiz"]["effective"] == 8
