"""Which instances are called to pull, which of them pull, and what follows from the version they report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import I0
from core.test_fleet import I1, RESPONSE, SCHEDULE, CallsEverybody, two_versions
from core.test_fleet_room import PHASE, generating
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.fleet import facts
from tailrace.core.fleet.planning import plan, pull, synchronize
from tailrace.core.ids import Version
from tailrace.core.schedule import Coordination, Leftovers


def test_an_instance_that_pulled_an_older_version_takes_no_work_before_it_has_pulled_again() -> None:
    rooms = two_versions()
    instance = rooms.fleet.instances[I1]
    for version, is_draining, num_failed in ((0, True, 1), (1, False, 0)):
        rooms.fleet.move(instance, PHASE.PULLING, 0.0)
        instance.pulling = Version(1)
        facts.weights_pulled(rooms, ev.WeightsPulled(instance=I1, version=Version(version), seconds=0.1), 1.0)
        assert (instance.phase, instance.version, instance.is_draining) == (PHASE.READY, version, is_draining)
        assert instance.num_failed_pulls == num_failed
    facts.weights_pulled(rooms, ev.WeightsPulled(instance=I1, version=Version(1), seconds=0.1), 1.0)
    assert rooms.run.last_refusal == "instance 1 pulled version 1, which was not asked of it"


@pytest.mark.parametrize("fate", ["nothing", "is_draining", "is_retiring", "is_being_killed"])
def test_nobody_is_called_for_the_sake_of_an_instance_that_takes_no_work_anyway(fate: str) -> None:
    """The other instance has nothing to pull: if it were called, it would take no work again."""
    rooms = two_versions()
    rooms.policies = replace(rooms.policies, synchronization=CallsEverybody())
    if fate != "nothing":
        setattr(rooms.fleet.instances[I1], fate, True)
    list(synchronize(rooms, 0.0))
    assert rooms.fleet.instances[I0].is_draining == (fate == "nothing")


class AskedWhenPlanned(CallsEverybody):
    is_planned = True


def test_a_planned_synchronization_is_asked_only_when_a_plan_is_due() -> None:
    coordination = Coordination(plan_interval_s=10.0)
    rooms = two_versions(replace(SCHEDULE, coordination=coordination))
    rooms.policies = replace(rooms.policies, synchronization=AskedWhenPlanned())
    rooms.fleet.planned_at = 0.0
    list(plan(rooms, 9.0))
    assert not rooms.fleet.instances[I1].is_draining
    list(plan(rooms, 10.0))
    assert rooms.fleet.instances[I1].phase is PHASE.PULLING, "it was called and had nothing else to do"
    assert rooms.fleet.planned_at == 10.0


def test_no_instance_is_called_while_nothing_can_be_pulled() -> None:
    rooms = generating()
    rooms.policies = replace(rooms.policies, synchronization=CallsEverybody())
    rooms.training.can_pull = False
    assert list(synchronize(rooms, 0.0)) == []
    rooms.training.can_pull = True
    assert list(synchronize(rooms, 0.0)) == [do.Interrupt(instance=I0, responses=(RESPONSE,))]
    assert list(rooms.fleet.instances[I0].stopping) == [RESPONSE]


@pytest.mark.parametrize("has_rounds", [True, False], ids=["rounds", "keep"])
def test_an_instance_pulls_when_it_is_idle_and_without_rounds_only_when_it_was_called(has_rounds: bool) -> None:
    rooms = two_versions(replace(SCHEDULE, leftovers=Leftovers.WAIT if has_rounds else Leftovers.KEEP))
    assert len(list(pull(rooms, 0.0))) == (1 if has_rounds else 0)
    rooms.fleet.instances[I1].is_draining = not has_rounds
    assert len(list(pull(rooms, 0.0))) == (0 if has_rounds else 1)
    behind = rooms.fleet.instances[I1]
    assert (behind.phase, behind.pulling) == (PHASE.PULLING, 1)
    assert rooms.fleet.instances[I0].phase is PHASE.READY, "it holds the published version"


@pytest.mark.parametrize(
    "obstacle", [{"running": {RESPONSE: None}}, {"aborting": {RESPONSE: None}}, {"is_retiring": True}], ids=str
)
def test_an_instance_does_not_pull_while_it_has_something_else_to_do(obstacle: dict[str, object]) -> None:
    rooms = two_versions(replace(SCHEDULE, leftovers=Leftovers.WAIT))
    for name, value in obstacle.items():
        setattr(rooms.fleet.instances[I1], name, value)
    assert list(pull(rooms, 0.0)) == []


def test_with_rounds_no_instance_is_called_because_each_becomes_idle() -> None:
    rooms = two_versions(replace(SCHEDULE, leftovers=Leftovers.WAIT))
    rooms.policies = replace(rooms.policies, synchronization=CallsEverybody())
    assert list(synchronize(rooms, 0.0)) == []
    assert not rooms.fleet.instances[I0].is_draining


@pytest.mark.parametrize("can_pull", [True, False])
def test_an_instance_whose_pull_failed_may_hold_nothing_and_takes_no_work_before_the_next(can_pull: bool) -> None:
    """Only while weights can be pulled is it the instance that failed."""
    rooms = two_versions()
    instance = rooms.fleet.instances[I0]
    rooms.fleet.move(instance, PHASE.PULLING, 0.0)
    instance.pulling, rooms.training.can_pull = Version(1), can_pull
    facts.pull_failed(rooms, ev.PullFailed(instance=I0, reason="the file is gone"), 1.0)
    assert (instance.phase, instance.version, instance.is_draining) == (PHASE.READY, 0, True)
    assert instance.num_failed_pulls == (1 if can_pull else 0)
    assert not rooms.run.is_refused
