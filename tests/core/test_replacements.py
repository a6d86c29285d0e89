"""Dynamic sampling: a prompt that replaces a filtered one may arrive when the round it was meant for is over."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given

from core.histories import Case, History, active_partial, cases, held_to, tail_batching
from tailrace.core import commands as do
from tailrace.core.ids import GroupId, ResponseId

FILTERED = {"filters_equal_scores": True, "group_size": 2, "launch_responses": 3, "eval_sets": ()}


def dispatched(found: History) -> list[tuple[do.OpenRound, dict[GroupId, set[ResponseId]]]]:
    """Every round with the members of each group that were given to instances while it was open."""
    rounds: list[tuple[do.OpenRound, dict[GroupId, set[ResponseId]]]] = []
    for command in found.commands:
        match command:
            case do.OpenRound():
                rounds.append((command, defaultdict(set)))
            case do.Submit(dispatches=dispatches):
                for dispatch in dispatches:
                    rounds[-1][1][dispatch.response.group].add(dispatch.response)
    return rounds


@held_to(60)
@given(cases(tail_batching, **FILTERED))
def test_no_group_has_more_members_than_its_round_launches(case: Case) -> None:
    for opened, groups in dispatched(case.run()):
        for group, members in groups.items():
            assert len(members) <= opened.num_responses, f"{group} in {opened}"


@held_to(60)
@given(cases(tail_batching, **FILTERED))
def test_a_long_round_takes_its_prompts_from_the_queue_while_there_are_any(case: Case) -> None:
    queue: dict[GroupId, None] = {}
    found = case.run()
    for command in found.commands:
        match command:
            case do.OpenRound(is_long=True):
                first = list(queue)[: case.schedule.batch_size]
                assert [*command.restarted, *command.resumed] == first, "a prompt that waited was passed over"
            case do.CloseRound(deferred=deferred):
                queue |= dict.fromkeys(deferred)
            case do.Submit(dispatches=dispatches):
                for dispatch in dispatches:
                    queue.pop(dispatch.response.group, None)


@held_to(40)
@given(cases(tail_batching, **FILTERED))
def test_a_deferred_prompt_that_keeps_no_tokens_is_never_called_resumed(case: Case) -> None:
    assert not any(command.resumed for command in case.run().commands if isinstance(command, do.OpenRound))


@held_to(40)
@given(cases(active_partial, filters_equal_scores=True, group_size=2, eval_sets=()))
def test_only_a_group_that_has_begun_is_resumed(case: Case) -> None:
    begun: set[GroupId] = set()
    for command in case.run().commands:
        match command:
            case do.Submit(dispatches=dispatches):
                begun |= {dispatch.response.group for dispatch in dispatches}
            case do.OpenRound(resumed=resumed):
                assert begun.issuperset(resumed), "a new prompt is said to go on with the tokens it has"
