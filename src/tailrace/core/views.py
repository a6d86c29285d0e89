"""The state as policies see it. Nothing is decided here.

An instance is known by what it was given and by what it reported. Its load follows from both: a response it was sent a
moment ago counts, one that is known to have ended does not. Which of its responses wait inside it is not reported but
worked out: engines admit in order and preempt the youngest, so those that wait are the last it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from tailrace.core.coordination import Coordination
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.groups import Group
from tailrace.core.ids import InstanceId, Version
from tailrace.core.policy import Claims, FleetView, InstanceView, WaitingGroup
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.trajectory import Trajectory, TrajectoryPhase

_ANY, _NEVER = Version(0), Version(2**62)
_PENDING = TrajectoryPhase.PENDING


def fleet_view(state: State, schedule: Schedule, now: float) -> FleetView:
    share = _share(state, schedule)
    able = [instance for instance in state.instances.values() if instance.accepts_work]
    return FleetView(
        costs=state.costs,
        instances=[_instance(state, schedule, instance, share, now) for instance in able],
        queue=chain(_begun(state, schedule), _new(state, schedule)),
        claims=lambda: claims(state, schedule),
        admission=state.ledger.overlay(),
        oldest_for_new=_oldest_for_new(state, schedule),
        published=state.published,
        newest=max((_coming(state, instance) for instance in state.instances.values()), default=_ANY),
        running=lambda number: _running(state, schedule, number),
    )


def _coming(state: State, instance: Instance) -> Version:
    """The version it holds, or will."""
    is_pulling = instance.is_called or instance.phase is InstancePhase.PULLING
    return state.published if is_pulling else instance.version


def _share(state: State, schedule: Schedule) -> int:
    """Responses an instance of the published version may have at the same time.

    Instances become ready one after the other, when they start and where many pull at once. The first must not take
    everything: while others are on their way each is given no more than its share, and the rest waits for them. What a
    ready instance finishes makes room again, so one that never comes slows the others down and does not stop them.
    """
    present = [instance for instance in state.instances.values() if instance.phase is not InstancePhase.ABSENT]
    coming = [i for i in present if i.phase is not InstancePhase.READY or i.is_called]
    if not coming:
        return schedule.max_in_flight
    sharing = coming + [i for i in present if i.accepts_work and i.version == state.published]
    num_responses = sum(state.pending.values()) + sum(len(instance.running) for instance in sharing)
    return min(schedule.max_in_flight, -(-num_responses // len(sharing)))


def _instance(state: State, schedule: Schedule, instance: Instance, share: int, now: float) -> InstanceView:
    known, costs = schedule.coordination, state.costs
    num_responses = len(instance.running)
    num_running, num_tokens = num_responses, instance.num_tokens
    if known.plans and not known.fits(costs, num_tokens, num_responses):
        num_running, num_tokens = _fitting(state, known, instance)
    return InstanceView(
        instance=instance.id,
        version=instance.version,
        num_responses=num_responses,
        capacity=share if instance.version == state.published else schedule.max_in_flight,
        num_waiting=num_responses - num_running,
        kv_tokens=known.kv_of(costs, num_tokens, num_running),
        is_rested=instance.moved_at is None or now >= instance.moved_at + known.pause_s,
    )


def _fitting(state: State, known: Coordination, instance: Instance) -> tuple[int, int]:
    """How many of its responses it can generate at the same time, the first ones first, and their tokens."""
    num_running = num_tokens = 0
    for trajectory in instance.running:
        length = state.trajectory(trajectory).length
        if num_running and not known.fits(state.costs, num_tokens + length, num_running + 1):
            break
        num_running, num_tokens = num_running + 1, num_tokens + length
    return num_running, num_tokens


def _oldest_for_new(state: State, schedule: Schedule) -> Version:
    if state.round is not None:
        return state.round.version
    if schedule.has_rounds:
        return _NEVER
    if schedule.is_strict:
        return _ANY
    # With neither rounds nor deadlines only the newest version may begin something new.
    return state.published if state.published >= 0 else _NEVER


def _begun(state: State, schedule: Schedule) -> Iterator[WaitingGroup]:
    """Evaluations first, then what was begun before, oldest version first."""
    length = schedule.coordination.prompt_length
    groups = [group for number in state.pending if (group := state.groups[number]).version is not None]
    for group in groups:
        if group.id.source != schedule.train_source:
            yield _waiting(group, _pending(group), length, is_exact=True)
    if schedule.has_rounds and state.round is None:
        return
    oldest = _ANY if state.round is None else state.round.version
    begun = [group for group in groups if group.id.source == schedule.train_source]
    begun.sort(key=lambda g: (g.version, g.num_unsettled, g.id))
    for group in begun:
        yield _waiting(group, _pending(group), length, oldest=oldest)


def _new(state: State, schedule: Schedule) -> Iterator[WaitingGroup]:
    if schedule.has_rounds and state.round is None:
        return
    length = schedule.coordination.prompt_length
    for number in state.pending:
        if (group := state.groups[number]).version is None:
            size = len(group.members)  # all of them wait, and none has a token
            yield WaitingGroup(number, None, tuple(group.members), (length,) * size, (_ANY,) * size)


def claims(state: State, schedule: Schedule) -> Claims:
    """``Claims.of`` the queue without making it; for schedules without rounds."""
    exact: set[Version] = set()
    needed: set[Version] = set()
    has_new = False
    for number in state.pending:
        group = state.groups[number]
        if group.version is None:
            has_new = True
        elif number.source != schedule.train_source:
            exact.add(group.version)
        else:
            needed.update([t.segments[-1][0] if t.segments else group.version for t in _pending(group)])
    return Claims(
        exact=frozenset(exact),
        least_needed=min(needed, default=None),
        most_needed=max(needed | exact, default=None),
        has_new=has_new,
    )


def _pending(group: Group) -> list[Trajectory]:
    return [t for t in group.members.values() if t.phase is _PENDING]


def _waiting(
    group: Group,
    members: list[Trajectory],
    prompt_length: int,
    *,
    is_exact: bool = False,
    oldest: Version = _ANY,
) -> WaitingGroup:
    oldest = max(oldest, group.version or _ANY)
    ids = [t.id for t in members]
    lengths = [t.length + prompt_length for t in members]
    # Versions never decrease along a response.
    needs = [t.segments[-1][0] if t.segments and t.segments[-1][0] > oldest else oldest for t in members]
    return WaitingGroup(group.id, group.version, tuple(ids), tuple(lengths), tuple(needs), is_exact)


def _running(state: State, schedule: Schedule, number: InstanceId) -> Sequence[WaitingGroup]:
    """One by one; its tokens may be of the instance's version by now."""
    instance, found = state.instances[number], []
    for trajectory_id in instance.running:
        group = state.groups[trajectory_id.group]
        is_exact = group.id.source != schedule.train_source
        length = schedule.coordination.prompt_length
        member = [group.members[trajectory_id]]
        found.append(_waiting(group, member, length, is_exact=is_exact, oldest=instance.version))
    return found
