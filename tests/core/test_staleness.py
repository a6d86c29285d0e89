"""Coordination under a strict bound: the properties of its specification (section 3.5), each held to random histories.

Every combination of strategies, validated per instance or globally, bounds 0 to 3; acknowledgements come late, cross
with commands or are lost, instances are killed, the run crashes and resumes. Properties 4 (``test_ledger``), 10
(``tests/weights``) and 12 (``tests/policies``) are about other parts.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.histories import (
    MIXES,
    NUM_PROMPTS,
    Case,
    cases,
    check_batches,
    check_bound,
    check_conservation,
    coordinated,
    held_to,
    lagging_cases,
)
from core.lagging_world import LaggingWorld
from core.token_world import TokenWorld
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import CostModel
from tailrace.core.fleet.views import fleet_view
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.schedule import Coordination, Schedule
from tailrace.policies.strategies import KINDS, policies_of


def name_of(mix: dict[str, str]) -> str:
    return "+".join(mix.values())


@held_to(45)
@given(lagging_cases(coordinated))
def test_staleness_property_1_no_trained_token_is_older_than_the_bound_allows(case: Case) -> None:
    check_bound(case.run_lagging())


@held_to(45)
@given(lagging_cases(coordinated))
def test_staleness_property_2_a_step_has_exactly_its_groups_and_each_is_trained_once(case: Case) -> None:
    found = case.run_lagging()
    check_batches(found)
    check_conservation(found)


class CountingWorld(LaggingWorld):
    """No more groups are in the ledger than may be."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        schedule, ledger = self.schedule, self.coordinator.rooms.collection.ledger
        most = ((schedule.max_staleness or 0) + 1) * schedule.num_launched
        assert ledger.num_reserved + ledger.num_occupied <= most


@held_to(45)
@given(lagging_cases(coordinated))
def test_staleness_property_3_the_ledger_holds_no_more_than_a_launch_per_version(case: Case) -> None:
    case.run_lagging(CountingWorld)


@held_to(45)
@given(lagging_cases(coordinated))
def test_staleness_property_5_what_was_begun_is_trained_given_up_or_still_there(case: Case) -> None:
    """And never two of these. A group that begins again has new responses: the old ones were given up."""
    found = case.run_lagging()
    fates: dict[ResponseId, Counter[str]] = {}
    for entry in found.world.entries:
        for command in entry.commands:
            match command:
                case do.Submit(dispatches=dispatches):
                    for dispatch in dispatches:
                        fates.setdefault(dispatch.response, Counter())
                case do.Abort(responses=responses) | do.AbortScores(responses=responses):
                    for response in responses:
                        fates[response]["aborted"] += 1
    for response in (r for step in found.steps() for r in step.responses):
        fates[response]["trained"] += 1
    for response in found.world.coordinator.live():
        fates.get(response, Counter())["live"] += 1
    left_out, restarted = found.left_out(), newest_attempts(fates)
    for response, fate in fates.items():
        if response.group.source != "train":
            continue
        # Those that had ended when their group was filtered or began again are given up without a command.
        is_implied = response.group in left_out or response.attempt < restarted[response.group]
        assert fate.total() == 1 or (is_implied and fate.total() == 0), (response, fate)


def newest_attempts(responses: dict[ResponseId, Counter[str]]) -> dict[GroupId, int]:
    newest: dict[GroupId, int] = {}
    for response in responses:
        newest[response.group] = max(newest.get(response.group, 0), response.attempt)
    return newest


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
@held_to(20)
@given(st.data())
def test_staleness_property_6_no_interleaving_stops_the_run(mix: dict[str, str], data: st.DataObject) -> None:
    """Nor kills an instance that was not late, nor fails a run in which nothing was."""
    case = data.draw(lagging_cases(coordinated))
    coordination = replace(case.schedule.coordination, **mix)
    found = replace(case, schedule=replace(case.schedule, coordination=coordination)).run_lagging(checks=True)
    assert found.verdict.is_complete, found.verdict.reason
    assert len(found.steps()) == case.schedule.max_steps


RESTLESS = Coordination(
    **dict.fromkeys(KINDS, "throughput"),
    costs=CostModel(k1=0.0, k2=0.5, k3=0.0, k4=0.1),
    kv_tokens=12,
    prompt_length=2,
    max_waiting=0,
    max_gap=1.0,
    pause_s=0.0,
    plan_interval_s=0.0,
)
"""Little room, and work moves at once: responses are written by many versions, among instances of as many."""


@held_to(70)
@given(lagging_cases(coordinated, max_staleness=3, num_instances=3, max_steps=7, coordination=RESTLESS))
def test_staleness_property_7_a_response_runs_on_no_instance_older_than_it(case: Case) -> None:
    """Than its tokens or its group, as the core knows them: versions along a response never decrease."""
    held: dict[InstanceId, Version] = {}
    newest: dict[ResponseId, tuple[int, Version]] = {}
    groups: dict[tuple[GroupId, int], Version] = {}
    for entry in case.run_lagging().world.entries:
        match entry.event:
            case ev.InstanceStarted(instance=number, version=version):
                held[number] = version
            case ev.WeightsPulled(instance=number, version=version):
                assert version > held[number]
                held[number] = version
            case ev.RolloutReported(version=version, progressed=progressed, finished=finished):
                for news in (*progressed, *finished):
                    length, writer = newest.get(news.response, (0, Version(0)))
                    if news.length > length:
                        assert version >= writer
                        newest[news.response] = (news.length, version)
        submits = [command for command in entry.commands if isinstance(command, do.Submit)]
        given = [(held[submit.instance], d.response) for submit in submits for d in submit.dispatches]
        # Of those given out together the oldest version is the group's: its first member went there.
        for version, response in sorted(given):
            assert version >= newest.get(response, (0, 0))[1]
            assert version >= groups.setdefault((response.group, response.attempt), version)


@held_to(25)
@given(cases(coordinated, max_staleness=0, launch_prompts=0, max_stuck_s=None), st.integers(0, 2**32))
def test_staleness_property_8_bound_0_equals_the_synchronous_run(case: Case, seed: int) -> None:
    """With the same engine: the same responses with the same tokens and scores, step for step."""
    kept = case.schedule
    plain = Schedule(
        train_source="train", batch_size=kept.batch_size, group_size=kept.group_size, max_steps=kept.max_steps
    )
    with (
        TokenWorld(kept, random.Random(case.seed), num_prompts=NUM_PROMPTS) as ours,
        TokenWorld(plain, random.Random(seed), num_prompts=NUM_PROMPTS) as sync,
    ):
        ours.run()
        sync.run()
        assert steps_of(ours) == steps_of(sync)
        for response in (r for batch in sync.trained for r in batch):
            assert ours.read(response) == sync.read(response)


def steps_of(world: TokenWorld) -> list[do.Accumulate]:
    return [c for entry in world.entries for c in entry.commands if isinstance(c, do.Accumulate)]


@held_to(45)
@given(lagging_cases(coordinated))
def test_staleness_property_9_once_everything_is_answered_the_next_plan_is_made(case: Case) -> None:
    """The world looks after every event (``check_debts``); here also: nobody was passed over when nothing was owed."""
    found = case.run_lagging(AnsweredWorld)
    assert found.verdict.is_complete


class AnsweredWorld(LaggingWorld):
    """When nothing is asked and nothing unheard, every ready instance is one that a plan may use."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        if self.verdict is None and not self.open and not any(self.mail.values()) and not self.slowed:
            view = fleet_view(self.coordinator.rooms, self.now)
            assert {each.instance for each in view.instances} == set(self.running), "a snapshot is not valid"


class TwiceWorld(LaggingWorld):
    """Every policy is asked twice more after every event, and nothing may change by that."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        if self.verdict is not None or self.rng.random() < 0.7:
            return
        rooms = self.coordinator.rooms
        before = json.dumps(self.coordinator.snapshot())
        policies, answers = policies_of(self.schedule), []
        for _ in range(2):
            seen = [fleet_view(rooms, self.now) for _ in range(3)]
            free = [list(view.admission.free or ()) for view in seen]
            routes = list(policies.routing.route(seen[0]))
            pulls = list(policies.synchronization.choose(seen[1]))
            answers.append((routes, pulls, list(policies.migration.choose(seen[2]))))
            assert [list(view.admission.free or ()) for view in seen] == free, "a plan leaked into the view"
        assert answers[0] == answers[1]
        assert json.dumps(self.coordinator.snapshot()) == before, "a plan leaked into the state"


@held_to(25)
@given(lagging_cases(coordinated))
def test_staleness_property_11_a_plan_is_a_function_of_what_it_sees_and_changes_nothing(case: Case) -> None:
    case.run_lagging(TwiceWorld)


def test_the_cases_cover_every_bound_validation_and_strategy() -> None:
    seen: set[tuple[object, ...]] = set()

    @settings(held_to(1), max_examples=200)  # however many histories are asked for
    @given(lagging_cases(coordinated))
    def collect(case: Case) -> None:
        chosen: Coordination = case.schedule.coordination
        seen.add(("bound", case.schedule.max_staleness))
        seen.add(("is_global", chosen.is_global))
        seen.update((name, getattr(chosen, name)) for name in KINDS)
        seen.update(("fault", fault.kind) for fault in case.faults)

    collect()
    assert len(seen) == 4 + 2 + sum(len(strategies) for strategies in KINDS.values()) + 4
