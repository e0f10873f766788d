"""Zero-shot tasks through the Python interface of lm-evaluation-harness, where it is installed."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ritornello.common.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_METRICS = {"acc": "accuracy", "acc_norm": "accuracy_norm"}


def check_installed() -> None:
    """Says how to get the harness.

    Raises:
        UserError: it is not there.
    """
    if find_spec("lm_eval") is None:
        raise UserError("zero-shot tasks need lm-evaluation-harness: pip install 'lm_eval>=0.4.5'")


def check_tasks(tasks: Iterable[str], task_folder: str | None = None) -> None:
    """Answers the first question of every task at random: its data must be there.

    Raises:
        UserError: as `zero_shot_answers`.
    """
    check_installed()
    for task in tasks:
        _answers("dummy", task, limit=1, task_folder=task_folder)


def zero_shot_answers(
    model: "PreTrainedModel",
    tokenizer: Callable,
    task: str,
    *,
    batch_size: int = 1,
    limit: int | None = None,
    task_folder: str | None = None,
) -> dict[str, list[float]]:
    """Whether each question of a task was answered rightly, by metric.

    Args:
        model: a causal language model, quantised or not.
        tokenizer: its tokenizer.
        task: a multiple-choice task of the harness, such as arc_easy.
        batch_size: pairs of context and choice in a forward pass.
        limit: only so many questions; None for all.
        task_folder: where tasks of one's own are described; None for those that the harness ships.

    Returns:
        `accuracy` by the likelihood of the choices and, where the task has it, `accuracy_norm` by
        the likelihood per byte: 1.0 or 0.0 a question, in the task's order.

    Raises:
        UserError: the harness is absent, the task unknown or not multiple choice, or its data
            cannot be had.
    """
    check_installed()
    from lm_eval.models.huggingface import HFLM

    harnessed = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)  # type: ignore[arg-type]
    return _answers(harnessed, task, limit=limit, task_folder=task_folder)


def _answers(
    model: Any, task: str, *, limit: int | None, task_folder: str | None
) -> dict[str, list[float]]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=task_folder)
    if task not in tasks.all_tasks:
        raise UserError(f"task={task!r} is not a task of lm-evaluation-harness")
    try:
        found = simple_evaluate(
            model=model,
            tasks=[task],
            num_fewshot=0,
            limit=limit,
            task_manager=tasks,
            bootstrap_iters=0,
            log_samples=True,
        )
    except OSError as error:
        raise UserError(f"the data of task={task!r} cannot be had: {error}") from error
    rows = sorted(found["samples"].get(task, []), key=lambda row: row["doc_id"])
    answers = {
        name: [float(row[key]) for row in rows]
        for key, name in _METRICS.items()
        if rows and key in rows[0]
    }
    if not answers:
        raise UserError(f"task={task!r} has no accuracy: it must be one multiple-choice task")
    return answers
