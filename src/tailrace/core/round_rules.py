"""Where batches come from: groups are accepted, a full batch is collected, and what is left over goes its way."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.absorb import close
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId
from tailrace.core.moves import admit, begin, drop, let_go, set_aside
from tailrace.core.policy import Policies
from tailrace.core.relief import give_up
from tailrace.core.rounds import Round, is_wanted, next_round, num_missing, unfinished_visits
from tailrace.core.schedule import Leftovers, Schedule, VersionCap
from tailrace.core.state import Pending, State
from tailrace.core.trajectory import Trajectory


def accept(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """Groups that became complete join the batch that is collected, or are left over at once."""
    finished, state.finished = state.finished, {}
    for group_id in finished:
        group = state.groups[group_id]
        if is_wanted(state, schedule, group):
            # Over the members that are kept it may be younger than the first one that was given out.
            state.ledger.occupy(group_id, group.oldest_version())
            state.complete[group_id] = None
        else:
            assert state.round is not None
            state.round.given_up[group_id] = group.domain
            yield from _discard(state, schedule, group, now)


def collect(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """A full batch leaves for training; its round, if there are rounds, is over."""
    if not _may_collect(state, schedule):
        return
    num_groups = state.round.batch_size if state.round is not None else schedule.batch_size
    consumption = state.ledger.consume(num_groups)
    for group_id in consumption.batch:
        state.groups[group_id].move(GroupPhase.TAKEN, now=now)
        del state.complete[group_id]
    state.num_train_groups -= len(consumption.batch)
    state.batches.append(consumption.batch)
    state.num_reliefs_in_a_row = 0
    if state.round is None:
        for group_id in consumption.expired:
            yield from give_up(state, state.groups[group_id], now)
        return
    round, state.round = state.round, None
    state.search.note(round, now - (now if round.began_at is None else round.began_at))
    yield from _close_round(state, schedule, round, consumption.batch, now)


def _may_collect(state: State, schedule: Schedule) -> bool:
    if state.round is None:
        # A batch that would only wait for the trainer may still get fresher groups.
        if schedule.has_rounds or state.batches:
            return False
        return state.ledger.is_ready
    if not state.ledger.has(state.round.batch_size):
        return False
    return schedule.version_cap is VersionCap.RESTART or not _capped(state, schedule)


def _capped(state: State, schedule: Schedule) -> list[Trajectory]:
    """Unfinished responses that have, or may have by now, tokens of as many versions as a response may have."""
    if (cap := schedule.max_versions_per_sample) is None:
        return []
    groups = [g for g in state.groups.values() if g.id.source == schedule.train_source and g.phase is GroupPhase.OPEN]
    unfinished = [t for group in groups for t in group.members.values() if not t.has_ended]
    return [t for t in unfinished if _num_versions(state, t) >= cap]


def _num_versions(state: State, trajectory: Trajectory) -> int:
    versions = {version for version, _ in trajectory.segments}
    if trajectory.instance is not None:
        versions.add(state.instances[trajectory.instance].version)
    return len(versions)


def _close_round(
    state: State, schedule: Schedule, round: Round, accepted: tuple[GroupId, ...], now: float
) -> Iterator[do.Command]:
    # In the order of their ids: what is deferred in the same round has no other order.
    rest = sorted((g for g in state.groups.values() if _is_left_over(g, schedule)), key=lambda g: g.id)
    fate = {Leftovers.DEFER: "deferred", Leftovers.DROP: "dropped"}.get(schedule.leftovers, "interrupted")
    if schedule.leftovers is Leftovers.RESUME:
        yield from _interrupt(state, schedule, now)
    for group in rest if schedule.discards_leftovers else ():
        yield from _discard(state, schedule, group, now)
    complete = tuple(sorted(state.complete))
    others = {fate: tuple(sorted({*(g.id for g in rest if g.id not in state.complete), *round.given_up}))}
    yield do.CloseRound(round=round.number, is_long=round.is_long, accepted=accepted, kept=complete, **others)


def _is_left_over(group: Group, schedule: Schedule) -> bool:
    return group.id.source == schedule.train_source and group.phase in (GroupPhase.OPEN, GroupPhase.COMPLETE)


def _interrupt(state: State, schedule: Schedule, now: float) -> Iterator[do.Command]:
    """Everything that runs for training stops where it is, or starts again if it has stopped too often."""
    for trajectory in _capped(state, schedule):
        yield from _begin_again(state, trajectory)
    for instance in state.instances.values():
        running = [t for t in instance.running if t.group.source == schedule.train_source]
        if running:
            instance.stopping.update(dict.fromkeys(running))
            yield do.Interrupt(instance=instance.id, trajectories=tuple(running))


def _begin_again(state: State, trajectory: Trajectory) -> Iterator[do.Command]:
    group = state.groups[trajectory.id.group]
    del group.members[trajectory.id]
    yield from let_go(state, [trajectory])
    fresh = Trajectory(id=trajectory.id._replace(attempt=trajectory.id.attempt + 1))
    group.members[fresh.id] = fresh
    state.pending[group.id] = state.pending.get(group.id, 0) + 1


def _discard(state: State, schedule: Schedule, group: Group, now: float) -> Iterator[do.Command]:
    """A group that is not trained in its round: its prompt is given up, or waits in the long queue."""
    if schedule.leftovers is Leftovers.DROP:
        drop(state, group, GroupPhase.DROPPED, now)
        yield from let_go(state, group.members.values())
    elif schedule.keeps_deferred_tokens:
        set_aside(state, group, now)
        yield from let_go(state, group.forgo_surplus())
        yield from _interrupt_members(state, group)
    else:
        set_aside(state, group, now)
        yield from let_go(state, group.clear())


def _interrupt_members(state: State, group: Group) -> Iterator[do.Command]:
    for instance in state.instances.values():
        running = [t for t in group.members if t in instance.running]
        if running:
            instance.stopping.update(dict.fromkeys(running))
            yield do.Interrupt(instance=instance.id, trajectories=tuple(running))


def open_round(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if not schedule.has_rounds or state.round is not None:
        return
    state.round = next_round(state, schedule)
    if (round := state.round) is None:
        return
    resumed = [g.id for g in state.groups.values() if _is_left_over(g, schedule)]
    restarted: list[GroupId] = []
    while round.is_long and state.queue and num_missing(state, schedule) > 0:
        group = state.groups[next(iter(state.queue))]
        yield from _take_from_queue(state, schedule, group, now)
        (restarted if group.version is None else resumed).append(group.id)
    yield do.OpenRound(
        round=round.number,
        is_long=round.is_long,
        version=round.version,
        num_prompts=round.size,
        num_responses=round.num_members,
        resumed=tuple(resumed),
        restarted=tuple(restarted),
    )


def _take_from_queue(state: State, schedule: Schedule, group: Group, now: float) -> Iterator[do.Command]:
    """A deferred group comes back: with its tokens if they are fresh enough for this batch, else from its prompt."""
    del state.queue[group.id]
    if group.version is not None and state.ledger.can_reserve(group.version):
        state.ledger.reserve(group.id, group.version)
    elif group.version is not None or not group.members:
        yield from let_go(state, group.clear() if group.members else [])
        group.begin(schedule.group_size)
    group.move(GroupPhase.OPEN, now=now)
    admit(state, group)
    group.conclude(now=now, filters_equal=schedule.filters_equal_scores)
    if group.phase is not GroupPhase.OPEN:
        close(state, group, is_training=True)


def request_prompts(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    source = schedule.train_source
    if source in state.prompts:
        return
    is_long = state.round is not None and state.round.is_long
    while is_long and state.queue and num_missing(state, schedule) > 0:  # a group of a long round was filtered
        yield from _take_from_queue(state, schedule, state.groups[next(iter(state.queue))], now)
    _begin_held(state, schedule)
    if (count := num_missing(state, schedule)) > 0:
        state.prompts[source] = Pending(since=now, version=state.version)
        epoch, offset = state.cursor
        yield do.RequestPrompts(source=source, epoch=epoch, offset=offset, count=count)


def _begin_held(state: State, schedule: Schedule) -> None:
    """Prompts that were held back come before others, each when its earlier visit is over."""
    visited = unfinished_visits(state, schedule) if state.held else set[int]()
    for group_id in list(state.held):
        if num_missing(state, schedule) > 0 and group_id.prompt not in visited:
            begin(state, schedule, group_id, state.held.pop(group_id))
            visited.add(group_id.prompt)
