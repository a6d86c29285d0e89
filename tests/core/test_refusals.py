"""Reports that cannot be true are refused and counted, and change nothing else; what only a bug can say is an error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from core.histories import I0, running, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.errors import CoreError, InvalidTransition
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import Finish, Response
from tailrace.core.schedule import EvalSet, Leftovers, Limits

NOBODY = ResponseId(GroupId("train", 0, 99), 0)


def is_refused(world: World, event: ev.Event, *, because: str) -> bool:
    """Whether the core counts the report as refused, gives no command and changes nothing else."""
    before, count = world.coordinator.snapshot(), world.coordinator.num_refused_reports
    world.tell(event)
    after, run = world.coordinator.snapshot(), world.coordinator.rooms.run
    assert because in run.last_refusal, run.last_refusal
    is_same = after | {"run": before["run"], "fleet": None} == before | {"fleet": None}
    return is_same and run.num_refused > count and not world.entries[-1].commands


def test_a_run_starts_once() -> None:
    world = started()
    with pytest.raises(CoreError, match="a run starts only once"):
        world.tell(ev.RunStarted(schedule=world.schedule))


def test_an_event_nobody_knows_is_an_error() -> None:
    @dataclass(frozen=True)
    class Surprise(ev.Event):
        pass

    with pytest.raises(TypeError, match="unknown event"):
        started().tell(Surprise())


def test_a_prompt_is_offered_once() -> None:
    world = started()
    first = next(c for c in world.open if isinstance(c, do.RequestPrompts))
    offer = ev.PromptsOffered(source="train", prompts=((0, 0), (0, 0)), next_epoch=0, next_offset=first.count)
    with pytest.raises(CoreError, match="group train:0:0 was offered twice"):
        world.tell(offer)


def test_as_many_domains_are_offered_as_prompts() -> None:
    offer = ev.PromptsOffered(source="train", prompts=((0, 0), (0, 1)), next_epoch=0, next_offset=2, domains=("a",))
    with pytest.raises(ValueError, match="shorter"):
        started().tell(offer)


def test_a_trainer_is_never_ahead_of_the_run() -> None:
    event = ev.TrainerReached(version=Version(1))
    assert is_refused(started(), event, because="the trainer reached version 1, which was not asked of it")


def test_a_trainer_that_was_not_asked_for_reaches_nothing() -> None:
    """A schedule of no steps starts no trainer."""
    heldout = (EvalSet(name="heldout", num_prompts=2, group_size=1),)
    world = started(train_source="", max_steps=0, eval_sets=heldout, eval_interval=1)
    event = ev.TrainerReached(version=Version(0))
    assert is_refused(world, event, because="the trainer reached version 0, which was not asked of it")


@pytest.mark.parametrize("version", [0, 2])
def test_only_the_next_step_is_trained(version: int) -> None:
    world = started()
    until(world, lambda: any(isinstance(c, do.FinishStep) for c in world.open))
    event = ev.StepTrained(version=Version(version), seconds=1.0, metrics=())
    assert is_refused(world, event, because=f"a step to version {version}, which was not asked for at version 0")


def test_a_step_is_trained_only_when_it_was_asked_for() -> None:
    event = ev.StepTrained(version=Version(1), seconds=1.0, metrics=())
    assert is_refused(started(), event, because="a step to version 1, which was not asked for at version 0")


def test_weights_do_not_change_while_they_are_published() -> None:
    world = started(batch_size=1, group_size=1, max_steps=6, leftovers=Leftovers.KEEP, max_staleness=2)
    both = {do.PublishWeights, do.FinishStep}
    until(world, lambda: both <= {type(command) for command in world.open})
    version = world.coordinator.version
    event = ev.StepTrained(version=Version(version + 1), seconds=1.0, metrics=())
    assert is_refused(world, event, because=f"a step to version {version + 1}, which was not asked for")


def test_a_group_is_not_trained_before_it_is_taken() -> None:
    group = Group(id=NOBODY.group, num_needed=1)
    with pytest.raises(InvalidTransition, match="group train:0:99: open -> trained is not legal"):
        group.move(GroupPhase.TRAINED, now=0.0)
    assert group.phase is GroupPhase.OPEN


def test_a_group_that_is_refused_a_move_tells_where_it_was() -> None:
    group = Group(id=NOBODY.group, num_needed=1)
    group.move(GroupPhase.DEFERRED, now=1.5)
    group.move(GroupPhase.OPEN, now=2.0)
    with pytest.raises(InvalidTransition) as error:
        group.move(GroupPhase.TRAINED, now=3.0)
    assert error.value.story == ("1.500  open -> deferred", "2.000  deferred -> open")


def test_an_error_keeps_the_story_as_it_was() -> None:
    story = ["0.000  open -> complete"]
    error = InvalidTransition("group train:0:99", "complete", "trained", story)
    before = str(error), repr(error)
    story.append("1.000  complete -> taken")
    assert (str(error), repr(error)) == before


def test_a_stranger_is_named() -> None:
    world = started()
    running(world)
    part = ev.Progressed(response=NOBODY, length=1)
    report = ev.RolloutReported(instance=I0, version=Version(0), progressed=(part,))
    assert is_refused(world, report, because="instance 0 does not run train:0:99:0:0")
    assert is_refused(world, ev.InstanceLost(instance=InstanceId(7), reason="?"), because="instance 7")


def test_a_response_never_shrinks() -> None:
    world = started()
    response = running(world)
    long, short = (ev.Progressed(response=response, length=length) for length in (9, 8))
    world.tell(ev.RolloutReported(instance=I0, version=Version(0), progressed=(long,)))
    late = ev.RolloutReported(instance=I0, version=Version(0), progressed=(short,))
    assert is_refused(world, late, because=f"{response} has 9 tokens, version 0 reports 8")


def test_versions_of_a_response_never_fall_and_equal_ones_are_one_segment() -> None:
    response = Response(id=NOBODY)
    response.grow(0, Version(2))
    assert response.segments == []
    for length, version in ((3, 2), (5, 2), (5, 3), (6, 3)):
        response.grow(length, Version(version))
    assert response.segments == [(2, 5), (3, 1)]
    assert response.length == 6
    with pytest.raises(InvalidTransition):
        response.grow(7, Version(2))
    assert response.segments == [(2, 5), (3, 1)]


def test_an_instance_that_is_ready_cannot_start_again() -> None:
    world = started()
    running(world)
    event = ev.InstanceStarted(instance=I0, version=Version(0))
    assert is_refused(world, event, because="instance 0 was not being started")


def test_losses_of_an_instance_are_counted_since_the_last_step() -> None:
    world = started(limits=Limits(max_restarts=1))
    for version in range(3):
        until(world, lambda version=version: world.coordinator.version == version and bool(world.running.get(I0)))
        world.lose(I0, "it was killed")
        assert world.verdict is None, world.verdict
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_response_that_was_given_up_is_not_heard_of_again() -> None:
    """Its instance may still report on it, and even finish it, before it confirms the abort."""
    world = started(batch_size=1, launch_responses=3, max_in_flight=3, limits=Limits())
    until(world, lambda: any(isinstance(c, do.Abort) for c in world.open))
    abort = next(c for c in world.open if isinstance(c, do.Abort))
    instance = world.coordinator.rooms.fleet.instances[abort.instance]
    response = abort.responses[0]
    part = ev.Progressed(response=response, length=50)
    end = ev.Finished(response=response, length=51, finish=Finish.STOP)
    world.tell(ev.RolloutReported(instance=abort.instance, version=instance.version, progressed=(part,)))
    world.tell(ev.RolloutReported(instance=abort.instance, version=instance.version, finished=(end,)))
    assert response in instance.aborting
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete
