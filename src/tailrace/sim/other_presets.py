"""What a recorded run gives to a preset that is not its own: places to lend, and which parts of a preset can work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from tailrace.config.device_kind import recorded_device
from tailrace.config.preset_parts import Circumstances
from tailrace.config.run_preset import circumstances
from tailrace.config.settings import Settings
from tailrace.core.schedule import Placement, Schedule
from tailrace.core.schedule.lending import recorded_places

RULED = ("model", "rollout", "reward", "algorithm", "trainer", "schedule")
"""Sections of the settings that a schedule has to fit."""


def for_other_presets(schedule: Schedule, config: Mapping[str, Any]) -> tuple[Schedule, Circumstances]:
    """Return the schedule of a run with the places that could be lent, and what decides whether parts of another preset
    can work. ``config``: the run's settings; what they do not tell, the journal does."""
    plain = _lendable(schedule, config)
    recorded = Circumstances.recorded(plain)
    placed = {"schedule": {"placement": schedule.placement.value}}
    settings = read_settings({**{name: config[name] for name in RULED if name in config}, **placed})
    if settings is None:
        return plain, recorded
    told = circumstances(settings, schedule.score_parts)
    return plain, replace(recorded, no_pieces=told.no_pieces, no_places=told.no_places or recorded.no_places)


def read_settings(sections: Mapping[str, Any]) -> Settings | None:
    """Return the settings of a run as far as they are given; None if they are those of an older release."""
    device = {"device": recorded_device(sections)}
    try:
        return Settings.model_validate({**sections, "model": {**sections.get("model", {}), **device}})
    except ValidationError:
        return None


def _lendable(schedule: Schedule, config: Mapping[str, Any]) -> Schedule:
    places = recorded_places(
        schedule.lending.places,
        num_instances=schedule.num_instances,
        num_replicas=int(config.get("trainer", {}).get("num_replicas", 1)),
        is_apart=schedule.placement is Placement.DISAGGREGATED,
    )
    return replace(schedule, lending=replace(schedule.lending, places=places))
