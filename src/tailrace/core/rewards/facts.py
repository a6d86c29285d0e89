"""Events of the rewards room."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.core import events as ev
from tailrace.core.collection.facts import close_group
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.group import GroupPhase
from tailrace.core.responses.part_score import PartScore, combined
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rewards.case_times import CaseTimes, problem_of
from tailrace.core.rewards.room import Requested
from tailrace.core.rooms import Rooms


def responses_scored(rooms: Rooms, event: ev.ResponsesScored, now: float) -> None:
    """Take the scores. A run that is stopping takes none: the signal to stop may have reached a program that a reward
    function waited for, and changed its score. The resumed run requests them again."""
    rewards = rooms.rewards
    if rooms.run.is_stopping:
        return
    requested = rewards.requested.get(event.part, Requested())
    for scored in event.scores:
        if scored.response in requested.aborting:
            del requested.aborting[scored.response]
        elif scored.response not in requested.scoring:
            rooms.run.refuse(f"a score of {scored.response}, which is not awaited")
            continue
        else:
            del requested.scoring[scored.response]
            if (response := rooms.responses.find(scored.response)) is not None:
                _take_part(rooms, response, event.part, scored, now)
            elif not rewards.awaits(scored.response):
                # Another score of the same event completed its group, so this response is surplus.
                rooms.collection.remove_surplus(scored.response)
        requested.heard_at = now


def _take_part(rooms: Rooms, response: Response, part: Part, scored: ev.Scored, now: float) -> None:
    """Take one part of a score. The response is settled when it has all."""
    is_training = rooms.responses.is_training(response.id)
    if part is Part.TESTS and scored.outcome is Outcome.OK and is_training and rooms.policies.timeouts.learns:
        _learn_times(rooms, scored)
    if scored.outcome not in (Outcome.OK, Outcome.ABSTAINED):
        rooms.rewards.last_failure = f"{scored.outcome.value}: {scored.detail}"
    response.part_scores = (*response.part_scores, PartScore(part, scored.outcome, scored.score))
    if _is_whole(rooms, response):
        _conclude(rooms, response, now)


def _is_whole(rooms: Rooms, response: Response) -> bool:
    """Whether all parts of its score are there."""
    return len(response.part_scores) == len(rooms.schedule.score_parts)


def _conclude(rooms: Rooms, response: Response, now: float) -> None:
    """Settle a response whose score is whole."""
    parts, response.part_scores = response.part_scores, ()
    response.outcome, response.score = combined(parts)
    if response.outcome is Outcome.INVALID and all(each.outcome is Outcome.ABSTAINED for each in parts):
        rooms.rewards.last_failure = "invalid: no reward function applies to this response"
    _settle(rooms, response, now)


def _settle(rooms: Rooms, response: Response, now: float) -> None:
    group, schedule, rewards = rooms.responses.group(response.id.group), rooms.schedule, rooms.rewards
    has_failed = response.outcome is not Outcome.OK
    if group.is_training:
        rewards.num_failed_in_a_row = rewards.num_failed_in_a_row + 1 if has_failed else 0
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
    rewards, rules, problem = rooms.rewards, rooms.schedule.case_time, problem_of(scored.response.group)
    known = rewards.case_times.get(problem)
    before = None if known is None else known.limits(rules)
    if scored.is_correct:
        known = rewards.case_times.setdefault(problem, CaseTimes())
        known.learn(scored.slow_cases)
    if known is not None:
        known.note_try(scored.cut_cases, rules)
        if known.limits(rules) != before:
            rewards.relimited[scored.response.group] = None


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset all requested parts of scores, which will not be answered: each is requested again."""
    rewards = rooms.rewards
    awaited = {response: None for requested in rewards.requested.values() for response in requested.scoring}
    for response in awaited:
        rooms.responses.response(response).move(ResponsePhase.GENERATED, now=now)
        rewards.add(response)
    rewards.requested.clear()
    rewards.relimited.clear()
    rewards.num_failed_in_a_row = 0
    # Also those that were not asked for again since an earlier resume.
    _change_parts(rooms, list(rewards.generated), now)


def _change_parts(rooms: Rooms, unscored: Iterable[ResponseId], now: float) -> None:
    """A run that is continued with other evaluation sets may have scores of other parts: remove what came of parts that
    it no longer has, and settle responses that missed nothing else."""
    for response in filter(None, map(rooms.responses.find, unscored)):
        kept = tuple(score for score in response.part_scores if score.part in rooms.schedule.score_parts)
        response.part_scores = kept
        if _is_whole(rooms, response):
            response.move(ResponsePhase.SCORING, now=now)
            rooms.rewards.remove_generated(response.id)
            _conclude(rooms, response, now)
