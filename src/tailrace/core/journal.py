"""The journal of a run: every event, the time it was handled, and the commands that followed. One JSON object per line.

A journal begins with ``RunStarted``, which holds the schedule, so a journal alone is enough to replay a run. That first
line also names the format of all lines: a journal of another format is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from tailrace.core import codec
from tailrace.core.commands import Command
from tailrace.core.errors import ReplayMismatch
from tailrace.core.events import Event, InstanceEvent, RunStarted, TrainerEvent
from tailrace.core.schedule import Schedule

FORMAT = 2
"""Number of the format that this version writes and reads. A journal without a number has format 1."""

_FIRST_EDITION = 1
"""Edition of the rules (`Schedule.edition`) of journals that do not name one."""

_EVENTS = {cls.__name__: cls for base in (Event, InstanceEvent, TrainerEvent) for cls in base.__subclasses__()}
_COMMANDS = {cls.__name__: cls for cls in Command.__subclasses__()}


class OtherFormat(ValueError):
    """The journal has a format that this version of tailrace does not read."""


class Decider(Protocol):
    """Anything that answers events with commands, such as a coordinator."""

    def handle(self, event: Event, *, now: float) -> list[Command]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event and the commands that followed from it."""

    now: float
    """Time of the event, in seconds of run time."""
    event: Event
    commands: tuple[Command, ...]
    decided_s: float = 0.0
    """Processor seconds that the decision took. For measurement only."""


def encode(entry: Entry) -> str:
    """Return the entry as one line of text, without a line end."""
    data: dict[str, object] = {"format": FORMAT} if isinstance(entry.event, RunStarted) else {}
    data |= {"now": entry.now, "event": _tagged(entry.event)}
    if entry.commands:
        data["commands"] = [_tagged(command) for command in entry.commands]
    if entry.decided_s:
        data["decided_s"] = entry.decided_s
    return json.dumps(data, separators=(",", ":"))


def decode(line: str) -> Entry:
    data = json.loads(line)
    event = data["event"]
    if event.get("schedule") is not None:
        event["schedule"].setdefault("edition", _FIRST_EDITION)
    return Entry(
        now=data["now"],
        event=codec.decode(_EVENTS[event["type"]], event),
        commands=tuple(codec.decode(_COMMANDS[item["type"]], item) for item in data.get("commands", ())),
        decided_s=data.get("decided_s", 0.0),
    )


def check_format(first_line: str) -> None:
    """Raise ``OtherFormat`` unless the first line of a journal names the format that this version reads."""
    data = json.loads(first_line)
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        which = "has no format number" if found is None else f"has format {found}"
        raise OtherFormat(
            f"the journal {which}, and this version of tailrace reads format {FORMAT}:"
            " use the version that wrote it, or start in another output_dir"
        )


def _tagged(message: Event | Command) -> dict[str, object]:
    fields = codec.encode(message)
    assert isinstance(fields, dict)
    return {"type": type(message).__name__, **fields}


def replay(machine: Decider, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Feed entries to a machine and yield each. Raise ``ReplayMismatch`` at the first answer that differs."""
    for number, entry in enumerate(entries):
        answer = tuple(machine.handle(entry.event, now=entry.now))
        if answer != entry.commands:
            raise ReplayMismatch(f"entry {number} ({entry.event}): {answer} != recorded {entry.commands}")
        yield entry


def replay_all(entries: Iterable[Entry], make: Callable[[Schedule], Decider]) -> int:
    """Replay a whole journal on a fresh machine and return the number of entries."""
    iterator = iter(entries)
    first = next(iterator)
    if not isinstance(first.event, RunStarted):
        raise ReplayMismatch(f"a journal begins with RunStarted, not {type(first.event).__name__}")
    return sum(1 for _ in replay(make(first.event.schedule), chain([first], iterator)))
