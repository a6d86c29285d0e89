"""Presets: named schedules. `schedule_overrides.py` replaces values of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Leftovers, Stream
from tailrace.policies.strategies import (
    KINDS,
    Migration,
    ParallelSizes,
    Routing,
    Scaling,
    Synchronization,
    Timeouts,
)

PresetName = Literal[
    "sync", "stage-overlap", "tail-batching", "rollpacker", "active-partial", "one-step", "async-cap", "staleflow",
    "rollout-only",
]  # fmt: skip
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
    bound: AdmissionRule = AdmissionRule.DEADLINE
    """How `max_staleness` is enforced, unless it is None."""
    stream: Stream = Stream.NEVER
    """Whether complete groups are trained while their round still runs."""
    lending: Scaling = Scaling.NEVER
    """When instances are lent to training for the rest of a round."""
    parallelism: ParallelSizes = ParallelSizes.FIXED
    """How the parallel size of a round is chosen."""
    routing: Routing = Routing.VANILLA
    synchronization: Synchronization = Synchronization.VANILLA
    migration: Migration = Migration.VANILLA
    timeouts: Timeouts = Timeouts.FIXED
    """How long test cases of programs may run."""
    offloads_judge: bool = False
    """Whether half of the layers of a judge beside rollout lie in host memory."""
    leaves_out: bool = False
    """Whether parts that cannot work with the other settings are left out (`preset_parts.py`). If not, they are
    refused."""


PRESETS: dict[str, Preset] = {
    "sync": Preset(),
    "stage-overlap": Preset(stream=Stream.ALWAYS),
    "tail-batching": Preset(over_provision_prompts=1.25, over_provision_responses=1.25, leftovers=Leftovers.DEFER),
    "rollpacker": Preset(
        over_provision_prompts=1.25,
        over_provision_responses=1.25,
        leftovers=Leftovers.DEFER,
        stream=Stream.ALWAYS,
        lending=Scaling.KV_PEAK,
        parallelism=ParallelSizes.PREEMPTIONS,
        timeouts=Timeouts.ADAPTIVE,
        offloads_judge=True,
        leaves_out=True,
    ),
    "active-partial": Preset(over_provision_prompts=2.0, leftovers=Leftovers.RESUME, max_staleness=None),
    "one-step": Preset(max_staleness=1, rounds_ahead=1),
    "async-cap": Preset(leftovers=Leftovers.KEEP, max_staleness=1, bound=AdmissionRule.COUNT, routing=Routing.FIXED),
    "staleflow": Preset(
        leftovers=Leftovers.KEEP,
        max_staleness=1,
        routing=Routing.THROUGHPUT,
        synchronization=Synchronization.THROUGHPUT,
        migration=Migration.THROUGHPUT,
    ),
    ROLLOUT_ONLY: Preset(),
}


_STREAM_SHARES = {Stream.ALWAYS: 0.125, Stream.ONCE: 0.5}
"""Least part of a batch that is trained at once while its round runs, where it is not given."""


def stream_groups(stream: Stream, share: float | None, *, batch_size: int) -> int:
    """Fewest groups that are trained at once while their round runs."""
    return max(1, math.ceil((share or _STREAM_SHARES.get(stream, 0.0)) * batch_size - 1e-9))


def check_trains(name: str, more: Collection[str] = ()) -> None:
    """Raise ``ValueError`` unless ``name`` is a preset that trains, or is in ``more``."""
    if name == ROLLOUT_ONLY:
        raise ValueError(f"'{name}' does not train, so it has no steps to compare")
    known = [*(preset for preset in PRESETS if preset != ROLLOUT_ONLY), *more]
    if name not in known:
        raise ValueError(f"no schedule '{name}'; there are {', '.join(known)}")


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
