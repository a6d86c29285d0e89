"""The record of a run: every event, when it was handled, and the answer. One JSON object per entry.

A journal begins with ``RunStarted``, which holds the schedule, so a journal alone is enough to replay a run.
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
from tailrace.core.events import Event, RunStarted
from tailrace.core.schedule import Schedule

_EVENTS = {cls.__name__: cls for cls in Event.__subclasses__()}
_COMMANDS = {cls.__name__: cls for cls in Command.__subclasses__()}


class Machine(Protocol):
    def handle(self, event: Event, *, now: float) -> list[Command]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    now: float
    event: Event
    commands: tuple[Command, ...]
    decided_s: float = 0.0
    """Processor seconds it took to find the answer; nothing is decided by it."""


def encode(entry: Entry) -> str:
    """One line of text, without its line end."""
    data = {
        "now": entry.now,
        "event": _tagged(entry.event),
        "commands": [_tagged(command) for command in entry.commands],
    }
    if entry.decided_s:
        data["decided_s"] = entry.decided_s
    return json.dumps(data, separators=(",", ":"))


def decode(line: str) -> Entry:
    data = json.loads(line)
    event = data["event"]
    return Entry(
        now=data["now"],
        event=codec.decode(_EVENTS[event["type"]], event),
        commands=tuple(codec.decode(_COMMANDS[item["type"]], item) for item in data["commands"]),
        decided_s=data.get("decided_s", 0.0),
    )


def _tagged(message: Event | Command) -> dict[str, object]:
    fields = codec.encode(message)
    assert isinstance(fields, dict)
    return {"type": type(message).__name__, **fields}


def replay(machine: Machine, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Feed entries to a machine, yielding each; raise at the first different answer."""
    for number, entry in enumerate(entries):
        answer = tuple(machine.handle(entry.event, now=entry.now))
        if answer != entry.commands:
            raise ReplayMismatch(f"entry {number} ({entry.event}): {answer} != recorded {entry.commands}")
        yield entry


def replay_all(entries: Iterable[Entry], make: Callable[[Schedule], Machine]) -> int:
    """Replay a whole journal on a fresh machine and return the number of entries."""
    iterator = iter(entries)
    first = next(iterator)
    if not isinstance(first.event, RunStarted):
        raise ReplayMismatch(f"a journal begins with RunStarted, not {type(first.event).__name__}")
    return sum(1 for _ in replay(make(first.event.schedule), chain([first], iterator)))
