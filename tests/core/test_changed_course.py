"""A run that is continued with another end, other intervals and other evaluation sets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from core.histories import started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import decode, encode, replay_all
from tailrace.core.schedule import EvalSet, Leftovers, Schedule, Stream
from tailrace.policies.strategies import policies_of

HELDOUT = EvalSet(name="heldout", num_prompts=2, group_size=2)
HARD = EvalSet(name="hard", num_prompts=3, group_size=1)
SHAPES: dict[str, dict[str, Any]] = {
    "sync": {},
    "streamed": {"stream": Stream.ALWAYS},
    "tail-batching": {"leftovers": Leftovers.DEFER, "launch_prompts": 3, "launch_responses": 3},
    "active-partial": {"leftovers": Leftovers.RESUME, "launch_prompts": 4, "max_staleness": 3},
    "one-step": {"rounds_ahead": 1, "max_staleness": 1},
    "staleflow": {"leftovers": Leftovers.KEEP, "max_staleness": 2},
}


def finish(world: World) -> None:
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete, world.verdict.reason


def evaluated(world: World) -> list[tuple[int, str]]:
    commands = [command for entry in world.entries for command in entry.commands]
    return [(c.version, c.source) for c in commands if isinstance(c, do.CloseEvaluation)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_finished_run_goes_on_to_a_later_end(shape: str) -> None:
    world = started(max_steps=2, **SHAPES[shape])
    finish(world)
    world.crash_and_resume(max_steps=5)
    finish(world)
    assert world.coordinator.version == 5
    assert world.saved[-1] == 5


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_may_end_at_the_version_it_has_reached(shape: str) -> None:
    world = started(max_steps=9, **SHAPES[shape])
    until(world, lambda: world.coordinator.version == 3)
    world.crash_and_resume(max_steps=3)
    finish(world)
    assert world.coordinator.version == 3
    assert world.saved == [3]


def test_a_new_interval_of_checkpoints_holds_from_the_next_step() -> None:
    world = started(max_steps=8, save_interval=1)
    until(world, lambda: world.coordinator.version == 2 and not world.coordinator.rooms.training.save_due)
    world.crash_and_resume(save_interval=3)
    finish(world)
    assert world.saved == [1, 2, 3, 6, 8]


def test_evaluation_sets_may_come_and_go() -> None:
    world = started(max_steps=4, eval_sets=(HELDOUT,), eval_interval=2)
    until(world, lambda: world.coordinator.version == 1)
    world.crash_and_resume(eval_sets=(HARD,), eval_interval=1)
    finish(world)
    assert evaluated(world) == [(0, "heldout"), *((version, "hard") for version in (1, 2, 3, 4))]


@pytest.mark.parametrize("seed", range(30))
def test_a_set_that_goes_in_mid_evaluation_leaves_nothing_behind(seed: int) -> None:
    world = started(max_steps=2, eval_sets=(HELDOUT, HARD), eval_interval=1)
    world.rng = random.Random(seed)
    until(world, lambda: bool(world.coordinator.rooms.evaluation.open))
    for _ in range(seed):
        if world.coordinator.rooms.evaluation.open.get("heldout"):
            world.advance()
    version, was_done = world.coordinator.version, evaluated(world)
    world.crash_and_resume(eval_sets=(HARD,))
    assert not any(group.id.source == "heldout" for group in world.coordinator.rooms.responses.all_groups())
    finish(world)
    assert [(v, source) for v, source in evaluated(world) if source == "heldout"] == [
        (v, source) for v, source in was_done if source == "heldout"
    ]
    assert (version, "hard") in evaluated(world)
    assert evaluated(world)[-1] == (2, "hard")


@pytest.mark.parametrize("shape", SHAPES)
def test_any_history_with_changes_ends_where_it_should_and_replays(shape: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        world = started(max_steps=3, eval_sets=(HELDOUT,), eval_interval=2, save_interval=2, **SHAPES[shape])
        for _ in range(rng.randrange(1, 5)):
            for _ in range(rng.randrange(150)):
                if world.verdict is None:
                    world.advance()
            world.crash_and_resume(
                max_steps=world.coordinator.version + rng.randrange(4) or 1,
                save_interval=rng.choice((None, 1, 2)),
                eval_interval=rng.choice((None, 1, 3)),
                eval_sets=rng.choice(((), (HELDOUT,), (HARD,), (HELDOUT, HARD))),
            )
        finish(world)
        assert world.coordinator.version == world.schedule.max_steps
        entries = [decode(encode(entry)) for entry in world.entries]
        count = replay_all(entries, lambda schedule: Coordinator(schedule, policies=policies_of(schedule)))
        assert count == len(entries)


def test_only_what_leaves_the_past_alone_is_taken_from_the_new_schedule() -> None:
    old = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=3, max_in_flight=7, edition=1)
    new = Schedule(
        train_source="train",
        batch_size=4,
        group_size=2,
        max_steps=8,
        max_in_flight=9,
        eval_sets=(HARD,),
        eval_interval=2,
        save_interval=5,
    )
    found = old.continued(new)
    assert (found.batch_size, found.max_in_flight) == (2, 7)
    assert (found.max_steps, found.eval_sets, found.eval_interval, found.save_interval) == (8, (HARD,), 2, 5)
    assert found.edition == new.edition


def test_a_resume_of_an_older_release_leaves_the_schedule_as_it_was() -> None:
    world = started(max_steps=3)
    until(world, lambda: world.coordinator.version == 1)
    world.tell(ev.RunResumed(limits=world.schedule.limits, checkpoint=None))
    assert world.coordinator.schedule == world.schedule


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("changes", [{"max_steps": 6}, {"max_steps": 6, "eval_interval": None}])
def test_an_evaluation_that_is_no_longer_due_is_dropped(shape: str, changes: dict[str, Any]) -> None:
    """The run was stopped in the evaluation of its last version, which is not its last any more."""
    for seed in range(8):
        world = started(max_steps=3, eval_sets=(HELDOUT,), eval_interval=10, **SHAPES[shape])
        world.rng = random.Random(seed)
        until(world, lambda world=world: world.coordinator.version == 3 and world.coordinator.rooms.evaluation.open)
        for _ in range(seed):
            if world.verdict is None:
                world.advance()
        was_done = evaluated(world)
        world.crash_and_resume(**changes)
        finish(world)
        found = [(v, source) for v, source in evaluated(world) if (v, source) not in was_done]
        assert found == ([] if "eval_interval" in changes else [(6, "heldout")])
        groups = [c.groups for e in world.entries for c in e.commands if isinstance(c, do.CloseEvaluation)]
        versions = [c.version for e in world.entries for c in e.commands if isinstance(c, do.CloseEvaluation)]
        assert all(group.epoch == v for v, closed in zip(versions, groups, strict=True) for group in closed)
