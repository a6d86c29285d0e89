"""Presets: named schedules, and how settings override their values."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from tailrace.core.ledger.admission import Admission
from tailrace.core.schedule import Leftovers
from tailrace.policies.strategies import KINDS, Migration, Routing, Synchronization

PresetName = Literal["sync", "tail-batching", "active-partial", "one-step", "async-cap", "staleflow", "rollout-only"]
ROLLOUT_ONLY = "rollout-only"
"""The preset that generates and scores without training."""
BoundName = Literal["deadline", "order", "count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    over_provision_prompts: float = 1.0
    over_provision_responses: float = 1.0
    leftovers: Leftovers = Leftovers.WAIT
    max_staleness: int | None = 0
    """Most versions a token may be old when it is trained; None: any number."""
    rounds_ahead: int = 0
    bound: Admission = Admission.DEADLINE
    """How `max_staleness` is enforced, if there is one."""
    routing: Routing = Routing.VANILLA
    synchronization: Synchronization = Synchronization.VANILLA
    migration: Migration = Migration.VANILLA

    @property
    def admission(self) -> Admission:
        return Admission.UNBOUNDED if self.max_staleness is None else self.bound


PRESETS: dict[str, Preset] = {
    "sync": Preset(),
    "tail-batching": Preset(over_provision_prompts=1.25, over_provision_responses=1.25, leftovers=Leftovers.DEFER),
    "active-partial": Preset(over_provision_prompts=2.0, leftovers=Leftovers.RESUME, max_staleness=None),
    "one-step": Preset(max_staleness=1, rounds_ahead=1),
    "async-cap": Preset(leftovers=Leftovers.KEEP, max_staleness=1, bound=Admission.COUNT, routing=Routing.FIXED),
    "staleflow": Preset(
        leftovers=Leftovers.KEEP,
        max_staleness=1,
        routing=Routing.THROUGHPUT,
        synchronization=Synchronization.THROUGHPUT,
        migration=Migration.THROUGHPUT,
    ),
    ROLLOUT_ONLY: Preset(),
}


def check_trains(name: str, more: Collection[str] = ()) -> None:
    """Raise ``ValueError`` unless ``name`` is a preset that trains, or is in ``more``."""
    if name == ROLLOUT_ONLY:
        raise ValueError(f"'{name}' does not train, so it has no steps to compare")
    known = [*(preset for preset in PRESETS if preset != ROLLOUT_ONLY), *more]
    if name not in known:
        raise ValueError(f"no schedule '{name}'; there are {', '.join(known)}")


class ScheduleOverrides(Protocol):
    """Values that replace the preset's own, from settings or a scenario; None keeps the preset's value."""

    @property
    def preset(self) -> str: ...
    @property
    def over_provision_prompts(self) -> float | None: ...
    @property
    def over_provision_responses(self) -> float | None: ...
    @property
    def leftovers(self) -> Leftovers | str | None: ...
    @property
    def max_staleness(self) -> int | str | None: ...
    @property
    def bound(self) -> str | None: ...
    @property
    def rounds_ahead(self) -> int | None: ...
    @property
    def routing(self) -> Routing | None: ...
    @property
    def synchronization(self) -> Synchronization | None: ...
    @property
    def migration(self) -> Migration | None: ...


def resolved(overrides: ScheduleOverrides) -> Preset:
    """Return the preset with the given overrides applied."""
    given: dict[str, Any] = {
        name: getattr(overrides, name)
        for name in ("over_provision_prompts", "over_provision_responses", "rounds_ahead", *KINDS)
        if getattr(overrides, name) is not None
    }
    if overrides.leftovers is not None:
        given["leftovers"] = Leftovers(overrides.leftovers)
    if overrides.max_staleness is not None:
        given["max_staleness"] = None if overrides.max_staleness == "unbounded" else int(overrides.max_staleness)
    if overrides.bound is not None:
        given["bound"] = Admission(overrides.bound)
    return replace(PRESETS[overrides.preset], **given)


def schedule_fields(
    preset: Preset, *, batch_size: int, group_size: int, trial_factors: Sequence[float] = ()
) -> dict[str, Any]:
    """Return the fields of a ``Schedule`` that a preset decides, except ``coordination`` (see ``strategies``)."""
    sizes = {"batch_size": batch_size, "group_size": group_size}
    launch_prompts, launch_responses = launch_sizes(preset, **sizes)
    return {
        **sizes,
        "launch_prompts": launch_prompts,
        "launch_responses": launch_responses,
        "trials": trials(preset, trial_factors, **sizes),
        "leftovers": preset.leftovers,
        "max_staleness": preset.max_staleness,
        "admission": preset.admission,
        "rounds_ahead": preset.rounds_ahead,
    }


def strategies(preset: Preset) -> dict[str, Any]:
    """Return the fields of ``Coordination`` that a preset decides: the names of the strategies."""
    return {kind: getattr(preset, kind).value for kind in KINDS}


def trials(
    preset: Preset, factors: Sequence[float], *, batch_size: int, group_size: int
) -> tuple[tuple[int, int], ...]:
    """Launch sizes to try: (prompts, responses per prompt) for each factor.

    If the preset does not over-provision responses, no trial does.
    """
    tried = [
        replace(preset, over_provision_prompts=factor, over_provision_responses=factor)
        if preset.over_provision_responses > 1
        else replace(preset, over_provision_prompts=factor)
        for factor in factors
    ]
    sizes = [launch_sizes(each, batch_size=batch_size, group_size=group_size) for each in tried]
    return tuple(dict(sizes).items())  # factors that come to the same number of prompts are one trial


def launch_sizes(preset: Preset, *, batch_size: int, group_size: int) -> tuple[int, int]:
    """Number of prompts that a round starts, and of responses for each. Neither is below the number trained."""
    # A product like 1.1 * 10 is a little more than 11: without the correction it would be rounded up to 12.
    prompts = math.floor(preset.over_provision_prompts * batch_size + 1e-9)
    responses = math.ceil(preset.over_provision_responses * group_size - 1e-9)
    return prompts, responses
