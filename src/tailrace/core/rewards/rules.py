"""When rewards are requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.core import commands as do
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Part
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rewards.case_times import problem_of
from tailrace.core.rewards.room import Requested
from tailrace.core.rooms import Rooms


def score(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Request the rewards of finished responses. With a barrier, wait until no training response is being generated.
    A run that is stopping requests none, because it takes no scores."""
    rewards, responses = rooms.rewards, rooms.responses
    if rooms.run.is_stopping or not rewards.generated:
        return
    due = [response for response in rewards.generated if responses.find(response) is not None]  # others are surplus
    if not rooms.schedule.is_reward_streamed and _is_generating(rooms):
        # The barrier applies to training responses only.
        due = [response for response in due if not responses.is_training(response)]
    if not due:
        return
    for response in due:
        responses.response(response).move(ResponsePhase.SCORING, now=now)
        del rewards.generated[response]
    for part in rooms.schedule.score_parts:
        missing = [response for response in due if not _has_part(responses.response(response), part)]
        if missing:
            rewards.requested.setdefault(part, Requested()).request(missing, now)
            limits = _limits(rooms, missing) if part is Part.TESTS else ()
            yield do.Score(responses=tuple(missing), part=part, limits=limits)


def limit_cases(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Tell the workers the limits that were learned while responses wait for their tests. In the first pass over the
    data, all responses to a problem are requested before one of them has solved it."""
    rewards = rooms.rewards
    if not rewards.relimited:
        return
    changed, rewards.relimited = rewards.relimited, {}
    awaited = rewards.requested.get(Part.TESTS, Requested()).scoring
    for group in filter(rooms.responses.has_group, changed):
        members = rooms.responses.group(group).members.values()
        responses = [member.id for member in members if member.id in awaited]
        by_limits: dict[do.CaseLimits, list[ResponseId]] = {}
        for response, limits in zip(responses, _limits(rooms, responses), strict=True):
            by_limits.setdefault(limits, []).append(response)
        longest = do.CaseLimits(rooms.schedule.case_time.most_s)  # that of probes: they have it already
        for limits, having in by_limits.items():
            if limits != longest:
                yield do.LimitCases(responses=tuple(having), limits=limits)


def _has_part(response: Response, part: Part) -> bool:
    """Whether this part of its score came before the run was resumed."""
    return any(each.part is part for each in response.part_scores)


def _limits(rooms: Rooms, due: Sequence[ResponseId]) -> tuple[do.CaseLimits, ...]:
    """An evaluation has the longest limits: its scores must not depend on what training has seen."""
    timeouts, rewards, rules = rooms.policies.timeouts, rooms.rewards, rooms.schedule.case_time
    if not timeouts.learns:
        return ()
    return tuple(
        timeouts.limits(response, rewards.case_times.get(problem_of(response.group)), rules)
        if rooms.responses.is_training(response)
        else do.CaseLimits(rules.most_s)
        for response in due
    )


def _is_generating(rooms: Rooms) -> bool:
    waiting = any(group.is_training for group in rooms.responses.waiting_groups())
    return waiting or rooms.collection.awaits_prompts or rooms.fleet.runs_training(rooms.responses)
