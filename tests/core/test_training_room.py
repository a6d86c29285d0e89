"""What the training room answers: what instances may hold, when the trainer is at rest, and what it is waited for."""

from __future__ import annotations

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, Version
from tailrace.core.requests import OpenRequest
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Limits, Schedule
from tailrace.core.training import facts
from tailrace.core.training.room import Training
from tailrace.core.training.rules import advance
from tailrace.core.training.saves import Saves
from tailrace.core.training.step import Step
from tailrace.policies.strategies import policies_of

LIMITS = Limits(start_s=1.0, train_s=2.0, weights_s=3.0, checkpoint_s=4.0)
BATCH = (GroupId("train", 0, 0), GroupId("train", 0, 1))
NEWEST = 2
"""An edition of the rules that can start the trainer again."""


def request(version: int, since: float = 0.0) -> OpenRequest:
    return OpenRequest(since=since, version=Version(version))


def stepping(since: float = 0.0) -> Step:
    """A step whose only piece and whose finish the trainer was sent."""
    return Step(num_sent=1, is_finishing=True, since=since)


def ready(version: int, **changes: object) -> Training:
    """A trainer that holds this version, which is published."""
    here = Version(version)
    given = {"version": here, "published": here, "trainer": here, "is_trainer_asked": True, **changes}
    return Training(**given)


def waits(training: Training, edition: int = NEWEST) -> list[tuple[str, float, float, bool]]:
    return [(wait.what, wait.since, wait.limit_s, wait.is_trainer) for wait in training.waits(LIMITS, edition)]


def test_an_instance_holds_at_most_the_published_version_unless_a_newer_one_may_be_there_unannounced() -> None:
    assert ready(3, published=Version(2)).newest_pullable == 2
    assert ready(3, published=Version(2), publishing=request(3)).newest_pullable == 3
    assert ready(3, published=Version(2), can_pull=False).newest_pullable == 3, "it was published before the loss"
    assert ready(3, published=Version(-1)).newest_pullable == 0, "the version that instances start with"


def test_colocated_rollout_has_the_device_when_no_step_can_follow() -> None:
    assert ready(2).is_device_free(is_evaluated=True)
    assert not ready(2, batches=[BATCH]).is_device_free(is_evaluated=True)
    assert ready(2, batches=[BATCH]).is_device_free(is_evaluated=False), "the evaluation needs it first"
    assert not ready(2, published=Version(1)).is_device_free(is_evaluated=True)


def test_a_step_is_due_when_a_batch_is_there_and_nothing_else_has_to_come_first() -> None:
    assert ready(2, batches=[BATCH]).is_due(is_evaluated=True)
    assert not ready(2, batches=[BATCH]).is_due(is_evaluated=False)
    assert not ready(2).is_due(is_evaluated=True)
    assert not ready(2, batches=[BATCH], step=stepping()).is_due(is_evaluated=True)
    assert not ready(2, batches=[BATCH], trainer=Version(1)).is_due(is_evaluated=True)
    assert not ready(2, batches=[BATCH], killed_at=0.0).is_due(is_evaluated=True)


def test_a_trainer_without_a_batch_is_starved() -> None:
    assert ready(2).is_starved
    assert not ready(2, batches=[BATCH]).is_starved
    assert not ready(2, trainer=None).is_starved


def test_groups_of_all_batches_are_counted() -> None:
    training = ready(1)
    training.add_batch(BATCH)
    training.add_batch(BATCH[:1])
    assert (training.num_batches, training.num_waiting_groups) == (2, 3)


@pytest.mark.parametrize(
    ("changes", "is_at_rest"),
    [
        ({"saves": Saves(version=Version(3))}, True),
        ({"saves": Saves(version=Version(2))}, False),
        ({"saves": Saves(version=Version(2)), "trainer": None}, True),
        ({"saves": Saves(version=Version(3)), "step": stepping()}, False),
        ({"saves": Saves(version=Version(3)), "saving": request(3)}, False),
    ],
    ids=["saved", "not saved", "it cannot save", "a step", "a checkpoint"],
)
def test_a_trainer_is_at_rest_when_all_is_saved_that_can_be(changes: dict[str, object], is_at_rest: bool) -> None:
    assert ready(3, **changes).is_at_rest == is_at_rest


def test_the_last_work_of_a_run_that_stops_is_named() -> None:
    assert ready(3).last_work == "checkpoint of step 3"
    assert ready(3, step=stepping()).last_work == "optimizer step 4 and its checkpoint"


def test_a_trainer_that_was_asked_to_start_is_awaited_and_so_is_each_step_it_takes_again() -> None:
    assert waits(Training()) == [], "it was not asked yet"
    assert waits(Training(is_trainer_asked=True, heard_at=7.0)) == [("start of the trainer", 7.0, 1.0, True)]
    behind = ready(5, trainer=Version(2), heard_at=7.0)
    assert waits(behind) == [("the trainer to take step 3 of 5 again", 7.0, 2.0, True)]
    assert waits(ready(5)) == []


def test_a_step_a_publication_and_a_checkpoint_have_limits_of_their_own() -> None:
    training = ready(3, step=stepping(5.0), publishing=request(3, 6.0))
    assert waits(training) == [
        ("optimizer step 4 and, before it, publishing of version 3", 5.0, 2.0, True),
        ("publishing of version 3", 6.0, 3.0, True),
    ]
    assert waits(ready(3, step=stepping(5.0))) == [("optimizer step 4", 5.0, 2.0, True)]


def test_a_step_is_not_awaited_before_the_checkpoint_that_comes_first() -> None:
    training = ready(3, step=stepping(5.0), saving=request(3, 4.0))
    assert waits(training) == [("checkpoint of step 3", 4.0, 4.0, True)]


def test_a_run_of_an_earlier_release_awaits_both_and_cannot_start_its_trainer_again() -> None:
    training = ready(3, step=stepping(5.0), saving=request(3, 4.0), publishing=request(3, 6.0))
    assert waits(training, edition=1) == [
        ("optimizer step 4", 5.0, 2.0, False),
        ("publishing of version 3", 6.0, 3.0, False),
        ("checkpoint of step 3", 4.0, 4.0, False),
    ]


def test_a_trainer_is_killed_once_and_then_only_its_end_is_awaited() -> None:
    training = ready(3, step=stepping())
    assert list(training.kill("it is silent", 9.0)) == [do.KillTrainer(reason="it is silent")]
    assert list(training.kill("it is silent", 10.0)) == []
    assert waits(training) == [("end of the trainer", 9.0, 1.0, False)]


def rooms_with(training: Training, **changes: object) -> Rooms:
    schedule = Schedule(**{"train_source": "train", "batch_size": 2, "group_size": 1, "max_steps": 9, **changes})
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.training = training
    return rooms


@pytest.mark.parametrize(
    ("save_due", "checkpoint", "expected"),
    [(4, 2, 4), (4, 4, None), (3, 2, None), (None, 2, None), (None, None, None)],
    ids=["still to write", "on disk", "of a version that is gone", "none is due", "there is none"],
)
def test_a_resumed_run_writes_the_checkpoint_that_was_due_unless_it_is_there_or_its_version_is_gone(
    save_due: int | None, checkpoint: int | None, expected: int | None
) -> None:
    rooms = rooms_with(ready(4, save_due=None if save_due is None else Version(save_due)))
    at = None if checkpoint is None else Version(checkpoint)
    facts.run_resumed(rooms, ev.RunResumed(limits=LIMITS, checkpoint=at), 0.0)
    assert rooms.training.save_due == expected
    assert rooms.training.saves.version == (checkpoint or 0)


@pytest.mark.parametrize(("version", "published"), [(0, 0), (4, -1)])
def test_a_resumed_run_has_published_nothing_but_the_version_that_instances_start_with(
    version: int, published: int
) -> None:
    rooms = rooms_with(ready(version, step=stepping(), publishing=request(version), killed_at=1.0))
    facts.run_resumed(rooms, ev.RunResumed(limits=LIMITS, checkpoint=None), 0.0)
    training = rooms.training
    assert (training.published, training.can_pull, training.trainer) == (published, True, None)
    assert not training.is_trainer_asked
    assert training.step == Step(since=training.step.since)
    assert training.publishing is training.saving is training.killed_at is None


@pytest.mark.parametrize("version", [0, 4])
def test_with_the_trainer_the_published_weights_are_lost_except_those_instances_start_with(version: int) -> None:
    rooms = rooms_with(ready(version))
    facts.trainer_lost(rooms, ev.TrainerLost(reason="out of memory"), 0.0)
    assert rooms.training.can_pull == (version == 0)
    assert (rooms.training.losses.count, rooms.training.losses.last) == (1, "out of memory")
    facts.trainer_lost(rooms, ev.TrainerLost(reason="again"), 0.0)
    assert rooms.training.losses.count == 1, "it was lost already"
    assert rooms.run.num_refused == 1


def test_a_trainer_that_takes_its_steps_again_reports_each_version_once() -> None:
    rooms = rooms_with(Training(version=Version(3), is_trainer_asked=True))
    for now, version, reached in ((1.0, 1, 1), (2.0, 1, 1), (3.0, 0, 1), (4.0, 3, 3), (5.0, 4, 3)):
        facts.trainer_reached(rooms, ev.TrainerReached(version=Version(version)), now)
        assert rooms.training.trainer == reached
    assert rooms.training.heard_at == 4.0, "a refused report is no sign of progress"


def test_weights_and_checkpoints_that_were_not_asked_for_are_refused() -> None:
    rooms = rooms_with(ready(3, published=Version(2), publishing=request(3), saving=request(3), save_due=Version(3)))
    facts.weights_published(rooms, ev.WeightsPublished(version=Version(2), seconds=1.0), 0.0)
    facts.checkpoint_saved(rooms, ev.CheckpointSaved(version=Version(2), seconds=1.0), 0.0)
    assert (rooms.training.published, rooms.training.saves.version, rooms.training.is_saved) == (2, 0, False)
    rooms.training.saving = request(3, since=10.0)
    facts.weights_published(rooms, ev.WeightsPublished(version=Version(3), seconds=1.0), 15.0)
    facts.checkpoint_saved(rooms, ev.CheckpointSaved(version=Version(3), seconds=1.0), 15.0)
    assert rooms.training.published == 3
    assert rooms.training.saves == Saves(version=Version(3), at=15.0, seconds=5.0)
    assert rooms.training.is_saved


@pytest.mark.parametrize(("edition", "since"), [(1, 2.0), (NEWEST, 8.0)])
def test_the_limit_of_a_step_begins_when_the_checkpoint_before_it_is_written(edition: int, since: float) -> None:
    rooms = rooms_with(ready(3, saving=request(3), save_due=Version(3), step=stepping(2.0)), edition=edition)
    facts.checkpoint_saved(rooms, ev.CheckpointSaved(version=Version(3), seconds=1.0), 8.0)
    assert rooms.training.step == stepping(since)


def test_a_checkpoint_that_became_due_meanwhile_stays_due() -> None:
    rooms = rooms_with(ready(4, saving=request(3), save_due=Version(4)))
    facts.checkpoint_saved(rooms, ev.CheckpointSaved(version=Version(3), seconds=1.0), 8.0)
    assert rooms.training.save_due == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"published": Version(2)}, [do.PublishWeights(version=Version(3))]),
        ({"can_pull": False}, [do.PublishWeights(version=Version(3))]),
        ({"published": Version(2), "publishing": request(3)}, []),
        ({"published": Version(2), "trainer": Version(2)}, []),
        ({"published": Version(2), "step": stepping()}, []),
        ({"save_due": Version(3)}, [do.SaveCheckpoint(version=Version(3))]),
        ({"save_due": Version(3), "saving": request(3)}, []),
        ({"save_due": Version(3), "step": stepping()}, []),
        ({"save_due": Version(3), "trainer": None}, []),
        ({}, []),
    ],
)
def test_a_trainer_publishes_and_saves_between_two_steps(changes: dict[str, object], expected: list[object]) -> None:
    assert list(advance(rooms_with(ready(3, **changes)), 0.0)) == expected
