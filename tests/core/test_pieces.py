"""Pieces of a step: when one is sent, in which order, what a lost trainer and a stop do to them, what is waited for."""

from __future__ import annotations

import pytest

from core.histories import until
from core.test_stopped_trainer import LIMITS, Holding, killed, pass_time
from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, Version
from tailrace.core.journal import Entry
from tailrace.core.schedule import Leftovers, Placement, Schedule, Stream
from tailrace.core.schedule.soundness import unsound
from tailrace.core.training.room import Training
from tailrace.core.training.step import Step
from tailrace.runtime.record.taken_steps import TakenSteps

STREAMED = {"batch_size": 4, "stream": Stream.ALWAYS, "save_interval": None, "max_steps": 2}
SAVE = ev.StopRequested(reason="it was asked to stop", saves=True)


def begun(*held: type[do.Command], **changes: object) -> Holding:
    """The world of a streamed run that has just begun. The trainer does not get to these commands."""
    world = Holding(*held, **{**STREAMED, **changes})
    world.tell(ev.RunStarted(schedule=world.schedule))
    return world


def pieces(world: Holding) -> list[do.Accumulate]:
    return [c for entry in world.entries for c in entry.commands if isinstance(c, do.Accumulate)]


def num_complete(world: Holding) -> int:
    return len(world.coordinator.rooms.collection.complete)


def groups(piece: do.Accumulate) -> set[GroupId]:
    return {response.group for response in piece.responses}


def mid_stream(**changes: object) -> Holding:
    """The world at the moment when the trainer has added a piece and the round is still running."""
    world = begun(**changes)
    return until(world, lambda: bool(pieces(world)) and not world.coordinator.rooms.training.is_stepping)


def test_a_complete_group_is_trained_while_its_round_runs() -> None:
    world = begun(do.Accumulate)
    until(world, lambda: num_complete(world) == 1)
    assert [piece.piece for piece in pieces(world)] == [0]
    assert groups(pieces(world)[0]) == set(world.coordinator.rooms.collection.complete)
    assert world.coordinator.rooms.collection.round is not None
    assert not any(isinstance(command, do.FinishStep) for entry in world.entries for command in entry.commands)


def test_while_the_trainer_is_busy_groups_gather_and_the_next_piece_takes_all_of_them() -> None:
    world = begun(do.Accumulate)
    until(world, lambda: num_complete(world) == 3)
    assert len(pieces(world)) == 1
    world.answer_held()
    assert [len(groups(piece)) for piece in pieces(world)] == [1, 2]
    assert pieces(world)[1].piece == 1


def test_a_piece_has_at_least_the_groups_that_the_schedule_asks_for() -> None:
    world = begun(do.Accumulate, stream_groups=2)
    until(world, lambda: num_complete(world) == 1)
    assert not pieces(world)
    until(world, lambda: num_complete(world) == 2)
    assert [len(groups(piece)) for piece in pieces(world)] == [2]


def test_with_once_the_second_piece_is_the_rest() -> None:
    world = begun(stream=Stream.ONCE)
    until(world, lambda: world.coordinator.version == 1)
    assert [len(groups(piece)) for piece in pieces(world) if piece.version == 0] == [1, 3]


def test_the_rest_and_the_finish_are_sent_when_the_round_ends() -> None:
    world = mid_stream()
    until(world, lambda: any(isinstance(command, do.FinishStep) for command in world.entries[-1].commands))
    [rest, finish] = [c for c in world.entries[-1].commands if isinstance(c, do.Accumulate | do.FinishStep)]
    assert (rest.piece, finish) == (len(pieces(world)) - 1, do.FinishStep(version=Version(0)))
    assert sum(len(groups(piece)) for piece in pieces(world)) == 4


@pytest.mark.parametrize(
    ("first", "changes"),
    [(do.SaveCheckpoint, {"save_interval": 1}), (do.PublishWeights, {"rounds_ahead": 1, "max_staleness": 1})],
)
def test_no_piece_is_sent_before_the_version_is_published_and_saved(
    first: type[do.Command], changes: dict[str, object]
) -> None:
    world = begun(first, **changes)
    until(world, lambda: any(piece.version == 1 for piece in pieces(world)))
    assert len(groups(pieces(world)[-1])) == 4, "only the full batch, which waits behind it in the trainer"
    assert do.FinishStep(version=Version(1)) in world.entries[-1].commands


def test_a_lost_trainer_gets_the_same_pieces_again() -> None:
    world = mid_stream()
    until(world, lambda: len(pieces(world)) == 2 and not world.coordinator.rooms.training.is_stepping)
    first = pieces(world)
    world.lose_trainer()
    until(world, lambda: len(pieces(world)) == 4)
    assert pieces(world)[2:] == first
    until(world, lambda: world.verdict is not None)
    assert world.verdict == do.FinishRun(is_complete=True, reason="2 steps are done")


def test_a_run_that_stops_drops_the_pieces_saves_and_sends_them_again_when_it_is_continued() -> None:
    world = begun()
    until(world, lambda: any(piece.version == 1 for piece in pieces(world)))
    first = [piece for piece in pieces(world) if piece.version == 1]
    world.tell(SAVE)
    assert [c for c in world.entries[-1].commands if not isinstance(c, do.SetTimer)] == [
        do.DropStep(version=Version(1)),
        do.SaveCheckpoint(version=Version(1)),
    ]
    num_refused = world.coordinator.num_refused_reports
    until(world, lambda: world.verdict is not None)
    assert world.coordinator.num_refused_reports == num_refused, "the answer to a piece may come after it was dropped"
    assert world.saved == [1]
    world.crash_and_resume()
    count = len(pieces(world))
    until(world, lambda: len(pieces(world)) > count)
    assert pieces(world)[count : count + len(first)] == first
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete


def test_a_run_that_stops_in_the_middle_of_its_first_step_has_nothing_to_save() -> None:
    world = mid_stream()
    world.tell(SAVE)
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")
    assert world.saved == []


def test_the_limit_of_a_step_counts_a_piece_and_the_finish_and_not_the_round_between_them() -> None:
    world = begun(do.Accumulate, do.FinishStep)
    until(world, lambda: bool(pieces(world)))
    [wait] = [wait for wait in world.coordinator.waits() if "step" in wait.what]
    assert (wait.what, wait.since, wait.limit_s) == ("piece 1 of optimizer step 1", world.now, LIMITS.train_s)
    world.answer_held()
    assert not any("step" in wait.what for wait in world.coordinator.waits())
    until(world, lambda: bool(world.aside))
    until(world, lambda: any(isinstance(command, do.FinishStep) for command in world.aside))
    [wait] = [wait for wait in world.coordinator.waits() if "step" in wait.what]
    assert wait.what == "optimizer step 1"
    since = wait.since
    world.now += 5.0
    world.answer_held()
    [wait] = [wait for wait in world.coordinator.waits() if "step" in wait.what]
    assert wait.since == world.now > since, "each piece that is added is progress"


def test_a_trainer_that_does_not_add_a_piece_is_killed() -> None:
    world = begun(do.Accumulate)
    until(world, lambda: bool(world.aside))
    pass_time(world, LIMITS.train_s)
    assert "for piece 1 of optimizer step 1 (limit 50 s)" in killed(world).reason


@pytest.mark.parametrize(("version", "piece"), [(0, 1), (1, 0)])
def test_an_answer_to_another_piece_is_refused(version: int, piece: int) -> None:
    world = begun(do.Accumulate)
    until(world, lambda: bool(world.aside))
    told = ev.GradientsAccumulated(version=Version(version), num_responses=1, seconds=0.1, piece=piece)
    world.say("trainer", told)
    assert f"gradients of piece {piece} for version {version}" in world.coordinator.last_refused_report
    assert world.coordinator.rooms.training.is_stepping


def test_a_piece_is_added_once() -> None:
    world = mid_stream()
    world.say("trainer", ev.GradientsAccumulated(version=Version(0), num_responses=1, seconds=0.1, piece=0))
    assert "gradients of piece 0" in world.coordinator.last_refused_report


def test_the_pieces_in_training_are_those_that_were_sent() -> None:
    world = mid_stream()
    assert list(world.coordinator.step_in_training()) == pieces(world)
    until(world, lambda: any(isinstance(command, do.FinishStep) for command in world.entries[-1].commands))
    assert list(world.coordinator.step_in_training()) == pieces(world)
    world.lose_trainer()
    assert world.coordinator.step_in_training() == ()


def test_a_step_that_was_begun_with_a_checkpoint_is_taken_again_with_all_its_pieces() -> None:
    world = begun()
    until(world, lambda: len(pieces(world)) == 2)
    begun_with, at = world.coordinator.step_in_training(), len(world.entries)
    until(world, lambda: world.coordinator.version == 1)
    steps = TakenSteps(begun_with)
    for entry in world.entries[at:]:
        steps.feed(entry)
    [step] = steps.since(Version(0))
    assert list(step.batches) == [piece for piece in pieces(world) if piece.version == 0]


def test_a_dropped_step_is_not_taken_again() -> None:
    steps = TakenSteps()
    world = mid_stream()
    told = ev.StepTrained(version=Version(1), seconds=1.0, metrics=())
    for entry in (*world.entries, Entry(now=0.0, event=SAVE, commands=(do.DropStep(version=Version(0)),))):
        steps.feed(entry)
    steps.feed(Entry(now=0.0, event=told, commands=()))
    assert steps.since(Version(0)) == ()


def test_a_step_as_older_releases_stored_it_was_asked_for_as_a_whole() -> None:
    old = {**codec.encode(Training(version=Version(3))), "step": {"since": 7.5, "version": 3}}  # type: ignore[dict-item]
    assert codec.decode(Training, old).step == Step(num_sent=1, is_finishing=True, since=7.5)
    without = {name: value for name, value in old.items() if name != "step"}
    assert codec.decode(Training, without).step == Step()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"leftovers": Leftovers.KEEP, "max_staleness": 1}, "'keep' has no rounds"),
        ({"placement": Placement.COLOCATED}, "colocated training waits until instances have left its devices"),
        ({"is_reward_streamed": False}, "groups are complete only when their rewards are back"),
    ],
)
def test_schedules_that_cannot_stream_say_why(changes: dict[str, object], sentence: str) -> None:
    given = {"train_source": "train", "batch_size": 2, "group_size": 2, "max_steps": 2, **changes}
    assert not any("stream" in reason for reason in unsound(Schedule(**given)))
    assert [reason for reason in unsound(Schedule(**given, stream=Stream.ONCE)) if sentence in reason]
