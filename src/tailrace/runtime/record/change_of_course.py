"""What changes when a run is continued with other settings: whether it can, and what to tell about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.continuation import with_old_values
from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.config.variants import ESTIMATORS
from tailrace.core.ids import Version
from tailrace.core.schedule import Schedule
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.trainer.optimizer.learning_rate import learning_rate


def change_of_course(
    directory: RunDirectory, settings: Settings, *, version: Version, before: Schedule, schedule: Schedule
) -> list[str]:
    """Return lines about what changes from the next step on; ``SettingsError`` if the run is past the new end.

    ``version``: the steps that the run has taken. ``before``: the schedule that it followed. ``schedule``: that of the
    settings.
    """
    stored = directory.stored_settings()
    if stored is None or not before.trains:
        return []
    if schedule.max_steps < version:
        raise SettingsError(
            f"the run in {directory.path} has taken {version} steps, so it cannot end after"
            f" {schedule.max_steps}; set schedule.max_steps to {version} or more"
        )
    if version == schedule.max_steps:
        return []
    old = _rates(_sections(stored), version, max_steps=before.max_steps)
    new = _rates((settings.trainer, settings.algorithm), version, max_steps=schedule.max_steps)
    return [
        f"{name} of step {version + 1}: {rate:g}; with the settings before it would be {old[name]:g}"
        for name, rate in new.items()
        if rate != old.get(name, rate)
    ]


def _sections(stored: Mapping[str, Any]) -> tuple[TrainerSettings, AlgorithmSettings]:
    found = with_old_values(stored)
    return TrainerSettings.model_validate(found["trainer"]), AlgorithmSettings.model_validate(found["algorithm"])


def _rates(sections: tuple[TrainerSettings, AlgorithmSettings], step: int, *, max_steps: int) -> dict[str, float]:
    """Return the learning rates of a step, by name."""
    trainer, algorithm = sections
    rates = {"learning rate": learning_rate(step, trainer, max_steps=max_steps)}
    if ESTIMATORS[algorithm.advantage_estimator].needs_critic:
        critic = trainer.model_copy(update={"learning_rate": algorithm.critic_learning_rate})
        rates["learning rate of the critic"] = learning_rate(step, critic, max_steps=max_steps)
    return rates
