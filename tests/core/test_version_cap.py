"""Responses that reach ``max_versions_per_sample`` begin again from their prompts, but not without end."""

from __future__ import annotations

from hypothesis import given

from core.histories import Case, History, active_partial, cases, check_batches, held_to
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.schedule import Schedule, VersionCap

CAPPED = {"version_cap": VersionCap.RESTART, "max_versions_per_sample": 1}
MANY_STEPS = {**CAPPED, "max_steps": 12, "batch_size": 2, "launch_prompts": 4, "eval_sets": ()}


def most_restarts(found: History) -> int:
    submits = [command for command in found.commands if isinstance(command, do.Submit)]
    return max(dispatch.response.attempt for submit in submits for dispatch in submit.dispatches)


def versions(found: History) -> dict[ResponseId, set[int]]:
    """The versions that wrote tokens of each response."""
    lengths: dict[ResponseId, int] = {}
    writers: dict[ResponseId, set[int]] = {}
    for entry in found.world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            for part in entry.event.parts:
                if part.length > lengths.get(part.response, 0):
                    lengths[part.response] = part.length
                    writers.setdefault(part.response, set()).add(entry.event.version)
    return writers


@held_to(40)
@given(cases(active_partial, 0.0, 0.03, **MANY_STEPS))
def test_a_response_is_restarted_for_the_cap_at_most_twice(case: Case) -> None:
    found = case.run()
    assert most_restarts(found) <= 2, "it begins again and again"
    check_batches(found)


@held_to(40)
@given(cases(active_partial, **MANY_STEPS))
def test_a_response_that_was_restarted_often_enough_keeps_to_the_cap_all_the_same(case: Case) -> None:
    """The round does not end before it, as under 'finish'."""
    assert all(len(writers) <= 1 for writers in versions(case.run()).values())


@held_to(20)
@given(cases(active_partial, **MANY_STEPS, max_restarts_per_sample=1))
def test_how_often_a_response_is_restarted_is_a_setting(case: Case) -> None:
    found = case.run()
    assert most_restarts(found) <= 1
    check_batches(found)


@held_to(20)
@given(cases(active_partial, **MANY_STEPS, max_restarts_per_sample=0))
def test_without_restarts_a_round_waits_for_the_response(case: Case) -> None:
    assert most_restarts(case.run()) == 0


def test_two_restarts_are_the_default() -> None:
    schedule = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1)
    assert schedule.max_restarts_per_sample == 2
