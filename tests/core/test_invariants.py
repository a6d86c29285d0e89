"""``check`` finds every disagreement: a state of a real history is changed in one place and must be refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from core.histories import active_partial, tail_batching
from core.world import World
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import CoreError
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.core.invariants import check
from tailrace.core.pool import Pool
from tailrace.core.schedule import EvalSet, Leftovers, Schedule
from tailrace.core.state import Pending, State
from tailrace.core.trajectory import Finish, Trajectory, TrajectoryPhase
from tailrace.policies.strategies import policies_of

HELDOUT = (EvalSet(name="heldout", num_prompts=2, group_size=2),)
STRANGER = GroupId("train", 99, 99)


def schedules() -> list[Schedule]:
    common = {"num_instances": 2, "eval_sets": HELDOUT, "eval_interval": 1, "max_in_flight": 3}
    tail = tail_batching(random.Random(0), batch_size=2, group_size=2, launch_prompts=3, max_steps=6, **common)
    partial = active_partial(random.Random(0), batch_size=2, group_size=2, max_steps=6, **common)
    keep = Schedule(
        train_source="train",
        batch_size=2,
        group_size=2,
        max_steps=6,
        leftovers=Leftovers.KEEP,
        max_staleness=2,
        **common,
    )
    return [tail, partial, keep]


@pytest.fixture(scope="module")
def states() -> list[tuple[Schedule, object]]:
    """Snapshots of histories, some after every kind of event."""
    found = []
    for seed, schedule in enumerate(schedules()):
        world = World(schedule, random.Random(seed), num_prompts=29)
        world.tell(ev.RunStarted(schedule=schedule))
        while world.verdict is None and len(world.entries) < 400:
            found.append((schedule, world.coordinator.snapshot()))
            world.advance()
    return found


Change = Callable[[State], object]


def put(owner: object, **values: object) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def members(state: State, *phases: TrajectoryPhase) -> list[Trajectory]:
    return [t for t in state.trajectories() if t.phase in phases and t.id.group.source == "train"]


def groups(state: State, *phases: GroupPhase) -> list[Group]:
    return [g for g in state.groups.values() if g.phase in phases and g.id.source == "train"]


def busy(state: State) -> list[Instance]:
    return [i for i in state.instances.values() if i.running]


def first_running(state: State) -> Trajectory:
    return members(state, TrajectoryPhase.RUNNING)[0]


def other_instance(state: State) -> None:
    trajectory = first_running(state)
    trajectory.instance = InstanceId(1 - (trajectory.instance or 0))


def misname(state: State) -> None:
    group = groups(state, GroupPhase.COMPLETE)[0]
    key = next(iter(group.members))
    group.members[key._replace(attempt=9)] = group.members.pop(key)


def adopt(state: State) -> None:
    """A group has the member of another one."""
    one, two = groups(state, GroupPhase.COMPLETE, GroupPhase.TAKEN)[:2]
    key, trajectory = one.members.popitem()
    two.members[key] = trajectory


def leave_waiting(state: State) -> None:
    """A complete group has a member that is not settled."""
    group = groups(state, GroupPhase.COMPLETE)[0]
    fresh = Trajectory(id=TrajectoryId(group.id, 7))
    group.members[fresh.id], group.num_unsettled = fresh, 1


def begin_unseen(state: State) -> None:
    group = next(g for g in groups(state, GroupPhase.OPEN) if g.version is None)
    next(iter(group.members.values())).grow(1, Version(0))


def age_reservation(state: State) -> None:
    """Of an unbounded ledger, whose order does not depend on versions."""
    group = next(g for g in state.ledger if state.groups[g].version and isinstance(state.ledger._store, Pool))
    state.ledger.entries[group].version -= 1


def outdate(state: State) -> None:
    """An instance generates for a group with weights older than the group's."""
    trajectory = next(t for t in members(state, TrajectoryPhase.RUNNING) if state.groups[t.id.group].version)
    state.instances[trajectory.instance or InstanceId(0)].version = Version(0)


def fill_queue(state: State) -> None:
    assert state.round is not None
    assert not state.queue
    assert not state.round.is_long
    state.round.is_long = True
    for prompt in range(state.round.size):
        group = Group(id=STRANGER._replace(prompt=prompt), num_needed=2, phase=GroupPhase.DEFERRED)
        state.groups[group.id], state.queue[group.id] = group, None


def reserve_for_stranger(state: State) -> None:
    assert state.ledger.can_reserve(state.version)
    state.ledger.reserve(STRANGER, state.version)


def swap_finished(state: State) -> None:
    """The ledger takes another group than the core for finished."""
    open_, complete = groups(state, GroupPhase.OPEN), list(state.complete)
    mine = next(g.id for g in open_ if g.id in state.ledger)
    state.ledger.entries[mine].is_occupied, state.ledger.entries[complete[0]].is_occupied = True, False
    state.ledger.__post_init__()


def lengthen(trajectory: Trajectory, *versions: int) -> None:
    """A response gets one token of each version."""
    trajectory.segments.extend((Version(version), 1) for version in versions)
    trajectory.length += len(versions)


def stale_tokens(state: State) -> None:
    """A response has tokens of a version before its group's."""
    taken = [g for g in groups(state, GroupPhase.TAKEN) if g.version]
    segments = next(t.segments for g in taken for t in g.members.values() if t.segments)
    segments[0] = (Version(0), segments[0][1])


def skip_batch(state: State) -> None:
    """A batch and its groups are gone, but the ledger has not trained it."""
    for group in state.batches.pop():
        del state.groups[group]


def evaluate_ahead(state: State) -> None:
    assert not busy(state)
    put(next(g for g in state.groups.values() if g.id.source == "heldout"), version=state.version + 1)


def misplace(state: State) -> None:
    """The ledger's arrangement is not what its entries say."""
    entries = [entry for entry in state.ledger.entries.values() if not entry.is_occupied]
    next(entry for entry in entries if entry.slot > state.ledger.current).slot -= 1


def set_evaluation(state: State) -> None:
    assert "heldout" not in state.prompts
    state.eval_open["heldout"] += 1


CHANGES: dict[str, Change] = {
    # groups
    "a group counts one member too many": lambda s: put(groups(s, GroupPhase.OPEN)[0], num_unsettled=9),
    "a complete group waits": leave_waiting,
    "a member has another name": misname,
    "a member belongs to another group": adopt,
    "a waiting response has an instance": lambda s: put(members(s, TrajectoryPhase.PENDING)[0], instance=InstanceId(0)),
    "versions of a response fall": lambda s: lengthen(members(s, TrajectoryPhase.SCORED)[0], 5, 3),
    "a version comes twice": lambda s: lengthen(members(s, TrajectoryPhase.SCORED)[0], 9, 9),
    "a response has tokens nobody counted": lambda s: put(members(s, TrajectoryPhase.SCORED)[0], length=10**6),
    "a new group has tokens": begin_unseen,
    "a running response has ended": lambda s: put(first_running(s), finish=Finish.STOP),
    "a scored response has not": lambda s: put(members(s, TrajectoryPhase.SCORED)[0], finish=None),
    "tokens are older than their group": stale_tokens,
    # instances
    "an instance works while it pulls": lambda s: put(busy(s)[0], phase=InstancePhase.PULLING),
    "an absent instance gives responses up": lambda s: put(
        next(i for i in s.instances.values() if i.aborting and not i.running), phase=InstancePhase.ABSENT
    ),
    "a response stops that does not run": lambda s: busy(s)[0].stopping.update({TrajectoryId(STRANGER, 0): None}),
    # responses
    "more wait than are counted": lambda s: s.pending.update({next(iter(s.pending)): 9}),
    "one that waits is not counted": lambda s: s.pending.popitem(),
    "a running response is called generated": lambda s: s.generated.update({first_running(s).id: None}),
    "a scored response is awaited": lambda s: s.scoring.update({members(s, TrajectoryPhase.SCORED)[0].id: None}),
    "a running response is forgotten": lambda s: busy(s)[0].running.popitem(),
    "a response runs elsewhere": other_instance,
    "a live response is given up": lambda s: busy(s)[0].aborting.update({first_running(s).id: None}),
    "a live reward is cancelled": lambda s: s.cancelled.update({first_running(s).id: None}),
    "surplus was not let go": lambda s: s.surplus.update({first_running(s).id: first_running(s)}),
    # training groups
    "a group is not counted": lambda s: put(s, num_train_groups=s.num_train_groups - 1),
    "a taken group is called complete": lambda s: s.finished.update({s.batches[0][0]: None}),
    "an open group is called complete": lambda s: s.finished.update({groups(s, GroupPhase.OPEN)[0].id: None}),
    "a deferred group is forgotten": lambda s: s.queue.popitem(),
    "a stranger is in the queue": lambda s: s.queue.update({STRANGER: None}),
    "a group is taken twice": lambda s: s.batches.append((s.batches[0][0],)),
    "a stranger is taken": lambda s: put(s, batches=[(STRANGER, *s.batches[0][1:]), *s.batches[1:]]),
    "a group that is here is held back": lambda s: s.held.update({groups(s, GroupPhase.OPEN)[0].id: ""}),
    "a group has no place": lambda s: s.groups.update(
        {STRANGER: Group(id=STRANGER, num_needed=1, phase=GroupPhase.EVALUATED)}
    ),
    "a round has another number": lambda s: put(s.round, number=99),
    "a round is too small": lambda s: put(s.round, size=s.num_train_groups - 1),
    "a long round leaves a long queue": fill_queue,
    # the bound
    "the ledger is out of order": misplace,
    "a group is not in the ledger": lambda s: s.ledger.delete(next(g for g in s.ledger if s.ledger.is_reserved(g))),
    "the ledger has a stranger": reserve_for_stranger,
    "the ledger has another group finished": swap_finished,
    "the ledger is a batch ahead": skip_batch,
    "a reservation is older than its group": age_reservation,
    # versions
    "a version is published that is not there": lambda s: put(s, published=Version(s.version + 1)),
    "training takes nothing": lambda s: s.batches or put(s, training=Pending(since=0.0, version=s.version)),
    "an instance is ahead": lambda s: put(s.instances[InstanceId(0)], version=Version(9)),
    "a group is ahead": evaluate_ahead,
    "an instance is behind its work": outdate,
    "an evaluation has fewer groups": set_evaluation,
}


@pytest.mark.parametrize("name", CHANGES)
def test_check_finds_that(name: str, states: list[tuple[Schedule, object]]) -> None:
    num_found = 0
    for schedule, snapshot in states:
        state = Coordinator.restore(schedule, snapshot, policies=policies_of(schedule))._state
        before = Coordinator.restore(schedule, snapshot, policies=policies_of(schedule))._state
        check(state, schedule)
        try:
            CHANGES[name](state)
        except (IndexError, KeyError, StopIteration, AttributeError, AssertionError, ValueError):
            continue  # a state without what is to be changed
        if state == before:
            continue
        with pytest.raises((AssertionError, CoreError)):
            check(state, schedule)
        num_found += 1
        if num_found == 3:
            return
    assert num_found, "no history comes to a state that can be changed so"


def test_a_coordinator_checks_its_state(states: list[tuple[Schedule, object]]) -> None:
    schedule, snapshot = states[0]
    coordinator = Coordinator.restore(schedule, snapshot, policies=policies_of(schedule))
    coordinator.check()
    coordinator._state.num_train_groups += 1
    with pytest.raises(AssertionError):
        coordinator.check()
