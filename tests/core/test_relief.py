"""What happens when training waits too long for the last groups of a strict batch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from core.histories import NUM_PROMPTS, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.collection.room import MAX_RELIEFS
from tailrace.core.ids import ResponseId
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.ledger.ledger import BatchState
from tailrace.core.schedule import EvalSet, Leftovers, OnStuck, Schedule
from tailrace.observe.metrics.rows import Metrics
from tailrace.observe.prompts.conservation import conservation
from tailrace.observe.prompts.fates import TRAINED, Fates
from tailrace.observe.schedules.schedule_account import ScheduleAccount

LIMIT_S = 18.0
SEEDS = range(5)


def run(
    seed: int, on_stuck: OnStuck, *, admission: AdmissionRule = AdmissionRule.DEADLINE, num_steps: int = 6
) -> World:
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=2,
        max_steps=num_steps,
        num_instances=2,
        max_staleness=1,
        leftovers=Leftovers.KEEP,
        admission=admission,
        max_stuck_s=LIMIT_S,
        on_stuck=on_stuck,
    )
    world = World(schedule, random.Random(seed), num_prompts=NUM_PROMPTS)
    assert world.run().is_complete
    return world


def reliefs(world: World) -> Iterator[tuple[float, do.ReportDropped]]:
    for entry in world.entries:
        yield from ((entry.now, command) for command in entry.commands if isinstance(command, do.ReportDropped))


@pytest.mark.parametrize("admission", [AdmissionRule.DEADLINE, AdmissionRule.ORDER])
def test_groups_that_hold_up_training_begin_again_and_are_trained_within_the_bound(admission: AdmissionRule) -> None:
    num_restarted = num_trained_again = 0
    for seed in SEEDS:
        world = run(seed, OnStuck.RESTART, admission=admission)
        restarted = {group for _, relief in reliefs(world) for group in relief.restarted}
        trained = {r.group: r.attempt for step in world.trained for r in step}
        assert all(trained[group] > 0 for group in restarted & set(trained)), "trained as it was given up"
        num_restarted += len(restarted)
        num_trained_again += len(restarted & set(trained))
        found = conservation(world.entries)
        assert found["adds_up"], found
        assert not found["dropped"]
    assert num_restarted == num_trained_again > 0


def test_groups_that_hold_up_training_are_dropped_and_accounted_for() -> None:
    num_dropped = 0
    for seed in SEEDS:
        world = run(seed, OnStuck.DROP)
        found = conservation(world.entries)
        assert found["adds_up"], found
        assert not any(relief.restarted for _, relief in reliefs(world))
        num_dropped += found["dropped"]
    assert num_dropped


def test_nothing_is_dropped_before_the_trainer_was_free_for_so_long() -> None:
    num_seen = 0
    for seed in SEEDS:
        world = run(seed, OnStuck.RESTART)
        ready = 0.0
        for entry in world.entries:
            if isinstance(entry.event, ev.StepTrained | ev.TrainerReached):
                ready = entry.now
            if any(isinstance(command, do.ReportDropped) for command in entry.commands):
                assert entry.now >= ready + LIMIT_S
                num_seen += 1
    assert num_seen


def test_the_core_asks_to_be_woken_when_training_has_waited_long_enough() -> None:
    """Nobody may report anything more: only a timer can end the wait."""
    world = started(leftovers=Leftovers.KEEP, max_staleness=1, max_stuck_s=LIMIT_S)
    rooms = world.coordinator.rooms
    until(world, lambda: rooms.collection.stuck_since is not None)
    assert world.timer is not None
    assert world.timer <= rooms.collection.stuck_since + LIMIT_S
    world.now = rooms.collection.stuck_since + LIMIT_S
    world.tell(ev.TimerFired())
    assert any(isinstance(command, do.ReportDropped) for command in world.entries[-1].commands)


def test_an_evaluation_that_holds_up_training_is_no_reason_to_give_anything_up() -> None:
    sets = (EvalSet(name="heldout", num_prompts=6, group_size=4),)
    world = started(leftovers=Leftovers.KEEP, max_staleness=1, max_stuck_s=LIMIT_S, eval_sets=sets, eval_interval=1)
    rooms = world.coordinator.rooms
    num_seen = 0
    while world.verdict is None:
        world.advance()
        if rooms.evaluation.done < rooms.training.version:
            num_seen += rooms.collection.ledger.state is BatchState.STUCK
            assert rooms.collection.stuck_since is None
    assert num_seen, "no batch was stuck during an evaluation"


def test_a_limit_shorter_than_responses_take_ends_the_run_with_a_sentence() -> None:
    for on_stuck in OnStuck:
        world = started(leftovers=Leftovers.KEEP, max_staleness=0, max_stuck_s=0.5, on_stuck=on_stuck, max_steps=50)
        until(world, lambda world=world: world.verdict is not None)
        assert not world.verdict.is_complete
        assert world.verdict.reason.endswith("responses take longer than max_stuck_s; raise it")


def test_reliefs_with_a_batch_in_between_end_no_run() -> None:
    world = run(4, OnStuck.RESTART, num_steps=40)
    times = [now for now, relief in reliefs(world) if relief.restarted]
    assert len(times) > MAX_RELIEFS


def reported_lengths(world: World) -> dict[ResponseId, int]:
    found: dict[ResponseId, int] = {}
    for entry in world.entries:
        match entry.event:
            case ev.RolloutReported(progressed=progressed, finished=finished):
                found |= {news.response: news.length for news in (*progressed, *finished)}
            case ev.ResponsesAborted(aborted=aborted):
                for part in aborted:
                    found[part.response] = max(part.length, found.get(part.response, 0))
    return found


@pytest.mark.parametrize("on_stuck", list(OnStuck))
def test_metrics_count_the_tokens_of_what_is_dropped_once(on_stuck: OnStuck) -> None:
    for seed in SEEDS:
        world, metrics = run(seed, on_stuck), Metrics()
        for entry in world.entries:
            metrics.feed(entry)
        assert metrics._memory.tokens_total == sum(reported_lengths(world).values())


def test_fates_know_of_groups_that_begin_again() -> None:
    for seed in SEEDS:
        world, fates = run(seed, OnStuck.RESTART), Fates()
        for entry in world.entries:
            fates.feed(entry)
        lengths, trained = reported_lengths(world), {r for step in world.trained for r in step}
        for group in {r.group for r in trained}:
            given_up = sum(length for r, length in lengths.items() if r.group == group and r not in trained)
            in_all = sum(length for r, length in lengths.items() if r.group == group)
            fate = fates.groups[group]
            assert (fate.num_tokens, fate.num_wasted, fate.state) == (in_all, given_up, TRAINED)


def test_the_tokens_of_a_group_that_begins_again_are_counted_as_wasted() -> None:
    for seed in SEEDS:
        world = run(seed, OnStuck.RESTART)
        account = ScheduleAccount()
        for entry in world.entries:
            account.feed(entry)
        figures = account.figures()
        assert figures.tokens_generated == figures.tokens_trained + figures.tokens_wasted + account.tokens_held
        if any(relief.restarted for _, relief in reliefs(world)):
            assert figures.tokens_wasted
