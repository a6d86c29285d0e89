"""Events of the run as a whole."""

from __future__ import annotations

from tailrace.core import events as ev
from tailrace.core.errors import CoreError
from tailrace.core.rooms import Rooms
from tailrace.core.run.room import RequestedStop


def run_started(rooms: Rooms, event: ev.RunStarted, now: float) -> None:
    if rooms.run.has_begun:
        raise CoreError("RunStarted came twice: a run starts only once")
    rooms.run.has_begun = True
    rooms.run.limits = event.schedule.limits


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    rooms.run.limits = event.limits
    rooms.run.timer_at = rooms.run.verdict = rooms.run.stop = None


def stop_requested(rooms: Rooms, event: ev.StopRequested, now: float) -> None:
    if not event.saves:
        rooms.run.end(event.reason)
    elif not rooms.run.is_stopping:
        rooms.run.stop = RequestedStop(reason=event.reason, since=now)


def timer_fired(rooms: Rooms, event: ev.TimerFired, now: float) -> None:
    rooms.run.timer_at = None
