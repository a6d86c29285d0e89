"""The properties of the schedules' specifications, each held to random histories with fixed seeds.

`make histories` runs many more of them (`TAILRACE_HISTORIES` multiplies the counts).
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from core.histories import History, active_partial, any_schedule, history, seeds, tail_batching
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import TrajectoryId
from tailrace.core.schedule import EpochEnd, Leftovers, Schedule
from tailrace.core.trajectory import Finish

SCALE = float(os.environ.get("TAILRACE_HISTORIES", "1"))


def tail_histories(count: int, **changes: object) -> list[History]:
    rngs = [random.Random(f"tail-{seed}") for seed in seeds(round(count * SCALE))]
    return [history(tail_batching(rng, **changes), rng, trouble=0.0, checks=False) for rng in rngs]


def partial_histories(count: int, **changes: object) -> list[History]:
    rngs = [random.Random(f"partial-{seed}") for seed in seeds(round(count * SCALE))]
    return [history(active_partial(rng, **changes), rng, trouble=0.0, checks=False) for rng in rngs]


@pytest.fixture(scope="module")
def tail() -> list[History]:
    return tail_histories(600)


@pytest.fixture(scope="module")
def partial() -> list[History]:
    return partial_histories(500)


@pytest.mark.parametrize("seed", range(12))
def test_any_sound_schedule_keeps_every_invariant_and_reaches_its_end(seed: int) -> None:
    """With lost instances, failing rewards and saves, crashes and resumes; every event checked."""
    for number in seeds(round(60 * SCALE), first=seed * 100_000):
        rng = random.Random(f"any-{number}")
        # Looking at everything after every event takes ten times as long as the event: for one history in five.
        found = history(any_schedule(rng), rng, trouble=rng.choice([0.0, 0.03, 0.1]), checks=number % 5 == 0)
        found.world.coordinator.check()
        holds = found.verdict.is_complete or any(
            words in found.verdict.reason for words in ("failing reward", "equal scores")
        )
        assert holds, found.verdict.reason
        if found.verdict.is_complete:
            assert_trained_once(found)
            assert_within_bound(found)


def assert_trained_once(found: History) -> None:
    schedule = found.schedule
    assert len(found.steps()) == schedule.max_steps
    assert max(found.trained().values()) == 1, "a prompt was trained twice in one pass"
    for step in found.steps():
        assert list(step.trajectories) == sorted(step.trajectories)
        groups = Counter(t.group for t in step.trajectories)
        if schedule.epoch_end is EpochEnd.CARRY:
            assert len(groups) == schedule.batch_size
        if not schedule.drops_failed_rewards:
            assert set(groups.values()) == {schedule.group_size}


def assert_within_bound(found: History) -> None:
    """Staleness 1: at the step of version v every token is of version v - bound or newer, as the reports have it."""
    oldest: dict[TrajectoryId, int] = {}
    lengths: Counter[TrajectoryId] = Counter()
    for entry in found.world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            for part in (*entry.event.progressed, *entry.event.finished):
                if part.length > lengths[part.trajectory]:
                    lengths[part.trajectory] = part.length
                    oldest.setdefault(part.trajectory, entry.event.version)
        for step in (command for command in entry.commands if isinstance(command, do.TrainStep)):
            # A response without tokens is as fresh as can be.
            assert step.oldest == tuple(oldest.get(t, step.version) for t in step.trajectories)
            if found.schedule.is_strict:
                assert min(step.oldest) >= step.version - (found.schedule.max_staleness or 0)


def test_tail_1_no_prompt_is_lost_or_duplicated(tail: list[History]) -> None:
    for found in tail:
        state = found.world.coordinator._state
        queued, held = set(state.queue), set(state.held)
        live = {g for g in state.groups if g.source == "train"} - queued
        trained = set(found.trained())
        parts = [trained, queued, held, live, found.left_out()]
        assert sum(len(part) for part in parts) == len(set().union(*parts)), "a prompt is in two places"
        assert set().union(*parts) == set(found.offered())
        assert max(found.offered().values()) == 1


def test_tail_2_a_batch_is_whole_and_of_one_version(tail: list[History]) -> None:
    for found in tail:
        assert_trained_once(found)
        assert all(set(step.oldest) == {step.version} for step in found.steps())


def test_tail_3_the_queue_grows_and_shrinks_by_the_rule(tail: list[History]) -> None:
    for found in tail:
        schedule, size = found.schedule, 0
        for opened, closed in found.rounds():
            assert size < 2 * schedule.batch_size
            size -= len(opened.restarted) + len(opened.resumed)
            size += len(closed.deferred)
            surplus = schedule.num_launched - schedule.batch_size
            assert len(closed.deferred) == (0 if closed.is_long else surplus)
            assert len(opened.restarted) == (schedule.batch_size if opened.is_long else 0)


def test_tail_4_the_kind_of_a_round_follows_from_the_queue_and_nothing_waits_long(tail: list[History]) -> None:
    for found in tail:
        schedule, queue = found.schedule, {}
        bound = 2 * -(-schedule.batch_size // (schedule.num_launched - schedule.batch_size)) + 2
        for opened, closed in found.rounds():
            assert opened.is_long == (len(queue) >= schedule.batch_size)
            if opened.is_long:
                assert list(opened.restarted) == list(queue)[: schedule.batch_size], "not the oldest first"
            for group in opened.restarted:
                assert opened.round - queue.pop(group) <= bound
            queue |= dict.fromkeys(sorted(closed.deferred), closed.round)


def test_tail_5_nothing_of_a_round_is_left_when_the_next_begins(tail: list[History]) -> None:
    for found in tail:
        running: set[object] = set()
        scoring: set[object] = set()
        for entry in found.world.entries:
            match entry.event:
                case ev.RolloutReported(finished=finished):
                    running -= {part.trajectory for part in finished}
                case ev.ResponsesScored(scores=scores):
                    scoring -= {scored.trajectory for scored in scores}
            for command in entry.commands:
                match command:
                    case do.Submit(dispatches=dispatches):
                        running |= {d.trajectory for d in dispatches if d.trajectory.group.source == "train"}
                    case do.Score(trajectories=trajectories):
                        scoring |= {t for t in trajectories if t.group.source == "train"}
                    case do.Abort(trajectories=trajectories):
                        running -= set(trajectories)
                    case do.CancelScores(trajectories=trajectories):
                        scoring -= set(trajectories)
                    case do.CloseRound():
                        assert not running
                        assert not scoring


def test_the_default_rhythm_is_four_short_rounds_and_a_long_one() -> None:
    schedule = tail_batching(
        random.Random(0), batch_size=4, group_size=2, launch_prompts=5, launch_responses=3, max_steps=11
    )
    found = history(schedule, random.Random(1), trouble=0.0)
    kinds = [opened.is_long for opened, _ in found.rounds()]
    assert kinds == ([False] * 4 + [True]) * 2 + [False]


def test_filtered_groups_leave_and_long_rounds_are_topped_up() -> None:
    for found in tail_histories(40, filters_equal_scores=True, group_size=2, launch_responses=2):
        if found.verdict.is_complete:
            assert_trained_once(found)
            assert not found.left_out() & set(found.trained())


def test_flushed_epochs_train_every_prompt_exactly_once_per_pass() -> None:
    for found in tail_histories(40, epoch_end=EpochEnd.FLUSH, max_steps=14):
        assert found.verdict.is_complete
        epochs = Counter(group.epoch for group in found.trained())
        newest = max(epochs)
        assert all(count == 29 for epoch, count in epochs.items() if epoch < newest)
        passes = [{t.group.epoch for t in step.trajectories} for step in found.steps()]
        assert passes == sorted(passes, key=min), "a pass began again"
        assert all(len(epochs) == 1 for epochs in passes), "a step mixes two passes"


def test_partial_1_nothing_disappears(partial: list[History]) -> None:
    for found in partial:
        live = {g for g in found.world.coordinator._state.groups if g.source == "train"}
        assert not live & set(found.trained())
        assert live | set(found.trained()) | found.left_out() == set(found.offered())
        assert not any(isinstance(c, do.Abort) for c in found.commands), "something that ran was thrown away"


def test_partial_3_versions_never_decrease_along_a_response(partial: list[History]) -> None:
    for found in partial:
        newest: dict[object, tuple[int, int]] = {}
        for entry in found.world.entries:
            if isinstance(entry.event, ev.RolloutReported):
                for part in (*entry.event.progressed, *entry.event.finished):
                    length, version = newest.get(part.trajectory, (0, 0))
                    assert part.length >= length
                    assert entry.event.version >= version
                    newest[part.trajectory] = (part.length, entry.event.version)


def test_partial_6_what_was_begun_goes_on_before_anything_new(partial: list[History]) -> None:
    for found in partial:
        schedule, waiting, begun = found.schedule, set(), set()
        for entry in found.world.entries:
            if isinstance(entry.event, ev.RolloutReported):
                waiting |= {p.trajectory for p in entry.event.finished if p.finish is Finish.INTERRUPTED}
            for command in entry.commands:
                if isinstance(command, do.OpenRound):
                    assert len(command.resumed) <= schedule.num_launched - schedule.batch_size
            # All that is given out in answer to one event counts as given at once, whichever instance gets it.
            submits = [command for command in entry.commands if isinstance(command, do.Submit)]
            given = {d.trajectory for submit in submits for d in submit.dispatches}
            given = {trajectory for trajectory in given if trajectory.group.source == "train"}
            is_new = any(trajectory.group not in begun for trajectory in given)
            begun |= {trajectory.group for trajectory in given}
            waiting -= given
            assert not (is_new and waiting), "something new began while something begun waited"


def test_partial_7_a_step_has_exactly_its_groups_in_order(partial: list[History]) -> None:
    for found in partial:
        assert_trained_once(found)


def test_a_step_says_which_version_wrote_the_first_token_of_each_response(partial: list[History]) -> None:
    has_several = False
    for found in partial:
        versions: dict[object, list[int]] = {}
        for entry in found.world.entries:
            if isinstance(entry.event, ev.RolloutReported):
                for part in (*entry.event.progressed, *entry.event.finished):
                    if part.length:
                        versions.setdefault(part.trajectory, []).append(entry.event.version)
        for step in found.steps():
            writers = [versions.get(trajectory, [step.version]) for trajectory in step.trajectories]
            assert list(step.oldest) == [numbers[0] for numbers in writers]
            has_several = has_several or any(len(set(numbers)) > 1 for numbers in writers)
    assert has_several, "no response was continued, so the test shows nothing"


def test_partial_cap_on_versions_is_kept() -> None:
    for found in partial_histories(60, max_versions_per_sample=2):
        versions: dict[object, set[int]] = {}
        lengths: Counter[object] = Counter()
        for entry in found.world.entries:
            if isinstance(entry.event, ev.RolloutReported):
                for part in (*entry.event.progressed, *entry.event.finished):
                    if part.length > lengths[part.trajectory]:  # a version that wrote nothing left nothing behind
                        lengths[part.trajectory] = part.length
                        versions.setdefault(part.trajectory, set()).add(entry.event.version)
        assert all(len(v) <= 2 for v in versions.values())


def overlaps(found: History) -> int:
    """Steps asked for while their version was being published; holds each push to what instances may rely on."""
    count, publishing = 0, None
    published, reached = {0}, 0
    for entry in found.world.entries:
        match entry.event:
            case ev.WeightsPublished(version=version):
                published.add(version)
                publishing = None
            case ev.StepTrained(version=version):
                assert publishing is None, "the weights changed while they were read"
                reached = version
        for command in entry.commands:
            match command:
                case do.PublishWeights(version=version):
                    assert version == reached
                    publishing = version
                case do.TrainStep(version=version):
                    count += publishing == version
                case do.PullWeights(version=version):
                    assert version in published, "a version was pulled that was not published"
    return count


def test_a_version_is_published_while_the_next_step_trains_where_a_batch_is_ready() -> None:
    found = dict.fromkeys((Leftovers.KEEP, Leftovers.WAIT), 0)
    for seed in seeds(round(30 * SCALE)):
        for leftovers in found:
            rng = random.Random(f"push-{seed}")
            bound = 2 if leftovers is Leftovers.KEEP else 0
            schedule = Schedule(
                train_source="train", batch_size=2, group_size=1, max_steps=6, leftovers=leftovers, max_staleness=bound
            )
            found[leftovers] += overlaps(history(schedule, rng, trouble=0.0))
    assert found[Leftovers.KEEP] > 0
    assert found[Leftovers.WAIT] == 0, "a synchronous batch needs the version before it"


def test_keep_never_discards_and_never_exceeds_its_bound() -> None:
    for seed in seeds(round(60 * SCALE)):
        rng = random.Random(f"keep-{seed}")
        bound, size = rng.choice([0, 1, 2, 3]), rng.randint(1, 3)
        schedule = Schedule(
            train_source="train",
            batch_size=size,
            group_size=2,
            max_steps=6,
            leftovers=Leftovers.KEEP,
            max_staleness=bound,
            num_instances=rng.randint(1, 3),
        )
        found = history(schedule, rng, trouble=0.0)
        assert found.verdict.is_complete
        assert_trained_once(found)
        assert_within_bound(found)
        assert set(found.trained()) == set(found.offered()), "a prompt was issued and not trained"
