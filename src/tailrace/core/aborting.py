"""Aborting a response: all work on it stops, and its tokens are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import commands as do
from tailrace.core.fleet.lending import note_length
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rooms import Rooms


def abort(rooms: Rooms, responses: Iterable[Response]) -> Iterator[do.Command]:
    """Abort responses in any phase. The caller removes them from their group, or removes the whole group."""
    running, scoring = list[Response](), list[Response]()
    for response in responses:
        if response.length and not response.has_ended:
            note_length(rooms, response, is_cut=True)
        match response.phase:
            case ResponsePhase.PENDING:
                rooms.responses.stop_waiting(response.id.group, 1)
            case ResponsePhase.RUNNING:
                running.append(response)
            case ResponsePhase.GENERATED:
                rooms.rewards.remove_generated(response.id)
            case ResponsePhase.SCORING:
                scoring.append(response)
    yield from rooms.fleet.abort(running)
    yield from rooms.rewards.abort(scoring)
