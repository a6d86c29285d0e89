"""What changes when a run is continued with other settings: whether it can, and what to tell about it."""

from __future__ import annotations

from tailrace.config.continuation import with_old_values
from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings, TrainerSettings
from tailrace.core.coordinator import Coordinator
from tailrace.core.schedule import Schedule
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.trainer.optimizer.learning_rate import learning_rate


def change_of_course(
    directory: RunDirectory, settings: Settings, coordinator: Coordinator, schedule: Schedule
) -> list[str]:
    """Return lines about what changes from the next step on; ``SettingsError`` if the run is past the new end.

    ``schedule``: that of the settings. ``coordinator``: the run as it was left.
    """
    stored = directory.stored_settings()
    if stored is None or not coordinator.schedule.trains:
        return []
    if schedule.max_steps < coordinator.version:
        raise SettingsError(
            f"the run in {directory.path} has taken {coordinator.version} steps, so it cannot end after"
            f" {schedule.max_steps}; set schedule.max_steps to {coordinator.version} or more"
        )
    before = TrainerSettings.model_validate(with_old_values(stored)["trainer"])
    step = coordinator.version
    old = learning_rate(step, before, max_steps=coordinator.schedule.max_steps)
    new = learning_rate(step, settings.trainer, max_steps=schedule.max_steps)
    if old == new or step >= schedule.max_steps:
        return []
    return [f"learning rate of step {step + 1}: {new:g}; with the settings before it would be {old:g}"]
