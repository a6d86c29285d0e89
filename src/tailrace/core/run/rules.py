"""Checks after every event, once no other rule has anything to do: whether the run is over, and whether a wait has
exceeded its limit."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.rooms import Rooms
from tailrace.core.run.waits import Wait


def judge(rooms: Rooms) -> Iterator[do.Command]:
    """End the run if it is complete or must fail."""
    run, schedule, training = rooms.run, rooms.schedule, rooms.training
    if (failure := _failure(rooms)) is not None:
        run.end(failure)
    elif training.version == schedule.max_steps and rooms.evaluation_is_over() and training.is_saved:
        run.end(f"{training.version} steps are done" if schedule.trains else "every prompt is done")
        yield do.FinishRun(is_complete=True, reason=run.reason)
    elif run.is_stopping and training.is_at_rest:
        run.end()


def _failure(rooms: Rooms) -> str | None:
    """Return why the run must fail; None if it can continue. A run that is stopping needs only its trainer."""
    run, schedule = rooms.run, rooms.schedule
    if run.is_stopping:
        return rooms.training.failure(run.limits)
    return (
        rooms.fleet.failure(run.limits)
        or rooms.training.failure(run.limits)
        or rooms.collection.failure(schedule, rooms.rewards.failure_detail)
        or rooms.rewards.failure(schedule)
    )


def watch(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Restart instances and the trainer, or fail the run, for waits beyond their limits. Set the timer for the next
    limit."""
    run, planned = rooms.run, _planned(rooms)
    latest = now + run.limits.shortest_s
    if run.timer_at is not None and now < run.timer_at <= min([latest, *planned]):
        return  # the timer is early enough: no wait that began later can end before it
    for wait in waits(rooms):
        if wait.until > now:
            continue
        age = f"waited {now - wait.since:.0f} s for {wait.what} (limit {wait.limit_s:.0f} s)"
        if wait.instance is not None:
            yield from rooms.fleet.kill(wait.instance, age, now)
        elif wait.is_trainer:
            yield from rooms.training.kill(age, now)
        else:
            run.end(age)
            return
    ends = [wait.until for wait in waits(rooms)] + planned
    if not ends:
        run.end(
            "internal error: the run waits for nothing, so nothing would ever happen; please report it and attach"
            " journal.jsonl"
        )
        return
    run.timer_at = min(*ends, latest)
    yield do.SetTimer(at=run.timer_at)


def _planned(rooms: Rooms) -> list[float]:
    """Return the times at which a rule must be applied again."""
    times = (rooms.fleet.next_plan_at, rooms.collection.relief_at(rooms.schedule), rooms.run.stop_at)
    return [at for at in times if at is not None]


def waits(rooms: Rooms) -> list[Wait]:
    """Return all current waits, the most informative first. A run that is stopping waits for its trainer only."""
    limits = rooms.run.limits
    if rooms.run.is_over:
        return []
    if (stop := rooms.run.stop) is not None:
        last = Wait(what=rooms.training.last_work, since=stop.since, limit_s=limits.stop_s)
        return [last, *rooms.training.waits(limits, rooms.schedule.edition)]
    return [
        *rooms.fleet.waits(limits, rooms.training.published),
        *rooms.rewards.waits(limits),
        *rooms.collection.waits(rooms.schedule, limits),
        *rooms.evaluation.waits(limits),
        *rooms.training.waits(limits, rooms.schedule.edition),
    ]
