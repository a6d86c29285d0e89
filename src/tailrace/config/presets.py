"""Presets: named points in the space of schedules, and how settings move away from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from tailrace.core.admission import Admission
from tailrace.core.coordination import Strategy
from tailrace.core.schedule import Leftovers

PresetName = Literal["sync", "tail-batching", "active-partial", "one-step", "async-cap", "staleflow", "rollout-only"]
ROLLOUT_ONLY = "rollout-only"
"""The preset that generates and scores without training."""
BoundName = Literal["deadline", "order", "count"]
StrategyName = Literal["vanilla", "throughput"]
STRATEGIES = ("routing", "synchronization", "migration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    over_provision_prompts: float = 1.0
    over_provision_responses: float = 1.0
    leftovers: Leftovers = Leftovers.WAIT
    max_staleness: int | None = 0
    """None: unbounded."""
    rounds_ahead: int = 0
    bound: Admission = Admission.DEADLINE
    """How `max_staleness` is kept, where there is one."""
    routing: Strategy = Strategy.VANILLA
    synchronization: Strategy = Strategy.VANILLA
    migration: Strategy = Strategy.VANILLA

    @property
    def admission(self) -> Admission:
        return Admission.UNBOUNDED if self.max_staleness is None else self.bound


PRESETS: dict[str, Preset] = {
    "sync": Preset(),
    "tail-batching": Preset(over_provision_prompts=1.25, over_provision_responses=1.25, leftovers=Leftovers.DEFER),
    "active-partial": Preset(over_provision_prompts=2.0, leftovers=Leftovers.RESUME, max_staleness=None),
    "one-step": Preset(max_staleness=1, rounds_ahead=1),
    "async-cap": Preset(leftovers=Leftovers.KEEP, max_staleness=1, bound=Admission.COUNT),
    "staleflow": Preset(
        leftovers=Leftovers.KEEP,
        max_staleness=1,
        routing=Strategy.THROUGHPUT,
        synchronization=Strategy.THROUGHPUT,
        migration=Strategy.THROUGHPUT,
    ),
    ROLLOUT_ONLY: Preset(),
}


def check_trains(name: str, more: Collection[str] = ()) -> None:
    """``ValueError`` unless it is a preset that trains, or one of ``more``."""
    if name == ROLLOUT_ONLY:
        raise ValueError(f"'{name}' does not train, so it has no steps to compare")
    known = [*(preset for preset in PRESETS if preset != ROLLOUT_ONLY), *more]
    if name not in known:
        raise ValueError(f"no schedule '{name}'; there are {', '.join(known)}")


class Wishes(Protocol):
    """Where settings or a scenario may differ from a preset; None: as the preset has it."""

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
    def routing(self) -> str | None: ...
    @property
    def synchronization(self) -> str | None: ...
    @property
    def migration(self) -> str | None: ...


def resolved(wishes: Wishes) -> Preset:
    """The preset with what is asked for instead of it."""
    given: dict[str, Any] = {
        name: getattr(wishes, name)
        for name in ("over_provision_prompts", "over_provision_responses", "rounds_ahead")
        if getattr(wishes, name) is not None
    }
    if wishes.leftovers is not None:
        given["leftovers"] = Leftovers(wishes.leftovers)
    if wishes.max_staleness is not None:
        given["max_staleness"] = None if wishes.max_staleness == "unbounded" else int(wishes.max_staleness)
    if wishes.bound is not None:
        given["bound"] = Admission(wishes.bound)
    given |= {name: Strategy(wish) for name in STRATEGIES if (wish := getattr(wishes, name)) is not None}
    return replace(PRESETS[wishes.preset], **given)


def trials(
    preset: Preset, factors: Sequence[float], *, batch_size: int, group_size: int
) -> tuple[tuple[int, int], ...]:
    """Launch sizes to try. Where responses are not over-provisioned (strict mode), no trial does."""
    tried = [
        replace(preset, over_provision_prompts=factor, over_provision_responses=factor)
        if preset.over_provision_responses > 1
        else replace(preset, over_provision_prompts=factor)
        for factor in factors
    ]
    sizes = [launch_sizes(each, batch_size=batch_size, group_size=group_size) for each in tried]
    return tuple(dict(sizes).items())  # factors that come to the same number of prompts are one trial


def launch_sizes(preset: Preset, *, batch_size: int, group_size: int) -> tuple[int, int]:
    """Prompts a round launches and responses each begins with. Rounded so that neither falls below what is trained."""
    # A product like 1.1 * 10 is a little more than 11: without the correction it would be rounded up to 12.
    prompts = math.floor(preset.over_provision_prompts * batch_size + 1e-9)
    responses = math.ceil(preset.over_provision_responses * group_size - 1e-9)
    return prompts, responses
