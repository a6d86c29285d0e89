"""Events of the rewards room."""

from __future__ import annotations

from tailrace.core import events as ev
from tailrace.core.collection.facts import close_group
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.group import GroupPhase
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rewards.case_times import CaseTimes, problem_of
from tailrace.core.rooms import Rooms


def responses_scored(rooms: Rooms, event: ev.ResponsesScored, now: float) -> None:
    """Take the scores. A run that is stopping takes none: the signal to stop may have reached a program that a reward
    function waited for, and changed its score. The resumed run requests them again."""
    rewards = rooms.rewards
    if rooms.run.is_stopping:
        return
    for scored in event.scores:
        if scored.response in rewards.aborting:
            del rewards.aborting[scored.response]
        elif scored.response not in rewards.scoring:
            rooms.run.refuse(f"a score of {scored.response}, which is not awaited")
            continue
        else:
            del rewards.scoring[scored.response]
            if (response := rooms.responses.find(scored.response)) is None:
                # Another score of the same event completed its group, so this response is surplus.
                rooms.collection.remove_surplus(scored.response)
            else:
                _settle(rooms, response, scored, now)
        rewards.heard_at = now


def _settle(rooms: Rooms, response: Response, scored: ev.Scored, now: float) -> None:
    group, schedule = rooms.responses.group(response.id.group), rooms.schedule
    has_failed = scored.outcome is not Outcome.OK
    response.outcome = scored.outcome
    response.score = 0.0 if has_failed else scored.score
    _count(rooms, scored, has_failed=has_failed, is_training=group.is_training)
    if group.is_training and not has_failed and rooms.policies.timeouts.learns:
        _learn_times(rooms, scored)
    is_dropped = has_failed and group.is_training and schedule.drops_failed_rewards
    response.move(ResponsePhase.DROPPED if is_dropped else ResponsePhase.SCORED, now=now)
    was_open = group.phase is GroupPhase.OPEN
    group.settle(now=now, filters_equal=group.is_training and schedule.filters_equal_scores)
    if was_open and group.phase is not GroupPhase.OPEN:
        if group.is_training:
            close_group(rooms, group, now)
        else:
            rooms.evaluation.group_completed(group.id)


def _learn_times(rooms: Rooms, scored: ev.Scored) -> None:
    times, problem = rooms.rewards.case_times, problem_of(scored.response.group)
    if scored.is_correct:
        times.setdefault(problem, CaseTimes()).learn(scored.slow_cases)
    if problem in times:
        times[problem].note_try(scored.cut_cases, rooms.schedule.case_time)


def _count(rooms: Rooms, scored: ev.Scored, *, has_failed: bool, is_training: bool) -> None:
    rewards = rooms.rewards
    if has_failed:
        rewards.last_failure = f"{scored.outcome.value}: {scored.detail}"
    if is_training:
        rewards.num_failed_in_a_row = rewards.num_failed_in_a_row + 1 if has_failed else 0


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset all requested rewards, which will not be answered: each is requested again."""
    rewards = rooms.rewards
    for number in rewards.scoring:
        rooms.responses.response(number).move(ResponsePhase.GENERATED, now=now)
        rewards.add(number)
    rewards.scoring.clear()
    rewards.aborting.clear()
    rewards.num_failed_in_a_row = 0
