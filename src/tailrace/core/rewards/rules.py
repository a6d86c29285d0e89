"""When rewards are requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.core import commands as do
from tailrace.core.ids import ResponseId
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rewards.case_times import problem_of
from tailrace.core.rooms import Rooms


def score(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Request the rewards of finished responses. With a barrier, wait until no training response is being generated.
    A run that is stopping requests none, because it takes no scores."""
    rewards, responses = rooms.rewards, rooms.responses
    if rooms.run.is_stopping or not rewards.generated:
        return
    due = list(rewards.generated)
    if not rooms.schedule.is_reward_streamed and _is_generating(rooms):
        # The barrier applies to training responses only.
        due = [response for response in due if not responses.is_training(response)]
    if not due:
        return
    if not rewards.scoring:
        rewards.heard_at = now
    for response in due:
        responses.response(response).move(ResponsePhase.SCORING, now=now)
        del rewards.generated[response]
        rewards.scoring[response] = None
    yield do.Score(responses=tuple(due), limits=_limits(rooms, due))


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
