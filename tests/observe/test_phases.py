"""The phases of a run, from its journal."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from core.world import World
from dashboard.test_report import SCHEDULE, crashed
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.time_use.phases import EVALUATE, ON_TRAINING_DEVICES, ROLLOUT, TRAIN, PhaseTimes


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    world = World(SCHEDULE, random.Random(1))
    world.run()
    return world.entries


def first_submit(entries: list[Entry]) -> float:
    return next(entry.now for entry in entries if any(isinstance(each, do.Submit) for each in entry.commands))


def test_each_step_has_one_training_phase_from_its_command_to_its_end(entries: list[Entry]) -> None:
    began = first_submit(entries)
    asked = [entry.now for entry in entries for each in entry.commands if isinstance(each, do.FinishStep)]
    ended = [entry.now for entry in entries if isinstance(entry.event, ev.StepTrained)]
    training = [phase for phase in PhaseTimes.of(entries).all() if phase.kind == TRAIN]
    assert [phase.step for phase in training] == [1, 2, 3, 4, 5]
    assert [phase.start for phase in training] == pytest.approx([time - began for time in asked])
    assert [phase.end for phase in training] == pytest.approx([time - began for time in ended])


def test_training_devices_do_one_thing_at_a_time(entries: list[Entry]) -> None:
    uses = [phase for phase in PhaseTimes.of(entries).all() if phase.kind in ON_TRAINING_DEVICES]
    assert len({phase.kind for phase in uses}) > 1
    for before, after in pairwise(uses):
        assert after.start >= before.end - 1e-9


def test_the_parts_of_all_steps_add_up_to_the_time_of_the_run(entries: list[Entry]) -> None:
    phases = PhaseTimes.of(entries)
    last = max(phase.end for phase in phases.all() if phase.kind in ON_TRAINING_DEVICES)
    assert len(phases.steps()) == 5
    assert all(step.train_s > 0 and step.rollout_s > 0 for step in phases.steps())
    assert sum(step.seconds for step in phases.steps()) == pytest.approx(last)


def test_evaluations_are_told_from_rollouts_for_training(entries: list[Entry]) -> None:
    kinds = {phase.kind for phase in PhaseTimes.of(entries).all()}
    assert {ROLLOUT, EVALUATE} <= kinds


def test_the_pause_of_a_resumed_run_does_not_count() -> None:
    world = crashed()
    before = PhaseTimes.of(world.entries)
    now, limits = world.entries[-1].now, SCHEDULE.limits
    resumed = Entry(now=now + 1000.0, event=ev.RunResumed(limits=limits, checkpoint=None), commands=())
    later = Entry(now=now + 1500.0, event=ev.TimerFired(), commands=())
    after = PhaseTimes.of([*world.entries, resumed, later])
    assert max(phase.end for phase in after.all()) < 1000.0
    assert after.steps() == before.steps()
