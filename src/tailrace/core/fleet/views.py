"""Builds the views of fleet and queue that policies get. Nothing is decided here.

The load of an instance follows from what was submitted to it and what it reported: a response submitted a moment ago
counts, one that is known to have ended does not. Instances do not report which of their responses are queued inside
them. It is inferred: engines admit in order and preempt the youngest, so the queued ones were submitted last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.policy import Claims, FleetView, InstanceView, WaitingGroup
from tailrace.core.fleet.resizing import max_in_flight
from tailrace.core.ids import InstanceId, Version
from tailrace.core.responses.group import Group
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rooms import Rooms

_ANY = Version(0)
_PENDING = ResponsePhase.PENDING
_GONE = (InstancePhase.ABSENT, InstancePhase.STARTING, InstancePhase.STOPPING)


def fleet_view(rooms: Rooms, now: float) -> FleetView:
    share, published, instances = _share(rooms), rooms.training.published, rooms.fleet.instances.values()
    able = [instance for instance in instances if instance.accepts_work]
    return FleetView(
        costs=rooms.fleet.costs,
        instances=[_instance(rooms, instance, share, now) for instance in able],
        backlog=LiveBacklog(rooms),
        admission=rooms.collection.admission(),
        oldest_for_new=rooms.collection.oldest_for_new(rooms.schedule, published),
        published=published,
        newest=max((_coming(instance, published) for instance in instances), default=_ANY),
    )


def _coming(instance: Instance, published: Version) -> Version:
    """Return the version that an instance holds, or will hold after its pull."""
    is_pulling = instance.is_draining or instance.phase is InstancePhase.PULLING
    return published if is_pulling else instance.version


def _share(rooms: Rooms) -> int:
    """Return how many responses an instance of the published version may have at the same time.

    Instances become ready one after another, when they start and when many of them pull at once. The first must not get
    all the work: while others are not ready, each gets at most its share, and the rest stays queued. When a ready
    instance finishes responses, it gets new ones, so an instance that never becomes ready cannot stop the run.
    """
    most, published = max_in_flight(rooms), rooms.training.published
    there = (i for i in rooms.fleet.instances.values() if i.phase is not InstancePhase.ABSENT)
    present = [i for i in there if not i.is_retiring and not i.is_away]
    coming = [i for i in present if i.phase is not InstancePhase.READY or i.is_draining]
    if not coming:
        return most
    sharing = coming + [i for i in present if i.accepts_work and i.version == published]
    num_responses = rooms.responses.num_waiting + sum(len(instance.running) for instance in sharing)
    return min(most, -(-num_responses // len(sharing)))


def _instance(rooms: Rooms, instance: Instance, share: int, now: float) -> InstanceView:
    known, costs = rooms.schedule.coordination, rooms.fleet.costs
    num_responses = len(instance.running)
    num_running, num_tokens = num_responses, instance.num_tokens
    if rooms.policies.plans and not known.fits(costs, num_tokens, num_responses):
        num_running, num_tokens = _fitting(rooms, instance)
    is_newest = instance.version == rooms.training.published
    return InstanceView(
        instance=instance.id,
        version=instance.version,
        num_responses=num_responses,
        capacity=share if is_newest else max_in_flight(rooms),
        num_waiting=num_responses - num_running,
        kv_tokens=known.kv_of(costs, num_tokens, num_running),
        is_rested=instance.moved_at is None or now >= instance.moved_at + known.pause_s,
    )


def _fitting(rooms: Rooms, instance: Instance) -> tuple[int, int]:
    """Return how many of its responses, counted from the oldest, it can generate at the same time, and how many tokens
    they have."""
    known, costs = rooms.schedule.coordination, rooms.fleet.costs
    num_running = num_tokens = 0
    for response in instance.running:
        length = rooms.responses.response(response).length
        if num_running and not known.fits(costs, num_tokens + length, num_running + 1):
            break
        num_running, num_tokens = num_running + 1, num_tokens + length
    return num_running, num_tokens


class LiveBacklog:
    """Queued and running responses, read from the rooms on demand."""

    __slots__ = ("_rooms",)

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def queue(self) -> Iterator[WaitingGroup]:
        rooms = self._rooms
        groups = rooms.responses.waiting_groups()
        length, is_open = rooms.schedule.coordination.prompt_length, rooms.collection.is_open(rooms.schedule)
        return chain(_begun(rooms, groups, length, is_open), _new(groups, length) if is_open else ())

    def claims(self) -> Claims:
        """Return ``Claims.of`` the queue without building the queue. For schedules without rounds."""
        exact: set[Version] = set()
        needed: set[Version] = set()
        has_new = False
        for group in self._rooms.responses.waiting_groups():
            if group.version is None:
                has_new = True
            elif not group.is_training:
                exact.add(group.version)
            else:
                needed.update([r.segments[-1][0] if r.segments else group.version for r in _pending(group)])
        return Claims(
            exact=frozenset(exact),
            least_needed=min(needed, default=None),
            most_needed=max(needed | exact, default=None),
            has_new=has_new,
        )

    def running(self, instance: InstanceId) -> Sequence[WaitingGroup]:
        """Return each response of an instance as a group of its own. Their newest tokens may have the instance's
        version."""
        rooms, found = self._rooms, []
        length, own = rooms.schedule.coordination.prompt_length, rooms.fleet.instances[instance]
        for number in own.running:
            group = rooms.responses.group(number.group)
            found.append(
                _waiting(group, [group.members[number]], length, is_exact=not group.is_training, oldest=own.version)
            )
        return found


def _begun(rooms: Rooms, groups: list[Group], prompt_length: int, is_open: bool) -> Iterator[WaitingGroup]:
    """Return evaluations, then started groups from the oldest version."""
    begun = [group for group in groups if group.version is not None]
    for group in begun:
        if not group.is_training:
            yield _waiting(group, _pending(group), prompt_length, is_exact=True)
    if not is_open:
        return
    oldest = rooms.collection.oldest_in_round
    training = [group for group in begun if group.is_training]
    training.sort(key=lambda g: (g.version, g.num_unsettled, g.id))
    needs_homes = rooms.policies.routing.needs_homes
    for group in training:
        members = _pending(group)
        waiting = _waiting(group, members, prompt_length, oldest=oldest)
        yield waiting._replace(homes=_homes(rooms, members)) if needs_homes else waiting


def _homes(rooms: Rooms, members: list[Response]) -> tuple[InstanceId | None, ...]:
    """Return where each was last, unless that instance is gone or about to go."""
    instances = rooms.fleet.instances
    present = (i for i in instances.values() if i.phase not in _GONE)
    there = {i.id for i in present if not (i.is_retiring or i.is_away or i.is_being_killed)}
    return tuple([r.home if r.home in there else None for r in members])


def _new(groups: list[Group], prompt_length: int) -> Iterator[WaitingGroup]:
    for group in groups:
        if group.version is None:
            size = len(group.members)  # all members are queued, and none has a token
            yield WaitingGroup(group.id, None, tuple(group.members), (prompt_length,) * size, (_ANY,) * size)


def _pending(group: Group) -> list[Response]:
    return [r for r in group.members.values() if r.phase is _PENDING]


def _waiting(
    group: Group,
    members: list[Response],
    prompt_length: int,
    *,
    is_exact: bool = False,
    oldest: Version = _ANY,
) -> WaitingGroup:
    oldest = max(oldest, group.version or _ANY)
    ids = [r.id for r in members]
    lengths = [r.length + prompt_length for r in members]
    # Versions never decrease along a response.
    needs = [r.segments[-1][0] if r.segments and r.segments[-1][0] > oldest else oldest for r in members]
    return WaitingGroup(group.id, group.version, tuple(ids), tuple(lengths), tuple(needs), is_exact)
