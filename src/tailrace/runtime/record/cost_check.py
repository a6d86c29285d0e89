"""The check of the cost model beside a run."""

from __future__ import annotations

from tailrace.config.settings import Settings
from tailrace.core.coordinator import Coordinator
from tailrace.core.fleet.resizing import costs_of, engine_size
from tailrace.observe.costs.prediction import Prediction, SizeCosts


def cost_check(settings: Settings, coordinator: Coordinator) -> Prediction | None:
    """Return the check, for runs that use a cost model and need not be deterministic; else None."""
    rooms, rollout = coordinator.rooms, settings.rollout
    is_used = rooms.policies.plans or rooms.policies.parallelism.changes
    if not is_used or rollout.deterministic or rollout.from_run is not None:
        return None
    return Prediction(
        costs=coordinator.costs,
        prompt_length=rooms.schedule.coordination.prompt_length,
        max_running=engine_size(rooms)[1],
        size=rooms.fleet.parallel_size,
        sizes={
            layout.size: SizeCosts(costs_of(rooms, layout.size), layout.max_running)
            for layout in rooms.schedule.parallelism.layouts
        },
    )
