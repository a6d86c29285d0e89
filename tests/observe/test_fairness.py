"""Long prompts that starve are noticed; a schedule in its own rhythm is not blamed."""

from __future__ import annotations

from dataclasses import replace

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.schedule import Leftovers, Schedule, VersionCap
from tailrace.observe.metrics.natural_lengths import LengthSample
from tailrace.observe.prompts.fairness import alarms
from tailrace.observe.prompts.fates import DEFERRED, Fate, Fates, ResponseNote, StepLengths
from tailrace.observe.shared_fold.records import RunState
from tailrace.observe.shared_fold.run_fold import RunFold

SCHEDULE = Schedule(
    train_source="train", batch_size=4, group_size=2, max_steps=99, launch_prompts=5, leftovers=Leftovers.DEFER
)


def waiting_for(steps: int) -> Fates:
    fates, group = Fates(RunFold(RunState(version=Version(steps)))), GroupId("train", 0, 3)
    fates.groups[group] = Fate(group=group, offered_at=0.0, offered_version=0, state=DEFERRED, num_deferred=1)
    return fates


def test_a_prompt_that_waits_longer_than_the_rhythm_explains_is_named() -> None:
    assert alarms(waiting_for(10), SCHEDULE) == []
    (alarm,) = alarms(waiting_for(11), SCHEDULE)
    assert alarm == "1 prompts wait in the long queue for more than 10 steps; train:0:3 for 11"


def trained_and_observed(trained: list[int], ended: dict[int, int], censored: dict[int, int]) -> Fates:
    """Ten equal steps."""
    fates = Fates()
    observed = LengthSample(ended=ended, censored=censored)
    fates.lengths = [StepLengths(step=step, generated=[], trained=trained, observed=observed) for step in range(1, 11)]
    return fates


def test_trained_lengths_far_below_natural_ones_are_an_alarm() -> None:
    fates = trained_and_observed([10, 10], {10: 1, 100: 1}, {})
    (alarm,) = alarms(fates, SCHEDULE)
    assert "a mean length of 10 tokens, the natural mean is 55 (Kaplan-Meier" in alarm
    fates.lengths = fates.lengths[:9]
    assert alarms(fates, SCHEDULE) == []


def test_long_responses_that_never_end_are_an_alarm_although_all_that_ended_were_trained() -> None:
    (alarm,) = alarms(trained_and_observed([10, 20], {10: 1, 20: 1}, {25: 2}), SCHEDULE)
    assert "the natural mean is at least 20, 50% are longer than any that ended" in alarm
    assert "20 of 40 responses were stopped before they ended" in alarm


def test_trained_lengths_near_natural_ones_are_no_alarm() -> None:
    assert alarms(trained_and_observed([60, 60], {60: 8, 100: 8}, {60: 1}), SCHEDULE) == []


CAPPED = replace(
    SCHEDULE,
    leftovers=Leftovers.RESUME,
    launch_prompts=4,
    max_versions_per_sample=2,
    version_cap=VersionCap.RESTART,
)


def restarted_with(num_tokens: int) -> Fates:
    """One response began again after so many tokens, and has 80 tokens now."""
    group = GroupId("train", 0, 3)
    fates, first = Fates(RunFold(RunState(schedule=CAPPED))), ResponseId(group, 0)
    notes = {
        first: ResponseNote(length=num_tokens, is_dropped=True),
        first._replace(attempt=1): ResponseNote(length=80, is_trained=True),
    }
    fates.groups[group] = Fate(group=group, offered_at=0.0, offered_version=0, responses=notes)
    return fates


def test_many_tokens_of_responses_that_began_again_because_of_the_version_cap_are_an_alarm() -> None:
    (alarm,) = alarms(restarted_with(21), CAPPED)
    assert alarm.startswith("21% of the tokens were generated for 1 responses that then began again")
    assert alarms(restarted_with(20), CAPPED) == []
    assert alarms(restarted_with(21), replace(CAPPED, version_cap=VersionCap.FINISH)) == []
