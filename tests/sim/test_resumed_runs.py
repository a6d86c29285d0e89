"""A run that was killed and continued later: the time in which it was gone or starting again is part of no step."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from sim.test_advice import CONFIG, SCENARIO
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import Event, RunResumed, RunStarted, StepTrained
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.schedules.comparison import figures_of
from tailrace.policies.strategies import policies_of
from tailrace.sim.advice.evidence import Evidence
from tailrace.sim.advice.prediction import predict
from tailrace.sim.calibrate import interrupted_steps, step_seconds
from tailrace.sim.driver import Agenda, Driver
from tailrace.sim.named_schedule import schedule_of
from tailrace.sim.world import World

OUTAGE_S = 1000.0


class Killed(Exception):
    pass


class Lives:
    """A run that is killed some entries after a step, and continued with new processes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.entries = schedule, list[Entry]()
        self.coordinator = Coordinator(schedule, policies=policies_of(schedule))
        self.lengths = SCENARIO.make_lengths()
        self.kill_at: int | None = None

    def live(self, first: Event, *, begins: float, world_before: World | None = None) -> World:
        agenda = Agenda()
        agenda.now = begins
        world = World(self.schedule, SCENARIO.world_costs(), self.lengths, agenda, live=self.coordinator.live)
        if world_before is not None:  # its files stay
            world._trainer._taken_s, world._targets = world_before._trainer._taken_s, world_before._targets
        with suppress(Killed):
            Driver(self.coordinator, world, agenda, record=self.record).run(first)
        return world

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) == self.kill_at:
            raise Killed


def resumed(preset: str, *, after_step: int, more_entries: int, outage_s: float = OUTAGE_S) -> list[Entry]:
    chosen = replace(schedule_of(SCENARIO, preset), epoch_size=1000)
    whole = Lives(chosen)
    whole.live(RunStarted(schedule=chosen), begins=0.0)
    steps = [number for number, each in enumerate(whole.entries) if isinstance(each.event, StepTrained)]
    run = Lives(chosen)
    run.kill_at = steps[after_step - 1] + more_entries
    world = run.live(RunStarted(schedule=chosen), begins=0.0)
    again = RunResumed(limits=chosen.limits, checkpoint=None)
    run.live(again, begins=run.entries[-1].now + outage_s, world_before=world)
    assert sum(isinstance(each.event, StepTrained) for each in run.entries) == chosen.max_steps
    return run.entries


@pytest.mark.parametrize("preset", ["sync", "one-step", "stage-overlap"])
@pytest.mark.parametrize("more_entries", [1, 30])
def test_an_outage_is_part_of_no_step(preset: str, more_entries: int) -> None:
    entries = resumed(preset, after_step=4, more_entries=more_entries)
    seconds = step_seconds(entries)
    assert len(seconds) == 8
    assert max(seconds) < OUTAGE_S / 20
    assert sum(seconds) == pytest.approx(8 * figures_of(entries).seconds_per_step)
    assert list(interrupted_steps(entries)) == [4]


@pytest.mark.parametrize("preset", ["sync", "one-step"])
def test_advice_for_a_resumed_run_predicts_the_run_itself(preset: str) -> None:
    evidence = Evidence.of(resumed(preset, after_step=4, more_entries=30), CONFIG)
    assert evidence.calibration.stretch == pytest.approx(1.0, abs=0.05)
    assert evidence.calibration.costs.trainer.start_s == 0.0, "the second start repeats steps"
    predicted = predict(evidence, evidence.schedule)
    assert predicted.step_s == pytest.approx(evidence.recorded.seconds_per_step, rel=0.06)
