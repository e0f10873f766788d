"""Tasks for people who already run inspect-ai or lm-evaluation-harness."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ritornello.common.chat.protocol import Completion, Message, Text
from ritornello.common.errors import UserError
from ritornello.common.evaluation.sample import ChoiceTarget, Query, Sample, TextTarget
from ritornello.common.evaluation.task import Task

if TYPE_CHECKING:
    import inspect_ai


def to_inspect_task(task: Task) -> "inspect_ai.Task":
    """A task of inspect-ai that asks our prompts and scores with our parser.

    The scorer reports both readings, "ours" and "official", with their mean and standard error.

    Raises:
        UserError: inspect-ai is not installed, or the task scores continuations, which inspect-ai
            cannot.
    """
    try:
        import inspect_ai
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.dataset import Sample as InspectSample
        from inspect_ai.model import (
            ChatMessageAssistant,
            ChatMessageSystem,
            ChatMessageUser,
            GenerateConfig,
        )
        from inspect_ai.solver import generate
    except ModuleNotFoundError as error:
        raise UserError("to_inspect_task needs inspect-ai: pip install inspect-ai") from error
    kinds = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }
    samples = {sample.id: sample for sample in task.samples()}
    dataset, params = [], None
    for sample in samples.values():
        query = task.render(sample)
        if query.continuations:
            raise UserError(f"{task.name} scores continuations, which inspect-ai does not")
        params = params or query.params
        prompt = query.asked
        messages = prompt.messages or (Message.user(prompt.text or ""),)
        turns = [kinds[m.role](content=_text_only(task, m)) for m in messages]
        dataset.append(InspectSample(input=turns, id=sample.id, target=_target_text(sample)))
    config = GenerateConfig()
    if params is not None:
        stop = list(params.stop) or None
        config = GenerateConfig(
            max_tokens=params.max_tokens, temperature=params.temperature, stop_seqs=stop
        )
    return inspect_ai.Task(
        name=task.name.replace(" ", "_"),
        dataset=MemoryDataset(dataset),
        solver=generate(),
        scorer=_both_readings(task, samples),
        config=config,
    )


def to_lm_eval_yaml(task: Task, folder: str | Path) -> Path:
    """Writes a task of lm-evaluation-harness: its YAML and the questions as JSON lines.

    Scored tasks become `multiple_choice` (one right option) with `acc` and `acc_norm`, generated
    ones `generate_until` with `exact_match` against the accepted texts. Run them with
    `lm_eval --include_path <folder> --tasks <name>`.

    Raises:
        UserError: a prompt holds pictures, a scored question has several right options, or a
            generated one has no texts to match.
    """
    import yaml

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "_" for c in task.name)
    queries = [(sample, task.render(sample)) for sample in task.samples()]
    if not queries:
        raise UserError(f"{task.name} has no samples")
    rows = [_lm_eval_row(task, sample, query) for sample, query in queries]
    query = queries[0][1]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    config: dict[str, Any] = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((folder / f"{name}.jsonl").resolve())}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "target_delimiter": "",
        "metadata": {"version": 1.0},
    }
    if query.continuations:
        config |= {
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }
    else:
        config |= {
            "output_type": "generate_until",
            "doc_to_target": "gold",
            "generation_kwargs": {
                "until": list(query.params.stop),
                "max_gen_toks": query.params.max_tokens,
                "do_sample": query.params.temperature > 0,
            },
            "metric_list": [{"metric": "exact_match", "ignore_case": True}],
        }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def _lm_eval_row(task: Task, sample: Sample, query: Query) -> dict[str, Any]:
    prompt = query.asked
    text = prompt.text
    if text is None:
        text = "\n\n".join(_text_only(task, message) for message in prompt.messages)
    row: dict[str, Any] = {"id": sample.id, "prompt": text + prompt.prefill}
    if query.continuations:
        if len(sample.gold) != 1:
            raise UserError(f"sample {sample.id} has {len(sample.gold)} right options")
        return row | {"choices": list(query.continuations), "gold": sample.gold[0]}
    if isinstance(sample.target, TextTarget):
        return row | {"gold": list(sample.target.accepted)}
    raise UserError(f"sample {sample.id} has no accepted texts to match")


def _both_readings(task: Task, samples: Mapping[str, Sample]) -> Any:
    """A scorer of inspect-ai with one value per reading."""
    from inspect_ai.scorer import Score, mean, scorer, stderr

    readings = ("ours", "official")

    @scorer(metrics={name: [mean(), stderr()] for name in readings}, name="ritornello")
    def both_readings():
        async def score(state: Any, target: Any) -> Score:
            sample = samples[state.sample_id]
            answers = task.parse(sample, Completion(state.output.completion))
            values = {
                name: task.score(sample, answers.get(name, answers["ours"])).value
                for name in readings
            }
            return Score(value=values, answer=str(answers["ours"].value))

        return score

    return both_readings()


def _text_only(task: Task, message: Message) -> str:
    if message.has_images:
        raise UserError(f"{task.name} shows pictures; only text prompts are exported")
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def _target_text(sample: Sample) -> str | list[str]:
    if isinstance(sample.target, ChoiceTarget):
        return [str(index) for index in sample.gold]
    return list(sample.target.accepted) if isinstance(sample.target, TextTarget) else ""
