"""The journal of a cluster: every event, its time, and the commands that followed. One JSON object per line.

It begins with ``ClusterStarted``, so a journal alone is enough to replay what was decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.cluster.commands import Command
from tailrace.cluster.events import ClusterStarted, Event
from tailrace.cluster.scheduler import Scheduler
from tailrace.core import codec
from tailrace.core.errors import ReplayMismatch

FORMAT = 1

_EVENTS = {cls.__name__: cls for cls in Event.__subclasses__()}
_COMMANDS = {cls.__name__: cls for cls in Command.__subclasses__()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    now: float
    event: Event
    commands: tuple[Command, ...] = ()


def encode(entry: Entry) -> str:
    """Return the entry as one line of text, without a line end."""
    data: dict[str, object] = {"format": FORMAT} if isinstance(entry.event, ClusterStarted) else {}
    data |= {"now": entry.now, "event": _tagged(entry.event)}
    if entry.commands:
        data["commands"] = [_tagged(command) for command in entry.commands]
    return json.dumps(data, separators=(",", ":"))


def decode(line: str) -> Entry:
    data = json.loads(line)
    event = data["event"]
    return Entry(
        now=data["now"],
        event=codec.decode(_EVENTS[event["type"]], event),
        commands=tuple(codec.decode(_COMMANDS[item["type"]], item) for item in data.get("commands", ())),
    )


def replay(entries: Iterable[Entry]) -> Scheduler:
    """Feed a journal to a new scheduler, and raise ``ReplayMismatch`` at the first answer that differs."""
    scheduler: Scheduler | None = None
    for number, entry in enumerate(entries):
        if isinstance(entry.event, ClusterStarted):
            scheduler = Scheduler(entry.event)
            continue
        if scheduler is None:
            raise ReplayMismatch(f"a journal begins with ClusterStarted, not {type(entry.event).__name__}")
        answer = tuple(scheduler.handle(entry.event, now=entry.now))
        if answer != entry.commands:
            raise ReplayMismatch(f"entry {number} ({entry.event}): {answer} != recorded {entry.commands}")
    if scheduler is None:
        raise ReplayMismatch("the journal is empty")
    return scheduler


def _tagged(message: Event | Command) -> dict[str, object]:
    fields = codec.encode(message)
    assert isinstance(fields, dict)
    return {"type": type(message).__name__, **fields}
