"""Weights & Biases, online or offline. A resumed run goes on in the same W&B run.

Offline runs lie in ``wandb/`` of the run directory; ``wandb sync`` uploads them. The variables W&B itself reads
(``WANDB_MODE``, ``WANDB_API_KEY``, ``WANDB_ENTITY``, ...) keep their meaning.
"""

from __future__ import annotations

import hashlib

import wandb

from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks.sink import Experiment


class WeightsAndBiases:
    def __init__(self, experiment: Experiment, *, is_offline: bool = False) -> None:
        self._run = wandb.init(
            project=experiment.project,
            name=experiment.name,
            config=dict(experiment.config),
            dir=str(experiment.directory),
            # The same directory is the same run, however often it is taken up again.
            id=hashlib.sha256(str(experiment.directory).encode()).hexdigest()[:16],
            resume="allow",
            mode="offline" if is_offline else None,
            # What a run prints is its own; a live display must not be captured.
            settings=wandb.Settings(console="off"),
        )

    def write(self, row: Row) -> None:
        self._run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def close(self) -> None:
        self._run.finish()
