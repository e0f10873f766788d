"""Where a run is shown beside its own folder: in Weights & Biases."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ritornello.common.errors import UserError
from ritornello.common.reporting.page import Report
from ritornello.common.runs.experiment import Cell

_PATIENCE = 60  # seconds


class WandbTracker:
    """Weights & Biases, offline unless asked; never asks a question.

    Args:
        mode: `offline` writes below the run directory; `online` needs a key in the environment.
        project: its project there.
        entity: its user or team; None for the key's own.
    """

    def __init__(
        self,
        mode: Literal["offline", "online"] = "offline",
        project: str = "ritornello",
        entity: str | None = None,
    ) -> None:
        if mode not in ("offline", "online"):
            raise ValueError(f"tracker.mode must be offline or online, got {mode!r}")
        self.mode, self.project, self.entity = mode, project, entity

    def send(self, report: Report, run_id: str, directory: Path) -> None:
        """Sends a finished report; a run that is resumed is sent again under the same id.

        Raises:
            UserError: online without a key.
        """
        import wandb

        if self.mode == "online" and not wandb.api.api_key:
            raise UserError("tracker.mode=online needs WANDB_API_KEY; tracker=wandb works offline")
        run = wandb.init(
            mode=self.mode,
            project=self.project,
            entity=self.entity,
            id=run_id,
            resume="allow",
            name=f"{report.card.slug}/{report.profile}",
            dir=str(directory.resolve()),  # the service that writes may have another cwd
            config=dict(report.config),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                # A server that does not answer costs this much, not the run.
                init_timeout=_PATIENCE,
                finish_timeout=_PATIENCE,
            ),
        )
        try:
            for record in report.records:
                self._send_curve(run, record, directory)
            for verdict in report.verdicts:
                run.summary[f"verdict/{verdict.claim}"] = verdict.verdict
                run.summary[f"estimate/{verdict.claim}"] = verdict.estimate
            table = report.results.table.drop(columns="samples")
            run.log({"measurements": wandb.Table(dataframe=table.astype(object))})
            for figure in report.figures:
                path = directory / "figures" / f"{figure.name}.png"
                run.log({f"figures/{figure.name}": wandb.Image(str(path), caption=figure.caption)})
        finally:
            run.finish()

    def _send_curve(self, run: Any, record: Mapping[str, Any], directory: Path) -> None:
        content = record["cell"]
        cell = Cell(content["part"], content["arm"], content["seed"], content["coordinates"])
        name = f"cells/{cell.key}"
        for entry in read_curve(directory, cell):
            step = entry.pop("step")
            run.log({f"{name}/step": step} | {f"{name}/{k}": v for k, v in entry.items()})


def read_curve(directory: Path, cell: Cell) -> Sequence[dict[str, float]]:
    """What a cell logged; a step that was logged twice (after a kill) keeps its last line."""
    file = directory / "artifacts" / cell.key / "log.jsonl"
    if not file.exists():
        return []
    steps = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # a kill in the midst of a line
            line = json.loads(text)
            steps[line["step"]] = line
    return list(steps.values())
