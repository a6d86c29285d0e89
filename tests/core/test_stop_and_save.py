"""A run that is asked to stop and save: it ends what it has begun, saves, and ends; within a limit of its own."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.histories import I0, until
from core.test_stopped_trainer import LIMITS, Holding, held_up, pass_time
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import EvalSet, Schedule

SAVE = ev.StopRequested(reason="it was asked to stop", saves=True)
WITHOUT = {"save_interval": None, "limits": replace(LIMITS, stop_s=20.0), "max_steps": 5}
"""No checkpoint before the end."""


def commands(world: Holding) -> list[do.Command]:
    """What the last event led to."""
    return [command for command in world.entries[-1].commands if not isinstance(command, do.SetTimer)]


def taken(version: int) -> Holding:
    """The world of a run that has taken so many steps, and asks for the next."""
    world = held_up(do.FinishStep, do.SaveCheckpoint, **WITHOUT)
    for _ in range(version):
        world.answer_held()
        until(world, lambda: bool(world.aside) and not world.is_busy)
    return world


def test_a_step_in_progress_is_taken_and_saved_before_the_run_ends() -> None:
    world = taken(2)
    world.tell(SAVE)
    assert world.verdict is None
    assert world.coordinator.waits()[0].what == "optimizer step 3 and its checkpoint"
    world.answer_held()
    assert do.SaveCheckpoint(version=Version(3)) in commands(world)
    assert not any(isinstance(command, do.PublishWeights) for command in commands(world)), "nobody needs it"
    assert world.coordinator.waits()[0].what == "checkpoint of step 3"
    world.answer_held()
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")


def test_a_run_between_two_steps_saves_and_takes_no_further_step() -> None:
    world = held_up(do.Submit, **WITHOUT)
    world.answer_held()
    until(world, lambda: world.coordinator.version == 1 and bool(world.aside) and not world.is_busy)
    world.tell(SAVE)
    assert commands(world) == [do.SaveCheckpoint(version=Version(1))]
    world.held = ()
    until(world, lambda: world.verdict is not None)
    assert world.saved == [1]
    assert not any(isinstance(command, do.Accumulate) for command in commands(world))
    world.crash_and_resume()
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_checkpoint_in_progress_is_enough_if_no_step_follows_it() -> None:
    world = held_up(do.Submit, do.SaveCheckpoint)
    world.answer_held()
    until(world, lambda: {type(c) for c in world.aside} == {do.Submit, do.SaveCheckpoint} and not world.is_busy)
    world.tell(SAVE)
    assert world.verdict is None
    world.aside.sort(key=lambda command: isinstance(command, do.Submit))
    world.answer_held()
    assert world.verdict is not None
    assert world.saved == [1]


def test_a_run_with_nothing_to_save_ends_at_once() -> None:
    world = held_up(do.Submit, **WITHOUT)
    world.tell(SAVE)
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")


def test_a_run_whose_trainer_is_not_there_ends_at_once() -> None:
    world = taken(1)
    world.held = (do.StartTrainer,)
    world.lose_trainer()
    world.tell(SAVE)
    assert world.verdict is not None


def test_a_trainer_that_is_lost_meanwhile_is_not_started_again() -> None:
    world = taken(1)
    world.tell(SAVE)
    world.lose_trainer()
    assert commands(world) == [do.FinishRun(is_complete=False, reason="it was asked to stop")]


def test_an_instance_that_is_lost_meanwhile_is_not_started_again() -> None:
    """The step in progress has all its responses: no instance is needed to take it and to save it."""
    world = taken(1)
    world.tell(SAVE)
    world.lose(I0, "it was killed")
    assert not any(isinstance(command, do.StartInstance) for command in commands(world))
    world.answer_held()
    world.answer_held()
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")
    assert world.saved == [2]
    world.held = ()
    world.crash_and_resume()
    assert any(isinstance(command, do.StartInstance) for command in commands(world))
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_the_limit_ends_it_and_names_what_was_pending() -> None:
    world = taken(1)
    world.tell(SAVE)
    assert world.timer is not None
    assert world.timer <= world.now + 20.0
    pass_time(world, 20.0)
    assert world.verdict is not None
    assert world.verdict.reason == (
        "it was asked to stop; waited 20 s for optimizer step 2 and its checkpoint (limit 20 s)"
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_a_request_without_a_save_ends_at_once(is_first: bool) -> None:
    world = taken(1)
    if not is_first:
        world.tell(SAVE)
    world.tell(replace(SAVE, saves=False))
    assert world.verdict is not None


def test_a_repeated_request_changes_nothing() -> None:
    world = taken(1)
    world.tell(SAVE)
    world.now += 5.0
    world.tell(SAVE)
    assert world.verdict is None
    [since] = [wait.since for wait in world.coordinator.waits() if "its checkpoint" in wait.what]
    assert since == world.now - 5.0


def test_a_run_that_stopped_in_its_last_step_is_complete() -> None:
    world = taken(4)
    world.tell(SAVE)
    world.answer_held()
    world.answer_held()
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_resumed_run_does_not_remember_that_it_was_asked_to_stop() -> None:
    world = taken(2)
    world.tell(SAVE)
    world.held = ()
    world.crash_and_resume()
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def scoring(**changes: object) -> tuple[Holding, list[ResponseId]]:
    """The world of a run that has taken one step and waits for rewards; and the responses that have none yet."""
    world = held_up(do.Score, **{**WITHOUT, **changes})
    while world.coordinator.version < 1:
        world.answer_held()
        until(world, lambda: bool(world.aside) and not world.is_busy)
    return world, [r for command in world.aside if isinstance(command, do.Score) for r in command.responses]


def test_a_score_that_comes_while_the_run_stops_is_computed_again_when_it_goes_on() -> None:
    """The signal to stop may have ended the program that a reward function waited for."""
    world, asked = scoring(batch_size=2, group_size=2)
    world.tell(SAVE)
    failed = [ev.Scored(response=r, outcome=Outcome.ERROR, score=0.0, seconds=0.1) for r in asked]
    world.tell(ev.ResponsesScored(scores=tuple(failed)))
    assert world.verdict is None
    assert world.coordinator.num_refused_reports == 0, "it is nobody's fault"
    until(world, lambda: world.verdict is not None)
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")
    world.held = ()
    world.crash_and_resume()
    [again] = [command for command in commands(world) if isinstance(command, do.Score)]
    assert set(asked) <= set(again.responses)
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_score_of_an_evaluation_that_comes_while_the_run_stops_is_computed_again() -> None:
    sets = (EvalSet(name="heldout", num_prompts=2, group_size=1),)
    world, asked = scoring(eval_sets=sets, eval_interval=1)
    assert "heldout" in {r.group.source for r in asked}
    world.tell(SAVE)
    world.tell(ev.ResponsesScored(scores=tuple(world.score(r) for r in asked)))
    assert not any(isinstance(command, do.CloseEvaluation) for command in commands(world))
    until(world, lambda: world.verdict is not None)
    world.held = ()
    world.crash_and_resume()
    [again] = [command for command in commands(world) if isinstance(command, do.Score)]
    assert set(asked) <= set(again.responses)


def test_a_run_that_stops_asks_for_no_rewards_and_does_not_wait_for_them() -> None:
    world = held_up(do.Submit, do.SaveCheckpoint, **WITHOUT | {"limits": replace(LIMITS, stop_s=900.0, reward_s=5.0)})
    world.answer_held()
    until(world, lambda: world.coordinator.version == 1 and bool(world.aside) and not world.is_busy)
    world.tell(SAVE)
    num_before = len(world.entries)
    world.aside.sort(key=lambda command: isinstance(command, do.SaveCheckpoint))
    world.answer_held()
    until(world, lambda: not world.is_busy)
    later = [command for entry in world.entries[num_before:] for command in entry.commands]
    assert any(isinstance(entry.event, ev.RolloutReported) and entry.event.finished for entry in world.entries)
    assert not any(isinstance(command, do.Score) for command in later)


def test_a_reward_that_takes_too_long_does_not_keep_a_run_that_stops_from_saving() -> None:
    limits = replace(LIMITS, stop_s=60.0, reward_s=5.0)
    world, _ = scoring(limits=limits)
    world.held = (do.Score, do.SaveCheckpoint)
    world.tell(SAVE)
    assert {wait.what for wait in world.coordinator.waits()} == {"checkpoint of step 1"}
    pass_time(world, 10.0)
    assert world.verdict is None


class StoppedAtRandom(World):
    """A world that is asked to stop now and then, and goes on after that. Rewards fail while it stops."""

    def advance(self) -> None:
        super().advance()
        if self.verdict is None and self.rng.random() < 0.02:
            self.tell(SAVE)
        if self.verdict is not None and not self.verdict.is_complete:
            self.crash_and_resume()

    def score(self, response: ResponseId) -> ev.Scored:
        failed = self.coordinator.rooms.run.is_stopping
        outcome = Outcome.ERROR if failed and self.rng.random() < 0.5 else Outcome.OK
        return ev.Scored(response=response, outcome=outcome, score=0.0 if failed else 1.0, seconds=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_no_score_of_a_run_that_stops_is_trained_on(seed: int) -> None:
    rng = random.Random(seed)
    given = {"save_interval": rng.choice([None, 2]), "is_reward_streamed": rng.random() < 0.5, "max_steps": 8}
    schedule = Schedule(train_source="train", batch_size=2, group_size=2, **given)
    world = StoppedAtRandom(schedule, rng)
    assert world.run().is_complete
    assert any(isinstance(entry.event, ev.StopRequested) for entry in world.entries)
    batches = [c for entry in world.entries for c in entry.commands if isinstance(c, do.Accumulate)]
    assert {score for batch in batches for score in batch.scores} == {1.0}


def test_a_run_that_loses_its_last_instance_while_it_stops_still_saves() -> None:
    """The step in progress needs no instance, and no instance will be started again."""
    world = held_up(do.FinishStep, do.SaveCheckpoint, **WITHOUT | {"limits": replace(LIMITS, max_restarts=0)})
    world.tell(SAVE)
    world.lose(I0, "it was killed")
    assert world.verdict is None
    world.answer_held()
    world.answer_held()
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")
    assert world.saved == [1]


def test_a_trainer_that_is_lost_too_often_while_the_run_stops_is_named() -> None:
    world = held_up(do.FinishStep, **WITHOUT | {"limits": replace(LIMITS, max_restarts=0)})
    world.tell(SAVE)
    world.lose_trainer()
    assert world.verdict is not None
    assert world.verdict.reason.startswith("it was asked to stop; the trainer was lost 1 time")
