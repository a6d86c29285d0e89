"""The one object that a driver of a cluster talks to: events in, commands out.

``handle`` notes an event, then starts, moves and plans what has become possible. The same events at the same times
always give the same commands.
"""

from __future__ import annotations

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission import invariants as admission_invariants
from tailrace.cluster.admission.facts import pass_time
from tailrace.cluster.groups import invariants as groups_invariants
from tailrace.cluster.jobs import invariants as jobs_invariants
from tailrace.cluster.phases import invariants as phases_invariants
from tailrace.cluster.rearranging import invariants as rearranging_invariants
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.rules import HANDLERS, apply_rules
from tailrace.cluster.watch.waits import waits
from tailrace.core.run.waits import Wait


class Scheduler:
    """Owns the state of the cluster. A driver gives each event its time, once, and performs the commands."""

    def __init__(self, event: ev.ClusterStarted) -> None:
        self._rooms = Rooms(event.rules, event.groups, event.rollout_devices)

    def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
        """Note one event and return the commands that follow from it.

        ``ValueError``, and nothing has changed: ``now`` is no number, or earlier than that of the event before.
        """
        handler = HANDLERS.get(type(event))
        if handler is None:
            raise TypeError(f"unknown event {event!r}")
        self._rooms.watch.note_time(now)
        pass_time(self._rooms, now)
        commands = list(handler(self._rooms, event, now))
        commands += apply_rules(self._rooms, event, now)
        return commands

    @property
    def rooms(self) -> Rooms:
        """The whole state. Read it only: the scheduler changes it."""
        return self._rooms

    def waits(self, now: float) -> list[Wait]:
        """What every job waits for, since when, and until when, as far as that is known."""
        return waits(self._rooms, now)

    def check(self) -> None:
        """Assert everything that must hold between two events."""
        rooms = (
            jobs_invariants, groups_invariants, admission_invariants, phases_invariants, rearranging_invariants
        )  # fmt: skip
        for room in rooms:
            room.check(self._rooms)
