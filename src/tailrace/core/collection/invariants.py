"""What must hold in the collection room after every event."""

from __future__ import annotations

from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    room = rooms.collection
    train = list(rooms.responses.training_groups())
    room.ledger.check()
    _check_groups(rooms, train)
    _check_ledger(rooms, train)
    assert (not room.surplus and not room.unreported) or rooms.run.is_over
    assert not any(rooms.responses.has_group(group) for group in room.held)
    if room.round is not None:
        assert room.round.number == room.ledger.current
        assert room.num_live <= room.round.size
        assert not (room.round.is_long and len(room.queue) >= rooms.schedule.largest_round)


def _check_groups(rooms: Rooms, train: list[Group]) -> None:
    room = rooms.collection
    by_phase = {phase: {g.id for g in train if g.phase is phase} for phase in GroupPhase}
    live = by_phase[GroupPhase.OPEN] | by_phase[GroupPhase.COMPLETE]
    assert len(live) == room.num_live
    assert set(room.complete) == by_phase[GroupPhase.COMPLETE]
    assert not room.queue.keys() & room.late.keys()
    deferred = room.queue.keys() | room.late.keys()
    assert deferred == by_phase[GroupPhase.DEFERRED]
    num_taken = rooms.training.num_waiting_groups
    assert sum(len(ids) for ids in by_phase.values()) == len(live) + num_taken + len(deferred)


def _check_ledger(rooms: Rooms, train: list[Group]) -> None:
    """The ledger holds exactly the groups that went to an instance and are neither taken for a batch nor deferred."""
    ledger = rooms.collection.ledger
    begun = {g.id: g.version for g in train if g.is_live and g.version is not None}
    assert set(ledger) == begun.keys()
    assert {g for g in ledger if ledger.is_occupied(g)} == set(rooms.collection.complete)
    assert ledger.current == rooms.training.version + rooms.training.num_batches
    for group, version in begun.items():
        assert ledger.version_of(group) >= version
