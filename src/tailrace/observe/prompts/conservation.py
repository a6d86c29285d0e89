"""Checks that every prompt is accounted for: those issued against what became of each, counted in different places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import GroupId
from tailrace.core.journal import Entry, replay
from tailrace.core.responses.group import GroupPhase
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.schedule import Schedule
from tailrace.policies.strategies import policies_of


def conservation(entries: Sequence[Entry]) -> dict[str, int]:
    """What became of every prompt that was issued, according to the journal and the coordinator's last state.

    Issued, trained, filtered and dropped are counted in the journal; the others are what the coordinator still holds
    when the journal is replayed to its end. So the two sides of ``adds_up`` come from different places.
    """
    first = entries[0].event
    assert isinstance(first, ev.RunStarted), "the journal has not begun"
    issued, trained, left_out = _counted(entries, first.schedule.train_source)
    held = _held(entries, first.schedule)
    parts = {"trained": len(trained), **left_out, **held}
    return {
        "issued": len(issued),
        **parts,
        "adds_up": int(sum(parts.values()) == len(issued)),
        "trained_twice": sum(count - 1 for count in trained.values()),
    }


def _counted(entries: Sequence[Entry], source: str) -> tuple[set[GroupId], Counter[GroupId], dict[str, int]]:
    issued: set[GroupId] = set()
    trained: Counter[GroupId] = Counter()
    left_out = {"filtered": 0, "dropped": 0}
    step: list[GroupId] = []
    version = -1
    for entry in entries:
        if isinstance(entry.event, ev.PromptsOffered) and entry.event.source == source:
            issued |= {GroupId(source, epoch, prompt) for epoch, prompt in entry.event.prompts}
        if isinstance(entry.event, ev.StepTrained) and entry.event.version == version + 1:
            trained.update(step)
            step = []
        for command in entry.commands:
            match command:
                case do.StartTrainer() | do.DropStep():
                    step = []  # the trainer that was asked is gone, or has forgotten it
                case do.Accumulate(version=version, responses=responses):
                    step += dict.fromkeys(response.group for response in responses)
                case do.ReportDropped(filtered=filtered, dropped=dropped):
                    left_out["filtered"] += len(filtered)
                    left_out["dropped"] += sum(group.source == source for group in dropped)
                case do.CloseRound(dropped=dropped):
                    left_out["dropped"] += len(dropped)
    return issued, trained, left_out


def _held(entries: Sequence[Entry], schedule: Schedule) -> dict[str, int]:
    coordinator = Coordinator(schedule, policies=policies_of(schedule))
    for _ in replay(coordinator, entries):
        pass
    rooms = coordinator.rooms
    held = {"queued": len(rooms.collection.held), "buffered": 0, "in_flight": 0}
    for group in rooms.responses.training_groups():
        is_running = any(member.phase is ResponsePhase.RUNNING for member in group.members.values())
        queued = group.phase is GroupPhase.DEFERRED
        held["queued" if queued else "in_flight" if is_running else "buffered"] += 1
    return held
