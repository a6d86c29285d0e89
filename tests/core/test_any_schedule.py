"""What holds for every sound schedule, over random histories."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given

from core.histories import (
    Case,
    History,
    cases,
    check_batches,
    check_bound,
    check_conservation,
    held_to,
    history,
    lagging_cases,
    one_schedule,
)
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.schedule import Leftovers, Placement, Schedule


def check_end(found: History) -> None:
    found.world.coordinator.check()
    # In the world of these tests a response may take longer than the shortest max_stuck_s that is drawn.
    reasons = ("failing reward", "equal scores", "responses take longer than max_stuck_s")
    assert found.verdict.is_complete or any(words in found.verdict.reason for words in reasons), found.verdict.reason
    if found.verdict.is_complete:
        check_batches(found)
        check_bound(found)
        check_conservation(found)


@held_to(150)
@given(cases(one_schedule, 0.0, 0.03, 0.1))
def test_any_sound_schedule_reaches_its_end(case: Case) -> None:
    """With lost instances, failing rewards and saves, crashes and resumes."""
    check_end(case.run())


@held_to(60)
@given(cases(one_schedule, 0.0, 0.03, 0.1))
def test_any_sound_schedule_keeps_every_invariant(case: Case) -> None:
    """Looking at everything after every event takes several times as long as the event."""
    check_end(case.run(checks=True))


@held_to(60)
@given(lagging_cases(one_schedule, filters_equal_scores=False))
def test_any_sound_schedule_reaches_its_end_when_answers_are_late_or_lost(case: Case) -> None:
    check_end(case.run_lagging())


@held_to(40)
@given(cases(one_schedule, 0.0, 0.03, placement=Placement.DISAGGREGATED))
def test_rollout_on_devices_of_its_own_takes_the_decisions_of_shared_devices(case: Case) -> None:
    """To the core both are the same: nobody makes room for anybody, and rollout and training may overlap."""
    shared = replace(case, schedule=replace(case.schedule, placement=Placement.SHARED))
    apart, together = case.run(), shared.run()
    assert [entry.commands for entry in apart.world.entries] == [entry.commands for entry in together.world.entries]
    assert not any(isinstance(command, do.ReleaseMemory) for entry in apart.world.entries for command in entry.commands)


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
                case do.Accumulate(version=version):
                    count += publishing == version
                case do.PullWeights(version=version):
                    assert version in published, "a version was pulled that was not published"
    return count


def test_a_version_is_published_while_the_next_step_trains_where_a_batch_is_ready() -> None:
    found = dict.fromkeys((Leftovers.KEEP, Leftovers.WAIT), 0)
    for seed in range(30):
        for leftovers in found:
            rng = random.Random(f"push-{seed}")
            bound = 2 if leftovers is Leftovers.KEEP else 0
            schedule = Schedule(
                train_source="train", batch_size=2, group_size=1, max_steps=6, leftovers=leftovers, max_staleness=bound
            )
            found[leftovers] += overlaps(history(schedule, rng, trouble=0.0))
    assert found[Leftovers.KEEP] > 0
    assert found[Leftovers.WAIT] == 0, "a synchronous batch needs the version before it"


def kept(rng: random.Random) -> Schedule:
    return Schedule(
        train_source="train",
        batch_size=rng.randint(1, 3),
        group_size=2,
        max_steps=6,
        leftovers=Leftovers.KEEP,
        max_staleness=rng.randint(0, 3),
        num_instances=rng.randint(1, 3),
    )


@held_to(60)
@given(cases(kept))
def test_keep_never_drops_and_never_exceeds_its_bound(case: Case) -> None:
    found = case.run()
    check_end(found)
    assert set(found.trained()) == set(found.offered()), "a prompt was issued and not trained"
