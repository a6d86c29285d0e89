"""Every observer can follow any history of any sound schedule; what they say agrees with the messages, and with each
other.

The histories are those of ``tests/core``: lost instances, failing rewards, late and lost answers, crashes and resumes.
"""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import (
    Case,
    History,
    active_partial,
    cases,
    coordinated,
    held_to,
    lagging_cases,
    one_schedule,
    tail_batching,
)
from observe.observers import Observers
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Part
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import EvalSet, Schedule
from tailrace.observe.prompts import fairness
from tailrace.observe.prompts.fates import DEFERRED, DROPPED, EVALUATED, FILTERED, OFFERED, TRAINED
from tailrace.observe.schedules.comparison import Compared
from tailrace.observe.shared_fold.records import Work
from tailrace.observe.time_use.step_parts import BOTH, EVALUATE, PARTS, REWARDS
from tailrace.observe.time_use.timeline import DOWN


def keeping(rng: random.Random, **changes: object) -> Schedule:
    """Deferred prompts go on where they were."""
    return tail_batching(rng, **{"keep_deferred_tokens": True, "max_staleness": rng.randint(1, 3), **changes})


def rollout_only(rng: random.Random, **changes: object) -> Schedule:
    sets = (EvalSet(name="heldout", num_prompts=rng.randint(1, 7), group_size=2),)
    wanted = {"max_steps": 0, "group_size": 2, "launch_responses": 0, "train_source": "", "eval_sets": sets}
    return one_schedule(rng, **{**wanted, "eval_interval": 1, **changes})


MAKERS = (one_schedule, tail_batching, keeping, active_partial, coordinated)


@held_to(30)
@given(st.one_of(*(cases(make, 0.0, 0.03, 0.1) for make in MAKERS)))
def test_every_observer_follows_any_history_and_their_accounts_agree(case: Case) -> None:
    check(case.run())


@held_to(20)
@given(st.one_of(*(lagging_cases(make) for make in MAKERS)))
def test_every_observer_follows_histories_with_late_and_lost_answers(case: Case) -> None:
    check(case.run_lagging())


@held_to(10)
@given(cases(rollout_only, 0.0, 0.1))
def test_a_run_that_only_generates_is_followed_to_its_last_prompt(case: Case) -> None:
    found = case.run()
    observers = Observers(found.schedule)
    observers.follow(found.world.entries)
    (eval_set,), totals = found.schedule.eval_sets, observers.account.fates.totals(is_training=False)
    assert found.verdict.is_complete
    assert observers.tally.num_prompts_done == totals[EVALUATED].num_groups == eval_set.num_prompts
    row, told = observers.tally.row(), observers.told
    assert row["perf/tokens_total"] == sum(told.ended) == totals[OFFERED].num_tokens
    assert row["reward/mean"] == pytest.approx(fmean(told.scores.values()))
    check_instances(found, observers)


def check(found: History) -> None:
    observers = Observers(found.schedule)
    observers.follow(found.world.entries)
    check_rows(observers, found.schedule)
    check_parts(observers)
    check_tokens(found, observers)
    check_prompts(found, observers)
    check_instances(found, observers)
    check_times(found, observers)
    check_memory(found, observers)


def check_rows(observers: Observers, schedule: Schedule) -> None:
    """One for each step, and what it says of the step is what the step was asked for."""
    told, rows = observers.told, observers.account.steps
    assert [row for row in observers.rows if "reward/mean" in row] == rows
    assert [row for row in observers.rows if "reward/mean" not in row] == observers.account.evaluations
    assert [row["step"] for row in rows] == [step.version + 1 for step in told.steps]
    for row, step, total, left_out in zip(rows, told.steps, told.totals, told.left_out, strict=False):
        ages = [step.version - oldest for oldest in step.oldest]
        assert (row["staleness/max"], row["staleness/mean"]) == (max(ages), pytest.approx(fmean(ages)))
        assert row["groups/num_samples"] == len(step.responses)
        assert row["groups/num_dropped"] == len(left_out)
        assert row["perf/tokens_total"] == total
        assert 0 <= row["perf/eval_tokens"] <= total
        assert any(name.startswith("round/") for name in row) is schedule.has_rounds
        within = ("gen", "reward_exposed", "reward_hidden")
        assert all(0 <= row[f"timing_s/{name}"] <= row["timing_s/step"] + 1e-9 for name in within)
        if not left_out:
            assert row["reward/mean"] == pytest.approx(fmean(step.scores))
            lengths = [told.lengths[response] for response in step.responses]
            assert row["response_length/mean"] == pytest.approx(fmean(lengths))
    assert [sum(step.trained) for step in observers.account.fates.lengths] == told.trained


def check_parts(observers: Observers) -> None:
    """Each part of the scores of a step was awaited for as long as the messages say, and nothing of it is missing."""
    rows = observers.account.steps
    assert len(rows) == len(observers.parts.steps)
    for row, told in zip(rows, observers.parts.steps, strict=True):
        assert row["timing_s/reward_exposed"] == pytest.approx(told.exposed[None])
        assert row["timing_s/reward_hidden"] == pytest.approx(told.hidden[None])
        for part in Part:
            name = f"scoring/{part.value}"
            if f"{name}/load" in row:
                assert row[f"{name}/exposed_s"] == pytest.approx(told.exposed[part])
                assert row[f"{name}/hidden_s"] == pytest.approx(told.hidden[part])
                assert row[f"{name}/run_s"] == pytest.approx(told.run[part])
                assert row[f"{name}/num_failed"] == told.failed[part]
            else:
                assert not told.run[part] + told.exposed[part] + told.hidden[part]
        assert row.get("scoring/tests/num_cut_cases", 0) == told.cut


def check_tokens(found: History, observers: Observers) -> None:
    told, figures, rows = observers.told, observers.costs.figures(), observers.account.steps
    evaluated = sum(length for r, length in told.lengths.items() if r.group.source != found.schedule.train_source)
    assert sum(row["perf/eval_tokens"] for row in rows) <= evaluated
    totals = observers.account.fates.totals(is_training=True)[OFFERED]
    generated = sum(length for r, length in told.lengths.items() if r.group.source == found.schedule.train_source)
    assert figures.tokens_generated == totals.num_tokens == generated
    assert figures.tokens_trained == sum(told.trained)
    assert figures.tokens_wasted == totals.num_wasted
    assert generated == figures.tokens_trained + figures.tokens_wasted + observers.costs.tokens_held
    assert figures.num_steps == len(observers.observations.finishes) == len(told.steps)
    assert figures.staleness_max == max((row["staleness/max"] for row in rows), default=0)
    assert figures.staleness_violations == sum(row["staleness/violations"] for row in rows)
    if found.schedule.is_strict:
        assert figures.staleness_violations == 0


def check_prompts(found: History, observers: Observers) -> None:
    """What became of every prompt, as the fates have it and as the coordinator does."""
    assert sum(fate.num_failed for fate in observers.account.fates.groups.values()) == observers.told.num_failed
    totals = observers.account.fates.totals(is_training=True)
    offered = totals.pop(OFFERED)
    assert offered.num_groups == sum(total.num_groups for total in totals.values())
    fairness.alarms(observers.account.fates, found.schedule)
    if not observers.account.steps:
        return
    compared = Compared.of("any", found.world.entries)
    counts = compared.prompts
    assert compared.figures == observers.costs.figures()
    assert (counts["adds_up"], counts["trained_twice"]) == (1, 0), counts
    assert counts["issued"] == offered.num_groups
    for name in (TRAINED, FILTERED, DROPPED):
        assert counts[name] == totals[name].num_groups
    assert counts["queued"] - len(found.world.coordinator.rooms.collection.held) == totals[DEFERRED].num_groups


def requested_responses(rooms: Rooms) -> set[ResponseId]:
    """Responses of whose scores some part is outstanding."""
    requested = rooms.rewards.requested.values()
    return {response for each in requested for response in (*each.scoring, *each.aborting)}


def check_instances(found: History, observers: Observers) -> None:
    """The shared fold says the same as the core about which responses an instance holds, and what else is outstanding.

    A response that is being aborted may have ended in the meantime.
    """
    rooms, run = found.world.coordinator.rooms, observers.account._run
    for number, instance in rooms.fleet.instances.items():
        told = {*run.instance(number).running}
        assert {*instance.running} <= told <= {*instance.running, *instance.aborting}
    assert {*run.state.scoring} == requested_responses(rooms)
    asked = [Work.TRAIN] * rooms.training.step.is_busy + [Work.SAVE] * (rooms.training.saving is not None)
    assert sorted(order.work.value for order in run.state.orders) == sorted(work.value for work in asked)
    held = [r for each in run.state.instances.values() for r in each.running.values() if run.is_training(r)]
    assert run.num_tokens_held == sum(response.length for response in held)
    for other in (observers.resumed._run, observers.live._run, observers.costs._run):
        assert other.state == run.state


def check_times(found: History, observers: Observers) -> None:
    account, figures = observers.account, observers.costs.figures()
    for lane in account.timeline.lanes():
        ends = [lane.start, *(edge for span in lane.spans for edge in (span.start, span.end)), lane.end]
        assert ends == sorted(ends), f"{lane.name} did two things at once"
    shares = (figures.bubble_share, figures.rollout_idle_share, figures.trainer_idle_share)
    assert all(-1e-9 <= share <= 1 for share in shares)
    assert -1e-9 <= figures.wall_s <= account.now - account.began + 1e-9
    for row, parts in zip(account.steps, account.parts.steps, strict=True):
        assert {*parts} <= {*PARTS}
        assert sum(parts.values()) == pytest.approx(row["timing_s/step"] + row["timing_s/eval"])
        hidden_s, exposed_s, eval_s = (parts.get(part, 0.0) for part in (BOTH, REWARDS, EVALUATE))
        assert hidden_s == pytest.approx(row["timing_s/update_hidden"])
        assert eval_s == pytest.approx(row["timing_s/eval"])
        assert exposed_s == pytest.approx(row["timing_s/reward_exposed"])
    evaluation_s = [row["timing_s/eval"] for row in account.steps]
    assert figures.evaluation_s == pytest.approx(sum(evaluation_s))
    assert sum(row["timing_s/step"] for row in account.steps) + sum(evaluation_s) <= account.now - account.began + 1e-6
    assert account.finish == found.verdict
    assert account.num_entries == len(found.world.entries)
    assert all(DOWN not in lane.seconds() for lane in account.timeline.lanes()) or account.resumed_at


def check_memory(found: History, observers: Observers) -> None:
    """The shared fold knows the responses that the core knows; of the others only those that an instance still runs."""
    rooms, run = found.world.coordinator.rooms, observers.account._run
    members = {r for group in rooms.responses.groups.values() for r in group.members}
    in_progress = {response.id for response in run.in_progress()}
    spoken_of = {r for instance in rooms.fleet.instances.values() for r in (*instance.running, *instance.aborting)}
    assert in_progress <= {r for r in in_progress if r.group in rooms.responses.groups}
    assert {r for r in run.state.responses if r not in in_progress} <= spoken_of
    assert {r for r in members if rooms.responses.groups[r.group].members[r].length} <= in_progress
    ordered = {response for seen in observers.observations.rewards.values() for response in seen.ordered}
    assert ordered <= requested_responses(rooms)
