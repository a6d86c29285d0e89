"""Reports that say nothing new, or what cannot be: each is counted, changes nothing and is answered with nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given

from core.histories import I0, NUM_PROMPTS, Case, History, cases, coordinated, held_to, one_schedule, running, until
from core.histories import started as begin
from core.noisy_world import NoisyWorld
from core.test_any_schedule import check_end
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Coordination, EvalSet, Leftovers, Placement
from tailrace.policies.strategies import policies_of

REPEATED = (
    ev.PromptsOffered,
    ev.InstanceStarted,
    ev.InstanceLost,
    ev.ResponsesAborted,
    ev.MemoryReleased,
    ev.ResponsesScored,
    ev.TrainerReached,
    ev.StepTrained,
    ev.WeightsPublished,
    ev.WeightsPulled,
    ev.CheckpointSaved,
)


def started(**changes: object) -> World:
    heldout = (EvalSet(name="heldout", num_prompts=2, group_size=2),)
    common = {"num_instances": 2, "save_interval": 1, "eval_sets": heldout, "eval_interval": 1, "max_steps": 4}
    return begin(**{**common, "launch_responses": 3, **changes})


def waits_beside(coordinator: Coordinator, speaker: InstanceId | None) -> list[Wait]:
    """What the run waits for. Whatever an instance says, it lives: since when it was last heard of does not count."""
    return [replace(wait, since=0.0) if wait.instance == speaker else wait for wait in coordinator.waits()]


def assert_refused(world: World, event: ev.Event) -> None:
    """Nothing follows from the event but that it is counted."""
    coordinator, schedule = world.coordinator, world.schedule
    before = Coordinator.restore(schedule, coordinator.snapshot(), policies=policies_of(schedule))
    try:
        answer = coordinator.handle(event, now=world.now)
    except CoreError as error:
        raise AssertionError(f"{event} ended the run") from error
    coordinator.check()
    assert answer == [], f"{event} was believed"
    assert coordinator.version == before.version
    assert coordinator.live() == before.live()
    speaker = event.instance if isinstance(event, ev.InstanceEvent) else None
    assert waits_beside(coordinator, speaker) == waits_beside(before, speaker)
    assert coordinator.num_refused_reports == before.num_refused_reports + 1


def heard(world: World, kind: type[ev.Event]) -> list[ev.Event]:
    return [entry.event for entry in world.entries if isinstance(entry.event, kind)]


@pytest.mark.parametrize("kind", REPEATED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("pause", [0, 1, 5, 25])
def test_what_was_said_before_is_not_believed_again(kind: type[ev.Event], pause: int) -> None:
    """At once, or after a while in which other things happened."""
    world = started(placement=Placement.COLOCATED)
    if kind is ev.InstanceLost:
        running(world)
        world.lose(I0, "it was killed")
    until(world, lambda: bool(heard(world, kind)))
    for _ in range(pause):
        world.advance()
    while any(isinstance(command, do.PullWeights) for command in world.open):
        world.advance()  # one that pulls may say again what it has: it is asked once more
    assert world.verdict is None
    assert_refused(world, heard(world, kind)[0])
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def end_of(response: ResponseId, instance: InstanceId = I0, length: int = 9) -> ev.RolloutReported:
    end = ev.Finished(response=response, length=length, finish=Finish.STOP)
    return ev.RolloutReported(instance=instance, version=Version(0), finished=(end,))


def test_a_response_ends_once_and_its_reward_is_asked_for_once() -> None:
    world = started()
    response = running(world)
    end = world.signed(end_of(response))
    world.tell(end)
    assert [c.responses for c in world.entries[-1].commands if isinstance(c, do.Score)] == [(response,)]
    assert_refused(world, end)


def test_an_instance_reports_only_on_what_it_runs() -> None:
    world = started()
    response = running(world)
    until(world, lambda: InstanceId(1) in world.running)
    assert_refused(world, world.signed(end_of(response, InstanceId(1))))
    progress = (ev.Progressed(response=response, length=500),)
    report = ev.RolloutReported(instance=InstanceId(1), version=Version(0), progressed=progress)
    assert_refused(world, world.signed(report))


def test_a_response_that_nobody_knows_is_not_heard_of() -> None:
    """It may have been trained long ago."""
    world = started()
    running(world)
    nobody = ResponseId(GroupId("train", 0, 99), 0)
    assert_refused(world, world.signed(end_of(nobody)))
    scored = ev.Scored(response=nobody, outcome=Outcome.OK, score=1.0, seconds=0.1)
    assert_refused(world, ev.ResponsesScored(scores=(scored,)))


def test_a_response_never_shrinks() -> None:
    """An earlier report comes after a later one."""
    world = started()
    response = running(world)
    long, short = (ev.Progressed(response=response, length=length) for length in (9, 8))
    world.tell(world.signed(ev.RolloutReported(instance=I0, version=Version(0), progressed=(long,))))
    assert_refused(world, world.signed(ev.RolloutReported(instance=I0, version=Version(0), progressed=(short,))))


def test_what_is_right_in_a_report_counts_although_a_part_of_it_is_not() -> None:
    world = started()
    response = running(world)
    nobody = ev.Progressed(response=ResponseId(GroupId("train", 0, 99), 0), length=3)
    [end] = end_of(response).finished
    report = ev.RolloutReported(instance=I0, version=Version(0), progressed=(nobody,), finished=(end,))
    world.tell(world.signed(report))
    assert [c.responses for c in world.entries[-1].commands if isinstance(c, do.Score)] == [(response,)]
    assert world.coordinator.num_refused_reports == 1


def test_a_score_that_was_not_asked_for_is_not_taken() -> None:
    world = started()
    response = running(world)
    scored = ev.Scored(response=response, outcome=Outcome.OK, score=1.0, seconds=0.1)
    assert_refused(world, ev.ResponsesScored(scores=(scored,)))


def test_a_score_is_not_taken_twice() -> None:
    world = started(launch_responses=2)
    until(world, lambda: bool(heard(world, ev.ResponsesScored)))
    [scored, *_] = [event for event in heard(world, ev.ResponsesScored) if isinstance(event, ev.ResponsesScored)]
    assert_refused(world, scored)


@pytest.mark.parametrize("is_ready", [False, True])
def test_an_instance_that_was_lost_is_not_heard_of_when_another_has_taken_its_place(is_ready: bool) -> None:
    """Its number is the same: the incarnation, given with the command to start it, tells them apart."""
    world = started(num_instances=1)
    response = running(world)
    last_words = world.signed(end_of(response))
    news_of_the_end = world.signed(ev.InstanceLost(instance=I0, reason="it was killed"))
    world.lose(I0, "it was killed")
    if is_ready:
        until(world, lambda: response in world.running.get(I0, ()))
    assert_refused(world, last_words)
    assert_refused(world, news_of_the_end)


KEEP: dict[str, object] = {"leftovers": Leftovers.KEEP, "max_staleness": 2}
PLANNING = Coordination(synchronization="throughput", plan_interval_s=5.0)


@pytest.mark.parametrize(
    "changes",
    [{}, KEEP, {**KEEP, "coordination": PLANNING}],
    ids=["rounds", "keep", "planned"],
)
def test_an_instance_that_pulled_older_weights_than_asked_for_is_asked_again(changes: dict[str, object]) -> None:
    """Until it has them it takes no work: others count on the version it was sent for."""
    world = started(num_instances=1, **changes)
    until(world, lambda: any(isinstance(command, do.PullWeights) for command in world.open))
    asked = next(command for command in world.open if isinstance(command, do.PullWeights))
    world.open.remove(asked)
    world.tell(world.signed(ev.WeightsPulled(instance=I0, version=Version(asked.version - 1), seconds=0.1)))
    answer = [command for command in world.entries[-1].commands if not isinstance(command, do.SetTimer)]
    assert [type(command) for command in answer] == [do.PullWeights]
    assert answer[0] == asked
    until(world, lambda: world.verdict is not None)


@pytest.mark.parametrize("is_trainer_first", [True, False])
def test_an_instance_whose_pull_failed_pulls_once_the_restarted_trainer_has_published(is_trainer_first: bool) -> None:
    """The news of the failure may come before or after the news that the trainer is lost."""
    world = started(num_instances=1)
    until(world, lambda: any(isinstance(command, do.PullWeights) for command in world.open))
    asked = next(command for command in world.open if isinstance(command, do.PullWeights))
    failed = world.signed(ev.PullFailed(instance=I0, reason="the process has ended"))
    world.open.remove(asked)
    if is_trainer_first:
        world.lose_trainer()
        world.tell(failed)
        answer = world.entries[-1].commands
        assert not any(isinstance(command, do.PullWeights | do.Submit) for command in answer), (
            "nothing is there to pull"
        )
    else:
        world.tell(failed)
        assert asked in world.entries[-1].commands
    until(world, lambda: world.versions[I0] == asked.version)
    assert_refused(world, failed)
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def run(case: Case, noise: float) -> None:
    rng = random.Random(case.seed)
    world = NoisyWorld(case.schedule, rng, num_prompts=NUM_PROMPTS, noise=noise, trouble=case.trouble)
    check_end(History(schedule=case.schedule, world=world, verdict=world.run()))


@held_to(40)
@given(cases(one_schedule, 0.0, 0.05))
def test_any_sound_schedule_reaches_its_end_although_reports_are_repeated_and_late(case: Case) -> None:
    run(case, 0.2)


@held_to(20)
@given(cases(coordinated, 0.0, 0.05))
def test_work_that_moves_between_instances_is_heard_of_once(case: Case) -> None:
    run(case, 0.2)


def test_responses_that_an_adapter_left_out_of_a_report_are_counted_once_per_report() -> None:
    world = started()
    running(world)
    report = world.signed(ev.RolloutReported(instance=I0, version=Version(0), num_refused=2))
    assert_refused(world, report)
    assert world.coordinator.last_refused_report == (
        "instance 0 reported 2 responses whose tokens it had reported before, or which it was not asked for"
    )
