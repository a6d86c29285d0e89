"""Schedules to try for a run: every preset that trains, and a few values of its knobs.

A schedule that cannot work with the run's other settings or with its placement is not tried; it comes with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailrace.config.preset_parts import LeftOut
from tailrace.config.presets import PRESETS, ROLLOUT_ONLY
from tailrace.config.rules import broken_rules
from tailrace.config.schedule_builder import apply_preset, fitted_preset
from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.config.settings import Settings
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Lending, Schedule
from tailrace.sim.other_presets import RULED, for_other_presets, read_settings

Refused = Callable[[Settings], Sequence[str]]
_OVER_PROVISION = ("over_provision_prompts", "over_provision_responses")
KNOBS: dict[str, tuple[Mapping[str, Any], ...]] = {
    "stage-overlap": ({"stream": "once"},),
    "tail-batching": tuple(dict.fromkeys(_OVER_PROVISION, factor) for factor in (1.125, 1.25, 1.5)),
    "active-partial": ({"over_provision_prompts": 1.5}, {"over_provision_prompts": 2.0}),
    "async-cap": tuple({"max_staleness": bound} for bound in (1, 2, 4)),
    "staleflow": tuple({"max_staleness": bound} for bound in (1, 2, 4)),
}
"""Values to try beside a preset's own. A preset that is not named here is tried as it is."""

_DEFAULTS = {name: field.default for name, field in ScheduleOverrides.model_fields.items() if name != "preset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    preset: str
    knobs: tuple[tuple[str, Any], ...]
    """Settings that replace the preset's own."""
    settings: str
    """Settings of the command line that choose it, whatever the recipe of the run says."""
    schedule: Schedule
    left_out: tuple[LeftOut, ...] = ()
    """Parts of the preset that cannot work in the run."""

    @property
    def name(self) -> str:
        return named(self.preset, dict(self.knobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    name: str
    reason: str


def named(preset: str, knobs: Mapping[str, Any]) -> str:
    """Return the name of a schedule in a table: the preset, and what replaces its own values."""
    values = [f"{name} {_shown(value)}" for name, value in knobs.items()]
    if {knobs.get(name) for name in _OVER_PROVISION} == {knobs.get(_OVER_PROVISION[0])} != {None}:
        values = [f"over_provision_* {_shown(knobs[_OVER_PROVISION[0]])}"]
        values += [f"{name} {_shown(value)}" for name, value in knobs.items() if name not in _OVER_PROVISION]
    return ", ".join([preset, *values])


def bound_of(schedule: Schedule) -> str:
    """Return the most versions that a trained token may be old, in words."""
    if schedule.max_staleness is None:
        return "none"
    is_loose = schedule.admission is AdmissionRule.COUNT and schedule.max_staleness > 0
    return f"{schedule.max_staleness}{' (not strict)' if is_loose else ''}"


def own_candidate(schedule: Schedule, config: Mapping[str, Any]) -> Candidate:
    """Return the schedule of the run itself."""
    given = _given(config)
    preset = str(config.get("schedule", {}).get("preset", "sync"))
    return Candidate(
        preset=preset,
        knobs=tuple(given.items()),
        settings=_line(preset, given, {}),
        schedule=schedule,
    )


def candidates(
    schedule: Schedule, config: Mapping[str, Any], refused: Refused = lambda settings: []
) -> Iterator[Candidate | Excluded]:
    """Yield the schedules to try beside that of the run. ``schedule``: the run's own; ``config``: its settings.
    ``refused``: returns what the engine of a run cannot do."""
    given, seen = _given(config), [_decided(schedule)]
    plain, circumstances = for_other_presets(schedule, config)
    for preset in PRESETS:
        if preset == ROLLOUT_ONLY:
            continue
        for knobs in ({}, *KNOBS.get(preset, ())):
            try:
                chosen = ScheduleOverrides(preset=preset, **knobs)
                made = apply_preset(plain, chosen, circumstances)
                _refuse_broken(config, {"preset": preset, **knobs}, refused)
            except ValueError as error:
                yield Excluded(name=named(preset, knobs), reason=str(error))
                if not knobs:
                    break  # what keeps the preset out keeps its variants out
                continue
            if _decided(made) in seen:
                continue
            seen.append(_decided(made))
            yield Candidate(
                preset=preset,
                knobs=tuple(knobs.items()),
                settings=_line(preset, knobs, given),
                schedule=made,
                left_out=fitted_preset(plain, chosen, circumstances)[1],
            )


def _decided(schedule: Schedule) -> Schedule:
    """Return the schedule without what has no effect, so that equal schedules are equal."""
    return schedule if schedule.lending.strategy != Lending().strategy else replace(schedule, lending=Lending())


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the run's settings replace of its preset's values."""
    section = config.get("schedule", {})
    return {
        name: section[name]
        for name, default in _DEFAULTS.items()
        if name in section and section[name] != _json(default)
    }


def _line(preset: str, knobs: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """``given``: what the recipe replaces of its preset's values; here it gets its default again."""
    reset = {name: _json(_DEFAULTS[name]) for name in given if name not in knobs}
    return " ".join(
        f"--schedule.{name} {_shown(value)}" for name, value in {"preset": preset, **knobs, **reset}.items()
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _refuse_broken(config: Mapping[str, Any], chosen: Mapping[str, Any], refused: Refused) -> None:
    """Raise ``ValueError`` with what a run with this schedule would be refused for, and the run itself was not."""
    before = _broken(config, config.get("schedule", {}), refused)
    kept = {name: value for name, value in config.get("schedule", {}).items() if name not in _DEFAULTS}
    new = [sentence for sentence in _broken(config, {**kept, **chosen}, refused) if sentence not in before]
    if new:
        raise ValueError("; ".join(new))


def _broken(config: Mapping[str, Any], schedule: Mapping[str, Any], refused: Refused) -> list[str]:
    """Return what a run with this schedule would be refused for; nothing for settings of an older release, which cannot
    be checked."""
    sections = {name: config[name] for name in RULED if name in config}
    settings = read_settings({**sections, "schedule": dict(schedule)})
    return [] if settings is None else [*broken_rules(settings), *refused(settings)]
