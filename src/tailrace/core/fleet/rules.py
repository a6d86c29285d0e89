"""When instances start, release their memory and leave. ``planning`` decides when they pull and what they generate."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.lending import stands_on_loan
from tailrace.core.fleet.resizing import is_off_duty
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Placement

_STARTS_IN_TURN = 2
"""Edition from which on instances do not start beside a colocated step."""


def start_instances(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Start absent instances. One that was lost too often is not started again before the next optimizer step.

    A run that is stopping starts none: the step in progress already has its responses. If rollout and training take
    turns, none starts while a step has the devices.
    """
    if rooms.run.is_stopping or not rooms.fleet.num_absent or _is_turn_of_training(rooms):
        return
    for instance in rooms.fleet.instances.values():
        if instance.phase is not InstancePhase.ABSENT:
            continue
        instance.is_lent |= stands_on_loan(rooms, instance)
        is_away = instance.is_away or is_off_duty(rooms, instance)
        if not is_away and instance.losses.count <= rooms.run.limits.max_restarts:
            rooms.fleet.move(instance, InstancePhase.STARTING, now)
            rooms.fleet.num_starts += 1
            instance.incarnation = rooms.fleet.num_starts
            yield _start(rooms, instance)


def _is_turn_of_training(rooms: Rooms) -> bool:
    is_colocated = rooms.schedule.placement is Placement.COLOCATED and rooms.schedule.edition >= _STARTS_IN_TURN
    return is_colocated and rooms.training.num_batches > 0 and rooms.evaluation_is_over()


def _start(rooms: Rooms, instance: Instance) -> do.StartInstance:
    layout = rooms.schedule.parallelism.layout_of(instance.id)
    if layout is None:
        return do.StartInstance(instance=instance.id, incarnation=instance.incarnation)
    devices = layout.devices_of(instance.id)
    return do.StartInstance(instance=instance.id, incarnation=instance.incarnation, size=layout.size, devices=devices)


def retire_instances(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Interrupt the responses of retired instances, then stop the instances."""
    if not rooms.fleet.num_retiring:
        return
    for instance in list(rooms.fleet.instances.values()):
        if not instance.is_retiring or instance.is_being_killed:
            continue
        going = [r for r in instance.running if r not in instance.stopping]
        if going:
            instance.stopping.update(dict.fromkeys(going))
            yield do.Interrupt(instance=instance.id, responses=tuple(going))
        elif instance.phase is InstancePhase.RELEASED or (instance.owes_nothing and not instance.running):
            rooms.fleet.move(instance, InstancePhase.STOPPING, now)
            yield do.StopInstance(instance=instance.id)


def release_memory(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Release the memory of colocated instances before an optimizer step, and that of lent ones."""
    is_colocated = rooms.schedule.placement is Placement.COLOCATED
    is_step_due = is_colocated and rooms.training.is_due(rooms.evaluation_is_over())
    if not is_step_due and not rooms.fleet.has_lent:
        return
    for instance in rooms.fleet.instances.values():
        if (is_step_due and instance.is_idle) or (instance.is_lent and instance.has_nothing):
            rooms.fleet.move(instance, InstancePhase.RELEASING, now)
            yield do.ReleaseMemory(instance=instance.id)
