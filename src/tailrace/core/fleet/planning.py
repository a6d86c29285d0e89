"""One plan over the fleet: synchronize, then pull, then migrate, then route.

This is one rule because the order matters: an instance that was chosen to pull gets no more work, and responses that
migration takes back are routed by the next plan.

With rounds, an idle instance pulls the published version. Without rounds an instance may never become idle. Then the
synchronization policy makes it *drain*: it interrupts its responses, reports their tokens, pulls, and gets work again.

Policies that are not planned are cheap and are asked after every event. The others are asked only if something happened
since the last plan, and not before an interval has passed. The interval is many times the duration of a plan of this
size, and longer while every instance has work, because then a delay costs little. A plan that is needed but not due yet
sets a timer.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.submitting import dispatch
from tailrace.core.fleet.views import LiveBacklog, fleet_view
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Placement

MAX_FAILED_PULLS = 50
"""Pulls that may fail in a row before the instance is killed. A worker pauses after each, so that the news of a lost
trainer comes first."""
_BOUNDS_PULLS = 2
"""Edition of the rules from which on there is such a number."""
_RESPONSE_S = 5e-6
"""Upper bound of the seconds that a plan takes per running or queued response (``benchmarks/planning.py``)."""
_MAX_SHARE = 0.1
"""Largest share of the time that planning may take."""
_CALM_S = 0.1
"""Least seconds between two plans while every instance has work."""


def plan(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    is_due = _is_due(rooms, now) if rooms.policies.plans else False
    has_changed = False
    for command in _plan(rooms, is_due, now):
        has_changed = True
        yield command
    if is_due:
        # Without an interval, a plan that changed something is followed by another one.
        rooms.fleet.needs_plan = has_changed and _wait_s(rooms) == 0
        rooms.fleet.planned_at = now
        if rooms.fleet.needs_plan:
            yield None
        rooms.fleet.num_planned = rooms.responses.num_waiting + sum(
            len(instance.running) for instance in rooms.fleet.instances.values()
        )


def _plan(rooms: Rooms, is_due: bool, now: float) -> Iterator[do.Command]:
    policies = rooms.policies
    if is_due or not policies.synchronization.is_planned:
        yield from synchronize(rooms, now)
    yield from pull(rooms, now)
    if is_due and policies.migration.is_planned:
        yield from migrate(rooms, now)
    if is_due or not policies.routing.is_planned:
        yield from dispatch(rooms, now)


def _is_due(rooms: Rooms, now: float) -> bool:
    """Whether the planned policies are asked now. If only the interval has not passed, set the time for them."""
    fleet, is_global = rooms.fleet, rooms.schedule.coordination.is_global
    fleet.plan_at = None
    if not fleet.needs_plan:
        return False
    if is_global and not all(instance.owes_nothing for instance in fleet.instances.values()):
        return False  # the outstanding answer will arrive as an event
    due_at = now if fleet.planned_at is None else fleet.planned_at + _wait_s(rooms)
    if now >= due_at:
        return True
    if rooms.responses.has_waiting or rooms.policies.migration.is_planned:
        fleet.plan_at = due_at
    return False


def _wait_s(rooms: Rooms) -> float:
    """Return the least seconds from the last plan to the next."""
    if (given_s := rooms.schedule.coordination.plan_interval_s) is not None:
        return given_s
    paid_s = rooms.fleet.num_planned * _RESPONSE_S / _MAX_SHARE
    # Checking for an idle instance searches the whole queue, so it is skipped where the result changes nothing.
    return paid_s if paid_s >= _CALM_S or _is_plan_awaited(rooms) else _CALM_S


def _is_plan_awaited(rooms: Rooms) -> bool:
    """Whether an instance is idle until the next plan."""
    idle = {instance.version for instance in rooms.fleet.instances.values() if instance.is_idle}
    if not idle or min(idle) < rooms.training.published:
        return bool(idle)
    if not rooms.responses.has_waiting:
        return False
    claims = LiveBacklog(rooms).claims()
    return any(claims.lets_in(version, may_begin=rooms.collection.can_begin(version)) for version in idle)


def synchronize(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Interrupt the instances that the policy chooses, so that they can pull."""
    instances, published = rooms.fleet.instances, rooms.training.published
    if rooms.schedule.has_rounds or not rooms.training.is_open_for_pulls:
        return
    if not any(instance.accepts_work and instance.version < published for instance in instances.values()):
        return
    for number in tuple(rooms.policies.synchronization.choose(fleet_view(rooms, now))):
        instances[number].is_draining = True
        yield from _interrupt(instances[number], len(instances[number].running))


def pull(rooms: Rooms, now: float) -> Iterator[do.Command]:
    published, released = rooms.training.published, InstancePhase.RELEASED
    if rooms.fleet.all_hold == published or not rooms.training.is_open_for_pulls:
        return
    present = (i for i in rooms.fleet.instances.values() if not i.is_parked)
    behind = [i for i in present if i.version < published or i.phase is released]
    if not behind:
        rooms.fleet.all_hold = published
    for instance in behind:
        if instance.is_retiring or instance.is_lent:
            continue
        may_pull = instance.is_draining or rooms.schedule.has_rounds
        is_free = may_pull and instance.owes_nothing and not instance.running
        if is_free or (instance.phase is released and _may_wake(rooms)):
            yield from _pull(rooms, instance, now)


def _may_wake(rooms: Rooms) -> bool:
    """Whether instances may take their memory again: colocated, when training does not use the devices."""
    training = rooms.training
    if rooms.schedule.placement is Placement.COLOCATED:
        return training.is_device_free(rooms.evaluation_is_over())
    return training.published == training.version


def _pull(rooms: Rooms, instance: Instance, now: float) -> Iterator[do.Command]:
    """Let an instance pull the published version, or kill it if it has failed too often."""
    published, count = rooms.training.published, instance.num_failed_pulls
    if rooms.schedule.edition >= _BOUNDS_PULLS and count >= MAX_FAILED_PULLS:
        yield from rooms.fleet.kill(instance.id, f"{count} pulls of version {published} failed in a row", now)
        return
    rooms.fleet.move(instance, InstancePhase.PULLING, now)
    instance.pulling = published
    yield do.PullWeights(instance=instance.id, version=published)


def migrate(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Interrupt the responses that the policy takes back. They are routed again when their tokens are reported."""
    view = fleet_view(rooms, now)
    num_waiting = {each.instance: each.num_waiting for each in view.instances}
    for number, count in tuple(rooms.policies.migration.choose(view)):
        instance = rooms.fleet.instances[number]
        if count > num_waiting[number]:  # responses queued inside it do not count as a migration
            instance.moved_at = now
        yield from _interrupt(instance, count)


def _interrupt(instance: Instance, count: int) -> Iterator[do.Command]:
    """Interrupt the youngest ``count`` responses of an instance."""
    stopping = list(instance.running)[len(instance.running) - count :]
    if stopping:
        instance.stopping = dict.fromkeys(stopping)
        yield do.Interrupt(instance=instance.id, responses=tuple(stopping))
