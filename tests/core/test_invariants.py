"""``check`` finds every disagreement: a state of a real history is changed in one place and must be refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from core.histories import active_partial, tail_batching
from core.world import World
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import CoreError
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.ledger.pool import Pool
from tailrace.core.outcomes import Part
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import Finish, Response, ResponsePhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import EvalSet, Leftovers, Schedule, Stream
from tailrace.core.training.step import Step
from tailrace.policies.strategies import policies_of

HELDOUT = (EvalSet(name="heldout", num_prompts=2, group_size=2),)
STRANGER = GroupId("train", 99, 99)


def schedules() -> list[Schedule]:
    common = {"num_instances": 2, "eval_sets": HELDOUT, "eval_interval": 1, "max_in_flight": 3}
    tail = tail_batching(
        random.Random(0),
        batch_size=2,
        group_size=2,
        launch_prompts=3,
        max_steps=6,
        stream=Stream.ALWAYS,
        stream_groups=1,
        **common,
    )
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


Change = Callable[[Rooms], object]


def put(owner: object, **values: object) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def members(rooms: Rooms, *phases: ResponsePhase) -> list[Response]:
    return [r for r in rooms.responses.all_responses() if r.phase in phases and r.id.group.source == "train"]


def groups(rooms: Rooms, *phases: GroupPhase) -> list[Group]:
    return [g for g in rooms.responses.groups.values() if g.phase in phases and g.id.source == "train"]


def busy(rooms: Rooms) -> list[Instance]:
    return [i for i in rooms.fleet.instances.values() if i.running]


def first_running(rooms: Rooms) -> Response:
    return members(rooms, ResponsePhase.RUNNING)[0]


def other_instance(rooms: Rooms) -> None:
    response = first_running(rooms)
    response.instance = InstanceId(1 - (response.instance or 0))


def miscount(rooms: Rooms) -> None:
    assert not rooms.collection.surplus
    busy(rooms)[0].num_tokens += 1


def misname(rooms: Rooms) -> None:
    group = groups(rooms, GroupPhase.COMPLETE)[0]
    key = next(iter(group.members))
    group.members[key._replace(attempt=9)] = group.members.pop(key)


def adopt(rooms: Rooms) -> None:
    """A group has the member of another one."""
    one, two = groups(rooms, GroupPhase.COMPLETE, GroupPhase.TAKEN)[:2]
    key, response = one.members.popitem()
    two.members[key] = response


def leave_waiting(rooms: Rooms) -> None:
    """A complete group has a member that is not settled."""
    group = groups(rooms, GroupPhase.COMPLETE)[0]
    fresh = Response(id=ResponseId(group.id, 7))
    group.members[fresh.id], group.num_unsettled = fresh, 1


def begin_unseen(rooms: Rooms) -> None:
    group = next(g for g in groups(rooms, GroupPhase.OPEN) if g.version is None)
    next(iter(group.members.values())).grow(1, Version(0))


def age_reservation(rooms: Rooms) -> None:
    """Of an unbounded ledger, whose order does not depend on versions."""
    group = next(
        g
        for g in rooms.collection.ledger
        if rooms.responses.groups[g].version and isinstance(rooms.collection.ledger._store, Pool)
    )
    rooms.collection.ledger.entries[group].version -= 1


def outdate(rooms: Rooms) -> None:
    """An instance generates for a group with weights older than the group's."""
    response = next(r for r in members(rooms, ResponsePhase.RUNNING) if rooms.responses.groups[r.id.group].version)
    rooms.fleet.instances[response.instance or InstanceId(0)].version = Version(0)


def fill_queue(rooms: Rooms) -> None:
    assert rooms.collection.round is not None
    assert not rooms.collection.queue
    assert not rooms.collection.round.is_long
    rooms.collection.round.is_long = True
    for prompt in range(rooms.collection.round.size):
        group = Group(id=STRANGER._replace(prompt=prompt), num_needed=2, phase=GroupPhase.DEFERRED)
        rooms.responses.groups[group.id], rooms.collection.queue[group.id] = group, None


def reserve_for_stranger(rooms: Rooms) -> None:
    assert rooms.collection.ledger.can_reserve(rooms.training.version)
    rooms.collection.ledger.reserve(STRANGER, rooms.training.version)


def swap_finished(rooms: Rooms) -> None:
    """The ledger takes another group than the core for finished."""
    open_, complete = groups(rooms, GroupPhase.OPEN), list(rooms.collection.complete)
    mine = next(g.id for g in open_ if g.id in rooms.collection.ledger)
    rooms.collection.ledger.entries[mine].is_occupied, rooms.collection.ledger.entries[complete[0]].is_occupied = (
        True,
        False,
    )
    rooms.collection.ledger.__post_init__()


def lengthen(response: Response, *versions: int) -> None:
    """A response gets one token of each version."""
    response.segments.extend((Version(version), 1) for version in versions)
    response.length += len(versions)


def stale_tokens(rooms: Rooms) -> None:
    """A response has tokens of a version before its group's."""
    taken = [g for g in groups(rooms, GroupPhase.TAKEN) if g.version]
    segments = next(r.segments for g in taken for r in g.members.values() if r.segments)
    segments[0] = (Version(0), segments[0][1])


def skip_batch(rooms: Rooms) -> None:
    """A batch and its groups are gone, but the ledger has not trained it."""
    for group in rooms.training.batches.pop():
        del rooms.responses.groups[group]


def evaluate_ahead(rooms: Rooms) -> None:
    assert not busy(rooms)
    put(
        next(g for g in rooms.responses.groups.values() if g.id.source == "heldout"), version=rooms.training.version + 1
    )


def misplace(rooms: Rooms) -> None:
    """The ledger's arrangement is not what its entries say."""
    entries = [entry for entry in rooms.collection.ledger.entries.values() if not entry.is_occupied]
    next(entry for entry in entries if entry.slot > rooms.collection.ledger.current).slot -= 1


def still(rooms: Rooms, phase: InstancePhase) -> Instance:
    """An instance that does nothing else."""
    return next(i for i in rooms.fleet.instances.values() if i.phase is phase and not i.running and not i.aborting)


def believe_in_pulls(rooms: Rooms) -> None:
    published = rooms.training.published
    assert any(instance.version < published for instance in rooms.fleet.instances.values())
    rooms.fleet.all_hold = published


def set_evaluation(rooms: Rooms) -> None:
    assert "heldout" not in rooms.evaluation.requested
    rooms.evaluation.open["heldout"] += 1


CHANGES: dict[str, Change] = {
    # groups
    "a group counts one member too many": lambda s: put(groups(s, GroupPhase.OPEN)[0], num_unsettled=9),
    "a complete group waits": leave_waiting,
    "a member has another name": misname,
    "a member belongs to another group": adopt,
    "a waiting response has an instance": lambda s: put(members(s, ResponsePhase.PENDING)[0], instance=InstanceId(0)),
    "versions of a response fall": lambda s: lengthen(members(s, ResponsePhase.SCORED)[0], 5, 3),
    "a version comes twice": lambda s: lengthen(members(s, ResponsePhase.SCORED)[0], 9, 9),
    "a response has tokens nobody counted": lambda s: put(
        members(s, ResponsePhase.SCORED)[0], length=10**6, story=["changed"]
    ),
    "a new group has tokens": begin_unseen,
    "a running response has ended": lambda s: put(first_running(s), finish=Finish.STOP),
    "a scored response has not": lambda s: put(members(s, ResponsePhase.SCORED)[0], finish=None),
    "tokens are older than their group": stale_tokens,
    # instances
    "an instance works while it pulls": lambda s: put(busy(s)[0], phase=InstancePhase.PULLING),
    "an absent instance gives responses up": lambda s: put(
        next(i for i in s.fleet.instances.values() if i.aborting and not i.running), phase=InstancePhase.ABSENT
    ),
    "a response stops that does not run": lambda s: busy(s)[0].stopping.update({ResponseId(STRANGER, 0): None}),
    "an instance counts a token that none of its responses has": miscount,
    "an instance pulls and does not": lambda s: put(still(s, InstancePhase.READY), pulling=Version(0)),
    "an instance that pulls is to drain": lambda s: put(still(s, InstancePhase.PULLING), is_draining=True),
    "an instance is counted as absent": lambda s: put(s.fleet, num_absent=s.fleet.num_absent + 1),
    "an instance is counted as retiring": lambda s: put(s.fleet, num_retiring=s.fleet.num_retiring + 1),
    "a fleet with instances is called empty": lambda s: put(s.fleet, empty_since=0.0),
    "an instance is said to hold what it has not pulled": believe_in_pulls,
    # responses
    "more wait than are counted": lambda s: s.responses.pending.update({next(iter(s.responses.pending)): 9}),
    "one that waits is not counted": lambda s: s.responses.pending.popitem(),
    "a running response is called generated": lambda s: s.rewards.generated.update({first_running(s).id: None}),
    "a scored response is awaited": lambda s: s.rewards.requested[Part.FUNCTION].scoring.update(
        {members(s, ResponsePhase.SCORED)[0].id: None}
    ),
    "a running response is forgotten": lambda s: busy(s)[0].running.popitem(),
    "a response runs elsewhere": other_instance,
    "a live response is given up": lambda s: busy(s)[0].aborting.update({first_running(s).id: None}),
    "a live reward is aborted": lambda s: s.rewards.requested[Part.FUNCTION].aborting.update(
        {first_running(s).id: None}
    ),
    "surplus was not let go": lambda s: s.collection.surplus.update({first_running(s).id: first_running(s)}),
    "a filtered group was not reported": lambda s: s.collection.unreported.update({STRANGER: GroupPhase.FILTERED}),
    # training groups
    "a group is not counted": lambda s: put(s.collection, num_live=s.collection.num_live - 1),
    "a taken group is called complete": lambda s: s.collection.complete.update({s.training.batches[0][0]: None}),
    "an open group is called complete": lambda s: s.collection.complete.update(
        {groups(s, GroupPhase.OPEN)[0].id: None}
    ),
    "a deferred group is forgotten": lambda s: s.collection.queue.popitem(),
    "a deferred group is in both queues": lambda s: s.collection.late.update({next(iter(s.collection.queue)): None}),
    "a stranger is in the queue": lambda s: s.collection.queue.update({STRANGER: None}),
    "a group is taken twice": lambda s: s.training.batches.append((s.training.batches[0][0],)),
    "a stranger is taken": lambda s: put(
        s.training, batches=[(STRANGER, *s.training.batches[0][1:]), *s.training.batches[1:]]
    ),
    "a group that is here is held back": lambda s: s.collection.held.update({groups(s, GroupPhase.OPEN)[0].id: ""}),
    "a group has no place": lambda s: s.responses.groups.update(
        {STRANGER: Group(id=STRANGER, num_needed=1, phase=GroupPhase.EVALUATED)}
    ),
    "a round has another number": lambda s: put(s.collection.round, number=99),
    "a round is too small": lambda s: put(s.collection.round, size=s.collection.num_live - 1),
    "a long round leaves a long queue": fill_queue,
    # the bound
    "the ledger is out of order": misplace,
    "a group is not in the ledger": lambda s: s.collection.ledger.delete(
        next(g for g in s.collection.ledger if s.collection.ledger.is_reserved(g))
    ),
    "the ledger has a stranger": reserve_for_stranger,
    "the ledger has another group finished": swap_finished,
    "the ledger is a batch ahead": skip_batch,
    "a reservation is older than its group": age_reservation,
    # versions
    "a version is published that is not there": lambda s: put(s.training, published=Version(s.training.version + 1)),
    "training takes nothing": lambda s: s.training.batches or put(s.training, step=Step(is_finishing=True)),
    "a piece is finished that was not sent": lambda s: put(s.training, step=Step(num_done=1)),
    "a piece is sent that was not chosen": lambda s: s.training.batches or put(s.training, step=Step(num_sent=1)),
    "a group is in two pieces": lambda s: put(s.training, step=Step(streamed=2 * [(GroupId("train", 0, 0),)])),
    "a committed group is not trained": lambda s: s.collection.ledger.committed.update(
        dict.fromkeys(s.collection.complete)
    ),
    "a group is trained that is not committed": lambda s: (
        s.training.batches or put(s.training, step=Step(streamed=[(GroupId("train", 0, 99),)]))
    ),
    "another version is being published": lambda s: put(
        s.training, publishing=OpenRequest(since=0.0, version=Version(s.training.version - 1))
    ),
    "the trainer is ahead": lambda s: put(s.training, trainer=Version(s.training.version + 1)),
    "a step is taken after the last": lambda s: put(s, schedule=replace(s.schedule, max_steps=s.training.version - 1)),
    "an instance is ahead": lambda s: put(s.fleet.instances[InstanceId(0)], version=Version(9)),
    "a group is ahead": evaluate_ahead,
    "an instance is behind its work": outdate,
    "an evaluation has fewer groups": set_evaluation,
}


@pytest.mark.parametrize("name", CHANGES)
def test_check_finds_that(name: str, states: list[tuple[Schedule, object]]) -> None:
    num_found = 0
    for schedule, snapshot in states:
        coordinator = Coordinator.restore(schedule, snapshot, policies=policies_of(schedule))
        coordinator.check()
        try:
            CHANGES[name](coordinator.rooms)
        except (IndexError, KeyError, StopIteration, AttributeError, AssertionError, ValueError):
            continue  # a state without what is to be changed
        if coordinator.snapshot() == snapshot and coordinator.schedule == schedule:
            continue
        with pytest.raises((AssertionError, CoreError)):
            coordinator.check()
        num_found += 1
        if num_found == 3:
            return
    assert num_found, "no history comes to a state that can be changed so"


def test_a_coordinator_checks_its_state(states: list[tuple[Schedule, object]]) -> None:
    schedule, snapshot = states[0]
    coordinator = Coordinator.restore(schedule, snapshot, policies=policies_of(schedule))
    coordinator.check()
    coordinator.rooms.collection.num_live += 1
    with pytest.raises(AssertionError):
        coordinator.check()
