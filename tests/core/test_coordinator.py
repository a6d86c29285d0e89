"""Random histories of the coordinator: every invariant after every event, and what a run must achieve."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.histories import I0, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import InvalidTransition, ReplayMismatch
from tailrace.core.ids import GroupId, InstanceId, Version
from tailrace.core.journal import Entry, decode, encode, replay_all
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish, ResponsePhase
from tailrace.core.rewards.room import Rewards
from tailrace.core.schedule import Coordination, EvalSet, Leftovers, Limits, Schedule
from tailrace.policies.strategies import policies_of


def fresh(schedule: Schedule) -> Coordinator:
    return Coordinator(schedule, policies=policies_of(schedule))


schedules = st.builds(
    Schedule,
    train_source=st.just("train"),
    batch_size=st.integers(1, 3),
    group_size=st.integers(1, 3),
    max_steps=st.integers(1, 4),
    num_instances=st.integers(1, 3),
    max_in_flight=st.integers(1, 6),
    eval_sets=st.sampled_from([(), (EvalSet(name="heldout", num_prompts=2, group_size=2),)]),
    eval_interval=st.sampled_from([None, 1, 2]),
    save_interval=st.sampled_from([None, 1, 2]),
    is_reward_streamed=st.booleans(),
    drops_failed_rewards=st.booleans(),
    filters_equal_scores=st.booleans(),
    max_useless_groups=st.just(60),  # groups of one are all equal
    limits=st.just(Limits(max_restarts=1000)),
)


@pytest.mark.slow
@given(schedule=schedules, seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.03, 0.1]))
@settings(max_examples=50, deadline=None)
def test_random_histories_keep_every_invariant_and_reach_the_end(schedule: Schedule, seed: int, trouble: float) -> None:
    world = World(schedule, random.Random(seed), trouble=trouble)
    verdict = world.run()
    if "failing reward" in verdict.reason:
        assert schedule.drops_failed_rewards
        return
    if "equal scores" in verdict.reason:
        assert schedule.filters_equal_scores
        return
    assert verdict.is_complete
    assert len(world.trained) == schedule.max_steps
    assert world.saved[-1] == schedule.max_steps, "the run ended without its last checkpoint"
    assert len(set(world.saved)) == len(world.saved), "a checkpoint was written again though it was on disk"
    # A crash between a step and its news makes the step happen twice; the journal tells of it once.
    counts = Counter(r for step in world.trained for r in step)
    assert max(counts.values()) == 1, "a response was trained twice"
    for step in world.trained:
        assert len({r.group for r in step}) == schedule.batch_size
        assert list(step) == sorted(step)


@pytest.mark.slow
@given(schedule=schedules, seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_a_journal_replays_to_identical_commands(schedule: Schedule, seed: int) -> None:
    world = World(schedule, random.Random(seed), trouble=0.05)
    world.run()
    # Resumes re-create the coordinator from its snapshot; a replay goes straight through.
    lines = [encode(entry) for entry in world.entries]
    entries = [decode(line) for line in lines]
    assert entries == world.entries
    assert replay_all(entries, fresh) == len(entries)


def test_a_journal_that_was_tampered_with_is_noticed() -> None:
    schedule = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=2)
    world = World(schedule, random.Random(1))
    world.run()
    index = next(i for i, e in enumerate(world.entries) if any(isinstance(c, do.Accumulate) for c in e.commands))
    entry = world.entries[index]
    world.entries[index] = Entry(now=entry.now, event=entry.event, commands=())
    with pytest.raises(ReplayMismatch, match=f"entry {index}"):
        replay_all(world.entries, fresh)


def test_dynamic_sampling_trains_only_groups_that_teach_and_replaces_the_others() -> None:
    schedule = Schedule(train_source="train", batch_size=3, group_size=2, max_steps=4, filters_equal_scores=True)
    world = World(schedule, random.Random(0))
    assert world.run().is_complete
    steps = [c for entry in world.entries for c in entry.commands if isinstance(c, do.Accumulate)]
    for step in steps:
        scores: dict[GroupId, set[float]] = {}
        for response, score in zip(step.responses, step.scores, strict=True):
            scores.setdefault(response.group, set()).add(score)
        assert len(scores) == 3
        assert all(len(values) == 2 for values in scores.values())
    offered = sum(len(e.event.prompts) for e in world.entries if isinstance(e.event, ev.PromptsOffered))
    assert offered > 12, "nothing was filtered, so the test shows nothing"


def test_a_reward_that_always_fails_ends_the_run_with_its_reason() -> None:
    schedule = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=99)
    world = World(schedule, random.Random(0))
    world.score = lambda r: ev.Scored(response=r, outcome=Outcome.ERROR, score=0.0, seconds=0.0, detail="no name")
    verdict = world.run()
    assert not verdict.is_complete
    assert verdict.reason == "the last 32 rewards failed, every one of them; error: no name"
    assert sum(isinstance(entry.event, ev.ResponsesScored) for entry in world.entries) == 32


def test_the_rewards_of_two_whole_batches_must_fail_before_a_run_ends_for_it() -> None:
    schedule = Schedule(train_source="train", batch_size=5, group_size=4, max_steps=1)
    assert Rewards(num_failed_in_a_row=39).failure(schedule) is None
    assert Rewards(num_failed_in_a_row=40).failure(schedule) is not None


def test_prompts_that_never_teach_end_the_run_with_a_sentence() -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=1,
        group_size=1,
        max_steps=1,
        filters_equal_scores=True,
        max_useless_groups=5,
    )
    world = World(schedule, random.Random(0))
    assert world.run().reason.startswith("5 groups in a row had equal scores and were filtered")
    notes = [c for entry in world.entries for c in entry.commands if isinstance(c, do.ReportDropped)]
    assert sum(len(note.filtered) for note in notes) == 5


def test_the_state_stays_small_however_long_a_run_lasts() -> None:
    sizes = []
    for max_steps in (3, 30):
        schedule = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=max_steps)
        world = World(schedule, random.Random(1))
        world.run()
        sizes.append(len(str(world.coordinator.snapshot())))
    assert sizes[1] < 1.2 * sizes[0]


def test_nobody_waits_without_a_name_and_a_limit() -> None:
    schedule = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=2)
    world = World(schedule, random.Random(3))
    world.tell(ev.RunStarted(schedule=schedule))
    while world.verdict is None:
        waits = world.coordinator.waits()
        assert waits, "the run goes on but does not say what it waits for"
        assert all(w.what and w.limit_s > 0 and w.since <= world.now for w in waits)
        world.advance()
    assert world.coordinator.waits() == []


def silent_instance(limits: Limits) -> tuple[Coordinator, float]:
    """A coordinator whose only instance took work and then says nothing."""
    coordinator = fresh(Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1, limits=limits))
    coordinator.handle(ev.RunStarted(schedule=coordinator.schedule), now=0.0)
    coordinator.handle(ev.TrainerReached(version=Version(0)), now=0.0)
    coordinator.handle(ev.PromptsOffered(source="train", prompts=((0, 0),), next_epoch=0, next_offset=1), now=1.0)
    commands = coordinator.handle(ev.InstanceStarted(instance=InstanceId(0), version=Version(0)), now=2.0)
    assert any(isinstance(c, do.Submit) for c in commands)
    return coordinator, 2.0


def test_a_silent_instance_is_restarted_and_its_work_continues_from_the_last_report() -> None:
    coordinator, start = silent_instance(Limits(progress_s=10.0, start_s=10.0))
    (wait,) = coordinator.waits()
    assert wait.what == "response train:0:0:0:0 on instance 0"
    response = next(iter(coordinator.rooms.responses.all_responses())).id
    report = ev.RolloutReported(
        instance=InstanceId(0), version=Version(0), progressed=(ev.Progressed(response=response, length=5),)
    )
    coordinator.handle(report, now=start + 1)
    commands = coordinator.handle(ev.TimerFired(), now=start + 11)
    (kill,) = [c for c in commands if isinstance(c, do.KillInstance)]
    assert "response train:0:0:0:0" in kill.reason
    commands = coordinator.handle(ev.InstanceLost(instance=InstanceId(0), reason=kill.reason), now=start + 12)
    assert do.StartInstance(instance=InstanceId(0), incarnation=2) in commands
    commands = coordinator.handle(ev.InstanceStarted(instance=InstanceId(0), version=Version(0)), now=start + 13)
    (submit,) = [c for c in commands if isinstance(c, do.Submit)]
    assert submit.dispatches == (do.Dispatch(response=response, start=5),)


def test_an_instance_is_killed_once_and_the_run_fails_if_its_end_is_not_confirmed() -> None:
    coordinator, start = silent_instance(Limits(progress_s=10.0, start_s=20.0))
    commands = coordinator.handle(ev.TimerFired(), now=start + 10)
    assert sum(isinstance(command, do.KillInstance) for command in commands) == 1
    assert [wait.what for wait in coordinator.waits()] == ["end of instance 0"]
    assert not coordinator.rooms.fleet.instances[InstanceId(0)].accepts_work
    (finish,) = coordinator.handle(ev.TimerFired(), now=start + 30)
    assert finish == do.FinishRun(is_complete=False, reason="waited 20 s for end of instance 0 (limit 20 s)")


def test_an_instance_that_is_lost_again_and_again_ends_the_run_with_its_last_words() -> None:
    coordinator, now = silent_instance(Limits(max_restarts=2))
    for attempt in range(3):
        commands = coordinator.handle(ev.InstanceLost(instance=InstanceId(0), reason="out of memory"), now=now)
        if attempt < 2:
            coordinator.handle(ev.InstanceStarted(instance=InstanceId(0), version=Version(0)), now=now)
    (finish,) = commands
    assert isinstance(finish, do.FinishRun)
    assert not finish.is_complete
    assert "instance 0 was lost 3 times" in finish.reason
    assert "out of memory" in finish.reason


def lost_for_good(world: World, number: InstanceId) -> None:
    """Lost as often as it may be started within a step, and once more."""
    for _ in range(world.schedule.limits.max_restarts + 1):
        until(world, lambda: not any(isinstance(c, do.StartInstance) and c.instance == number for c in world.open))
        world.lose(number, f"instance {number} is out of memory")


def test_a_run_goes_on_without_an_instance_that_cannot_start_and_tries_it_again_after_the_next_step() -> None:
    world = started(num_instances=2, limits=Limits(max_restarts=1))
    second = InstanceId(1)
    until(world, lambda: bool(world.running.get(I0)) and bool(world.running.get(second)))
    lost_for_good(world, second)
    assert world.verdict is None
    assert not any(isinstance(command, do.StartInstance) for command in world.open)
    until(world, lambda: world.coordinator.version == 1)
    assert do.StartInstance(instance=second, incarnation=4) in world.entries[-1].commands
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_run_without_any_instance_that_can_start_ends_and_says_so() -> None:
    world = started(num_instances=2, limits=Limits(max_restarts=1))
    until(world, lambda: bool(world.running.get(I0)) and bool(world.running.get(InstanceId(1))))
    lost_for_good(world, InstanceId(1))
    lost_for_good(world, I0)
    assert world.verdict is not None
    assert not world.verdict.is_complete
    assert world.verdict.reason == (
        "no rollout instance is left: instance 0 was lost 2 times within one step;"
        " the last time: instance 0 is out of memory"
    )


def test_a_wait_past_its_limit_that_no_restart_can_mend_fails_with_a_sentence() -> None:
    coordinator = fresh(
        Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1, limits=Limits(prompts_s=5.0))
    )
    coordinator.handle(ev.RunStarted(schedule=coordinator.schedule), now=0.0)
    (finish,) = coordinator.handle(ev.TimerFired(), now=6.0)
    assert finish == do.FinishRun(is_complete=False, reason="waited 6 s for prompts of 'train' (limit 5 s)")


STEERED = Coordination(**dict.fromkeys(("routing", "synchronization", "migration"), "throughput"), plan_interval_s=0.0)


@pytest.mark.parametrize("changes", [{}, {"leftovers": Leftovers.KEEP, "coordination": STEERED}])
def test_instances_that_are_ready_first_leave_the_others_their_share(changes: dict[str, Any]) -> None:
    schedule = Schedule(train_source="train", batch_size=8, group_size=2, max_steps=1, num_instances=4, **changes)
    coordinator = fresh(schedule)
    coordinator.handle(ev.RunStarted(schedule=schedule), now=0.0)
    offered = ev.PromptsOffered(
        source="train", prompts=tuple((0, prompt) for prompt in range(8)), next_epoch=0, next_offset=8
    )
    coordinator.handle(offered, now=0.0)
    shares = []
    for number in range(4):
        started = ev.InstanceStarted(instance=InstanceId(number), version=Version(0))
        submits = [c for c in coordinator.handle(started, now=1.0) if isinstance(c, do.Submit)]
        shares += [(submit.instance, len(submit.dispatches)) for submit in submits]
    assert shares == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_an_instance_that_is_never_ready_does_not_hold_up_the_others() -> None:
    schedule = Schedule(train_source="train", batch_size=4, group_size=1, max_steps=1, num_instances=2)
    coordinator = fresh(schedule)
    coordinator.handle(ev.RunStarted(schedule=schedule), now=0.0)
    offered = ev.PromptsOffered(
        source="train", prompts=tuple((0, prompt) for prompt in range(4)), next_epoch=0, next_offset=4
    )
    coordinator.handle(offered, now=0.0)
    first, given = InstanceId(0), []
    news: ev.Event = ev.InstanceStarted(instance=first, version=Version(0))
    while submits := [c for c in coordinator.handle(news, now=1.0) if isinstance(c, do.Submit)]:
        [submit] = submits
        given.append(len(submit.dispatches))
        ended = tuple(ev.Finished(response=d.response, length=1, finish=Finish.STOP) for d in submit.dispatches)
        news = ev.RolloutReported(instance=first, version=Version(0), finished=ended)
    assert given == [2, 1, 1]


def test_an_illegal_move_carries_the_story() -> None:
    coordinator, now = silent_instance(Limits())
    response = next(iter(coordinator.rooms.responses.all_responses()))
    with pytest.raises(InvalidTransition, match=r"running -> scored is not legal\n  2.000  pending -> running"):
        response.move(ResponsePhase.SCORED, now=now)


def test_barrier_timing_scores_nothing_before_the_last_response_ended() -> None:
    schedule = Schedule(train_source="train", batch_size=3, group_size=2, max_steps=2, is_reward_streamed=False)
    world = World(schedule, random.Random(5))
    world.run()
    num_finished = 0
    for entry in world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            num_finished += len(entry.event.finished)
        for command in entry.commands:
            if isinstance(command, do.Score):
                assert num_finished % 6 == 0, "scored before the step's last response ended"
                assert len(command.responses) == 6


def test_a_trainer_that_catches_up_is_waited_for_step_by_step() -> None:
    """A run resumed far behind its journal once failed for ever: publishing was asked for, and timed, too early."""
    schedule = Schedule(
        train_source="train", batch_size=1, group_size=1, max_steps=9, limits=Limits(weights_s=5.0, prompts_s=1e6)
    )
    world = World(schedule, random.Random(0))
    world.tell(ev.RunStarted(schedule=schedule))
    while world.coordinator.version < 6:
        world.advance()
    world.now += 1
    world.open.clear()
    world.running.clear()
    world.tell(ev.RunResumed(limits=schedule.limits, checkpoint=None))
    assert do.StartTrainer(incarnation=2) in world.entries[-1].commands
    for version in range(6):
        world.now += 60
        world.tell(ev.TrainerReached(version=Version(version)))
        assert f"the trainer to take step {version + 1} of 6 again" in [w.what for w in world.coordinator.waits()]
        assert not any(isinstance(c, do.PublishWeights | do.FinishRun) for c in world.entries[-1].commands)
    world.tell(ev.TrainerReached(version=Version(6)))
    assert do.PublishWeights(version=Version(6)) in world.entries[-1].commands


def test_a_repaired_reward_gets_another_chance_when_the_run_is_resumed() -> None:
    schedule = Schedule(train_source="train", batch_size=2, group_size=1, max_steps=1, drops_failed_rewards=True)
    world = World(schedule, random.Random(0))
    world.tell(ev.RunStarted(schedule=schedule))
    world.score = lambda response: ev.Scored(  # type: ignore[method-assign]
        response=response, outcome=ev.Outcome.ERROR, score=0.0, seconds=0.0, detail="the judge is down"
    )
    while world.verdict is None:
        world.advance()
    assert world.verdict.reason == (
        "2 groups in a row lost every response to a failing reward; error: the judge is down"
    )
    del world.score
    world.crash_and_resume()
    while world.verdict is None:
        world.advance()
    assert world.verdict.is_complete


def test_a_stopped_run_says_so_and_goes_on_when_resumed() -> None:
    schedule = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=3)
    world = World(schedule, random.Random(2))
    world.tell(ev.RunStarted(schedule=schedule))
    for _ in range(10):
        world.advance()
    world.tell(ev.StopRequested(reason="interrupted from the keyboard"))
    assert world.verdict == do.FinishRun(is_complete=False, reason="interrupted from the keyboard")
    world.crash_and_resume()
    while world.verdict is None:
        world.advance()
    assert world.verdict.is_complete


@given(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.1]), num_instances=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_a_schedule_of_no_steps_scores_its_prompts_and_starts_no_trainer(
    seed: int, trouble: float, num_instances: int
) -> None:
    schedule = Schedule(
        train_source="",
        batch_size=2,
        group_size=2,
        max_steps=0,
        num_instances=num_instances,
        eval_sets=(EvalSet(name="train", num_prompts=5, group_size=2),),
        eval_interval=1,
        limits=Limits(max_restarts=1000),
    )
    world = World(schedule, random.Random(seed), trouble=trouble)
    verdict = world.run()
    assert verdict == do.FinishRun(is_complete=True, reason="every prompt is done")
    commands = [command for entry in world.entries for command in entry.commands]
    training = do.StartTrainer | do.Accumulate | do.PublishWeights | do.PullWeights | do.SaveCheckpoint
    assert not [command for command in commands if isinstance(command, training)]
    asked = {command for command in commands if isinstance(command, do.RequestPrompts)}
    assert asked == {do.RequestPrompts(source="train", epoch=0, offset=0, count=5)}
    [closed] = [command for command in commands if isinstance(command, do.CloseEvaluation)]
    assert closed.groups == tuple(GroupId("train", 0, prompt) for prompt in range(5))
    assert replay_all(world.entries, fresh) == len(world.entries)


def test_an_evaluation_is_closed_in_the_order_of_its_prompts_however_they_were_offered() -> None:
    world = started(eval_sets=(EvalSet(name="heldout", num_prompts=3, group_size=1),), eval_interval=1)
    request = next(c for c in world.open if isinstance(c, do.RequestPrompts) and c.source == "heldout")
    world.open.remove(request)
    prompts = ((0, 2), (0, 0), (0, 1))
    world.tell(ev.PromptsOffered(source="heldout", prompts=prompts, next_epoch=1, next_offset=0))
    closed: list[do.CloseEvaluation] = []
    while not closed:
        world.advance()
        closed += [command for command in world.entries[-1].commands if isinstance(command, do.CloseEvaluation)]
    assert closed[0].groups == tuple(GroupId("heldout", 0, prompt) for prompt in range(3))


def test_the_pieces_in_training_are_those_of_the_step_in_progress_and_of_no_other() -> None:
    world = World(Schedule(train_source="train", batch_size=2, group_size=2, max_steps=2), random.Random(0))
    world.tell(ev.RunStarted(schedule=world.schedule))
    assert world.coordinator.step_in_training() == ()
    while not (steps := [command for command in world.open if isinstance(command, do.Accumulate)]):
        world.advance()
    assert [*world.coordinator.step_in_training()] == steps
    while world.verdict is None:
        world.advance()
    assert world.coordinator.step_in_training() == ()
