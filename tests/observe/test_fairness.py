"""Long prompts that starve are noticed; a schedule in its own rhythm is not blamed."""

from __future__ import annotations

from tailrace.core.ids import GroupId
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.observe.fairness import alarms
from tailrace.observe.fates import DEFERRED, Fate, Fates, StepLengths

SCHEDULE = Schedule(
    train_source="train", batch_size=4, group_size=2, max_steps=99, launch_prompts=5, leftovers=Leftovers.DEFER
)


def waiting_for(steps: int) -> Fates:
    fates, group = Fates(), GroupId("train", 0, 3)
    fates.groups[group] = Fate(group=group, offered_at=0.0, offered_version=0, state=DEFERRED, num_deferred=1)
    fates.version = steps
    return fates


def test_a_prompt_that_waits_longer_than_the_rhythm_explains_is_named() -> None:
    assert alarms(waiting_for(10), SCHEDULE) == []
    (alarm,) = alarms(waiting_for(11), SCHEDULE)
    assert alarm == "1 prompts wait in the long queue for more than 10 steps; train:0:3 for 11"


def test_trained_lengths_far_below_generated_ones_are_an_alarm() -> None:
    fates = Fates()
    fates.lengths = [StepLengths(step=step, generated=[10, 100], trained=[10, 10]) for step in range(1, 11)]
    (alarm,) = alarms(fates, SCHEDULE)
    assert alarm.startswith("responses trained in the last 10 steps are 18% as long")
    fates.lengths = fates.lengths[:9]
    assert alarms(fates, SCHEDULE) == []
