"""A schedule is built from settings and the number of usable prompts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from core.histories import History
from core.world import World
from tailrace.config import schedule_builder
from tailrace.config.aliases import put
from tailrace.config.load import SettingsError, leaves
from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.config.settings import Settings
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Coordination, EpochEnd, Leftovers, OnStuck, Placement, Schedule, Stream, VersionCap


def built(num_prompts: int, *, batch_size: int, **schedule: Any) -> Schedule:
    settings = Settings.model_validate(
        {
            "rollout": {"n_samples_per_prompt": 2},
            "schedule": {"preset": "tail-batching", "rollout_batch_size": batch_size, **schedule},
        }
    )
    return schedule_builder.schedule(settings, {"train": num_prompts}, prompt_length=8)


@pytest.mark.parametrize(
    ("num_prompts", "batch_size", "num_epochs", "steps"),
    [(1000, 128, 1, 8), (1000, 125, 1, 8), (1000, 128, 3, 24), (29, 4, 2, 16)],
)
def test_flushed_epochs_get_a_step_for_the_prompts_that_do_not_fill_a_batch(
    num_prompts: int, batch_size: int, num_epochs: int, steps: int
) -> None:
    found = built(num_prompts, batch_size=batch_size, epoch_end="flush", num_epochs=num_epochs)
    assert found.max_steps == steps


def test_carried_epochs_get_a_step_for_each_full_batch() -> None:
    assert built(1000, batch_size=128, num_epochs=1).max_steps == 7
    assert built(1000, batch_size=128, num_epochs=3).max_steps == 23


def test_given_steps_are_taken_as_they_are() -> None:
    assert built(1000, batch_size=128, epoch_end="flush", max_steps=5).max_steps == 5


@pytest.mark.parametrize("num_epochs", [1, 2])
@pytest.mark.parametrize(("num_prompts", "batch_size"), [(29, 4), (28, 4), (10, 8), (31, 3)])
def test_a_run_over_flushed_epochs_trains_every_prompt_exactly_once_in_each(
    num_prompts: int, batch_size: int, num_epochs: int
) -> None:
    schedule = built(num_prompts, batch_size=batch_size, epoch_end="flush", num_epochs=num_epochs)
    world = World(schedule, random.Random(num_prompts), num_prompts=num_prompts)
    found = History(schedule=schedule, world=world, verdict=world.run())
    assert found.verdict.is_complete
    trained = Counter((group.epoch, group.prompt) for group in found.trained().elements())
    assert trained == {(epoch, prompt): 1 for epoch in range(num_epochs) for prompt in range(num_prompts)}


def of(name: str) -> Callable[[Schedule], Any]:
    return lambda schedule: getattr(schedule, name)


def of_lending(name: str) -> Callable[[Schedule], Any]:
    return lambda schedule: getattr(schedule.lending, name)


def of_limits(name: str) -> Callable[[Schedule], Any]:
    return lambda schedule: getattr(schedule.limits, name)


def of_coordination(name: str) -> Callable[[Schedule], Any]:
    def read(schedule: Schedule) -> Any:
        assert isinstance(schedule.coordination, Coordination)
        return getattr(schedule.coordination, name)

    return read


TWO_SOURCES = [{"name": "easy", "path": "a.jsonl"}, {"name": "hard", "path": "b.jsonl"}]
DEFER, RESUME = {"schedule.preset": "tail-batching"}, {"schedule.preset": "active-partial"}
KEEP = {"schedule.preset": "staleflow"}
STRATEGIES = {
    f"schedule.{name}": (KEEP, "vanilla", of_coordination(name), "vanilla")
    for name in ("routing", "synchronization", "migration")
}
NUMBERS = {
    f"schedule.coordination.{name}": (KEEP, value, of_coordination(name), value)
    for name, value in {
        "min_gain": 0.5,
        "max_waiting": 7,
        "max_gap": 2.0,
        "pause_s": 3.0,
        "plan_interval_s": 0.2,
    }.items()
}
SIZES = {"rollout.engine": "vllm", "rollout.num_instances": 2, "rollout.parallel_sizes": [1, 2]}
LIMITS = {
    f"limits.{name}": ({}, 17, of_limits(name), 17)
    for name in ("start_s", "progress_s", "stall_s", "train_s", "weights_s", "checkpoint_s", "stop_s", "max_restarts")
}
MEANING: dict[str, tuple[dict[str, Any], Any, Callable[[Schedule], Any], Any]] = {
    "schedule.preset": ({}, "one-step", of("rounds_ahead"), 1),
    "schedule.rollout_batch_size": ({}, 5, of("batch_size"), 5),
    "schedule.over_provision_prompts": (DEFER, 1.5, of("launch_prompts"), 48),
    "schedule.over_provision_responses": (DEFER, 1.5, of("launch_responses"), 12),
    "schedule.over_provision_trials": (DEFER, [1.5, 2.0], of("trials"), ((48, 12), (64, 16))),
    "schedule.leftovers": (DEFER, "drop", of("leftovers"), Leftovers.DROP),
    "schedule.max_staleness": (RESUME, 3, of("max_staleness"), 3),
    "schedule.bound": ({"schedule.preset": "async-cap"}, "order", of("admission"), AdmissionRule.ORDER),
    "schedule.stream": ({}, "once", of("stream"), Stream.ONCE),
    "schedule.stream_share": ({"schedule.stream": "always"}, 0.5, of("stream_groups"), 16),
    "schedule.lending": ({"schedule.stream": "always"}, "kv-peak", of_lending("strategy"), "kv-peak"),
    "schedule.lend_at": ({"schedule.stream": "always", "schedule.lending": "fixed"}, 0.3, of_lending("at"), 0.3),
    "schedule.parallelism": (SIZES, "preemptions", lambda schedule: schedule.parallelism.strategy, "preemptions"),
    "schedule.parallel_horizon": (SIZES, "any", lambda schedule: schedule.parallelism.horizon, None),
    "schedule.rounds_ahead": ({"schedule.max_staleness": 2}, 2, of("rounds_ahead"), 2),
    "schedule.coordination.validation": (KEEP, "global", of_coordination("is_global"), True),
    "schedule.placement": ({}, "colocated", of("placement"), Placement.COLOCATED),
    "schedule.keep_deferred_tokens": (
        DEFER | {"schedule.max_staleness": 1, "schedule.rounds_ahead": 1}, True, of("keep_deferred_tokens"), True
    ),
    "schedule.epoch_end": (DEFER, "flush", of("epoch_end"), EpochEnd.FLUSH),
    "schedule.max_versions_per_sample": (RESUME, 4, of("max_versions_per_sample"), 4),
    "schedule.on_version_cap": (
        RESUME | {"schedule.max_versions_per_sample": 4}, "restart", of("version_cap"), VersionCap.RESTART
    ),
    "schedule.max_restarts_per_sample": (RESUME, 5, of("max_restarts_per_sample"), 5),
    "schedule.max_stuck_s": (KEEP, 9.0, of("max_stuck_s"), 9.0),
    "schedule.on_stuck": (KEEP | {"schedule.max_stuck_s": 9.0}, "drop", of("on_stuck"), OnStuck.DROP),
    "schedule.source_quotas": (DEFER | {"data.sources": TWO_SOURCES}, False, of("has_quotas"), False),
    "schedule.max_steps": ({}, 11, of("max_steps"), 11),
    "schedule.num_epochs": ({}, 2, of("max_steps"), 20),
    "schedule.num_prompts": (
        {"schedule.preset": "rollout-only"}, 12, lambda schedule: schedule.eval_sets[0].num_prompts, 12
    ),
    "reward.timing": ({}, "barrier", of("is_reward_streamed"), False),
    "reward.on_failure": ({}, "drop", of("drops_failed_rewards"), True),
    "reward.timeout_s": ({}, 30.0, of_limits("reward_s"), 150.0),
    **STRATEGIES,
    **NUMBERS,
    **LIMITS,
}  # fmt: skip
"""For each setting: what it needs beside it, a value that is not the default, and where the schedule has it."""

OF_THE_MACHINE = {"schedule.mps"}
"""Settings that the core does not see. ``test_mps.py`` tests them."""


def test_every_setting_of_the_schedule_has_a_meaning() -> None:
    named = {name for name, _ in leaves(Settings) if name.startswith(("schedule.", "limits."))}
    assert {name for name in MEANING if not name.startswith("reward.")} == named - OF_THE_MACHINE


@pytest.mark.parametrize("name", MEANING)
def test_a_setting_reaches_the_schedule(name: str) -> None:
    beside, value, read, expected = MEANING[name]
    tree: dict[str, Any] = {}
    for key, given in beside.items():
        put(tree, key, given)
    without = schedule_builder.schedule(Settings.model_validate(tree), {"train": 320}, prompt_length=8)
    assert read(without) != expected, "the value is the default"
    put(tree, name, value)
    found = schedule_builder.schedule(Settings.model_validate(tree), {"train": 320}, prompt_length=8)
    assert read(found) == expected


@pytest.mark.parametrize(("given", "interval", "share"), [({}, None, 0.03), ({"save_interval": None}, None, 0.0)])
def test_checkpoints_follow_time_unless_the_end_is_asked_for(
    given: dict[str, Any], interval: int | None, share: float
) -> None:
    made = schedule_builder.schedule(Settings.model_validate(given), {"train": 100}, prompt_length=8)
    assert (made.save_interval, made.save_share) == (interval, share)
    steps = schedule_builder.schedule(Settings(save_interval=7), {"train": 100}, prompt_length=8)
    assert (steps.save_interval, steps.save_share) == (7, 0.0)


def test_an_instance_gets_twice_what_it_can_run() -> None:
    made = schedule_builder.schedule(
        Settings.model_validate({"rollout": {"max_running": 24}}), {"train": 320}, prompt_length=8
    )
    assert (made.max_in_flight, made.coordination.max_running) == (48, 24)
    standard = schedule_builder.schedule(Settings(), {"train": 320}, prompt_length=8)
    assert standard.max_in_flight == 256


def test_another_preset_leaves_everything_else_as_it_was() -> None:
    """A replay has the machine, the limits and the in-flight limit of its journal, whatever the formula is today."""
    tree = {"schedule": {"preset": "staleflow", "max_staleness": 3, "max_stuck_s": 9.0, "on_stuck": "drop"}}
    recorded = schedule_builder.schedule(Settings.model_validate(tree), {"train": 320}, prompt_length=8)
    recorded = replace(recorded, max_in_flight=77, edition=1, limits=replace(recorded.limits, train_s=5.0))
    found = schedule_builder.apply_preset(recorded, ScheduleOverrides(preset="tail-batching"))
    direct = schedule_builder.schedule(
        Settings.model_validate({"schedule": {"preset": "tail-batching"}}), {"train": 320}, prompt_length=8
    )
    assert found == replace(direct, max_in_flight=77, edition=1, limits=recorded.limits)


def test_a_combination_that_cannot_work_is_refused_by_the_builder() -> None:
    with pytest.raises(SettingsError, match="the schedule does not work: 'keep' without a bound"):
        built(100, batch_size=4, leftovers="keep", max_staleness="unbounded")
    plain = built(100, batch_size=4)
    with pytest.raises(ValueError, match="it needs 'resume'"):
        schedule_builder.apply_preset(plain, ScheduleOverrides(preset="sync", max_versions_per_sample=2))


def test_no_bound_reaches_the_ledger_as_none() -> None:
    free = built(100, batch_size=4, preset="active-partial", bound="count")
    assert (free.max_staleness, free.ledger.max_staleness, free.ledger.max_entries) == (None, None, None)
    assert not free.is_strict
    assert not free.ledger.is_strict
