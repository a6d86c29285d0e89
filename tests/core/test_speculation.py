"""The search for the over-provisioning: every trial gets its rounds, then the best over a period is kept."""

from __future__ import annotations

import random

import pytest

from core.histories import history
from tailrace.config import presets
from tailrace.core import commands as do
from tailrace.core.collection.round import Round
from tailrace.core.collection.speculation import ROUNDS_PER_TRIAL, Search
from tailrace.core.ids import Version
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.core.schedule.soundness import sound

TRIALS = ((5, 3), (6, 3), (8, 4))


def tail_batching(**changes: object) -> Schedule:
    settings = {
        "train_source": "train",
        "batch_size": 4,
        "group_size": 2,
        "max_steps": 24,
        "launch_prompts": 6,
        "launch_responses": 3,
        "trials": TRIALS,
        "leftovers": Leftovers.DEFER,
        "num_instances": 2,
    }
    return sound(Schedule(**(settings | changes)))


def round_of(size: int, *, is_long: bool = False) -> Round:
    return Round(number=0, is_long=is_long, version=Version(0), size=size, num_kept=size, num_members=2, batch_size=4)


def searched(short: dict[int, float], long: float | None) -> Search:
    search = Search()
    for size, seconds in short.items():
        for _ in range(ROUNDS_PER_TRIAL):
            search.note(round_of(size), seconds)
    if long is not None:
        search.note(round_of(4, is_long=True), long)
    return search


def test_trials_come_one_after_the_other_and_the_preset_serves_until_a_long_round_was_seen() -> None:
    schedule, search = tail_batching(), Search()
    seen = []
    for _ in range(ROUNDS_PER_TRIAL * len(TRIALS)):
        seen.append(search.launch(schedule))
        search.note(round_of(seen[-1][0]), 1.0)
    assert seen == [trial for trial in TRIALS for _ in range(ROUNDS_PER_TRIAL)]
    assert search.launch(schedule) == (6, 3)


@pytest.mark.parametrize(
    ("short", "long", "best"),
    [
        # 4, 2 and 1 short rounds per long one: (4 * 3 + 20) / 5, (2 * 1 + 20) / 3, (1 * 1 + 20) / 2
        ({5: 3.0, 6: 1.0, 8: 1.0}, 20.0, (5, 3)),
        # (4 * 30 + 20) / 5, (2 * 2 + 20) / 3, (1 * 2 + 20) / 2
        ({5: 30.0, 6: 2.0, 8: 2.0}, 20.0, (6, 3)),
        # (4 * 9 + 10) / 5, (2 * 9 + 10) / 3, (1 * 1 + 10) / 2
        ({5: 9.0, 6: 9.0, 8: 1.0}, 10.0, (8, 4)),
    ],
)
def test_the_trial_with_the_least_seconds_per_step_of_a_period_is_kept(
    short: dict[int, float], long: float, best: tuple[int, int]
) -> None:
    schedule = tail_batching()
    search = searched(short, long)
    assert search.launch(schedule) == best
    costs = {size: search.seconds_per_step(schedule, size) for size in short}
    num_short = 4 / (best[0] - 4)
    assert costs[best[0]] == pytest.approx((num_short * short[best[0]] + long) / (num_short + 1)) == min(costs.values())


def test_without_trials_the_preset_is_launched() -> None:
    assert searched({6: 1.0}, 1.0).launch(tail_batching(trials=())) == (6, 3)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_tries_each_then_settles_and_loses_no_prompt(seed: int) -> None:
    found = history(tail_batching(), random.Random(f"search-{seed}"), trouble=0.0)
    assert found.verdict.is_complete
    commands = [c for entry in found.world.entries for c in entry.commands]
    rounds = [c for c in commands if isinstance(c, do.OpenRound)]
    short = [(r.num_prompts, r.num_responses) for r in rounds if not r.is_long]
    num_trials = ROUNDS_PER_TRIAL * len(TRIALS)
    assert short[:num_trials] == [trial for trial in TRIALS for _ in range(ROUNDS_PER_TRIAL)]
    assert all(r.num_prompts == 4 and r.num_responses == 2 for r in rounds if r.is_long)
    assert set(short[num_trials:]) <= {*TRIALS, (6, 3)}
    closed = [c for c in commands if isinstance(c, do.CloseRound)]
    for opened, ended in zip(rounds, closed, strict=True):
        assert len(ended.deferred) == opened.num_prompts - 4
    assert max(found.trained().values()) == 1


def test_the_search_survives_a_restart() -> None:
    schedule = tail_batching(max_steps=12)
    for seed in range(4):
        found = history(schedule, random.Random(f"restart-{seed}"), trouble=0.05)
        assert found.verdict.is_complete
        rooms = found.world.coordinator.rooms
        assert (
            sum(timing.count for timing in rooms.collection.search.short.values()) + rooms.collection.search.long.count
            >= 12
        )


def test_strict_mode_never_launches_more_responses() -> None:
    preset = presets.PRESETS["tail-batching"]
    assert presets.trials(preset, (1.1, 1.4), batch_size=128, group_size=8) == ((140, 9), (179, 12))
    strict = presets.Preset(over_provision_prompts=1.25, leftovers=Leftovers.DEFER)
    assert presets.trials(strict, (1.1, 1.4), batch_size=128, group_size=8) == ((140, 8), (179, 8))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"leftovers": Leftovers.RESUME, "max_staleness": None, "launch_responses": 2}, "only 'defer' has"),
        ({"trials": ((4, 3),)}, "launches more than 4 prompts"),
        ({"trials": ((5, 1),)}, "at least 2 responses"),
    ],
)
def test_unsound_trials_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tail_batching(**changes)
