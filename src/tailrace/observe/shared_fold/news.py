"""What one message of the journal changed, after repeated and impossible reports were removed."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.core.commands import Command
from tailrace.core.events import Event, Scored
from tailrace.observe.shared_fold.records import ResponseRecord, StepRecord


class TimeSinceLast(NamedTuple):
    """The time between the entry before and this one. Comes first, before the entry's event changes anything."""

    since: float
    """Run time of the entry before."""
    is_outage: bool
    """The run is being resumed: its processes were gone during this time."""


class News:
    """One message, and what it changed. Every list is in the order of the message."""

    __slots__ = (
        "dropped",
        "ended",
        "evaluated",
        "gone",
        "heard",
        "message",
        "now",
        "num_preempted",
        "parts",
        "scored",
        "step",
        "trained",
        "wasted",
    )

    def __init__(self, now: float, message: Event | Command | TimeSinceLast) -> None:
        self.now = now
        self.message = message
        self.heard: list[tuple[ResponseRecord, int]] = []
        """Responses that an instance reported about, with the number of new tokens, which may be 0."""
        self.ended: list[ResponseRecord] = []
        """Responses that ended by themselves or by the token limit. Each is named once."""
        self.num_preempted = 0
        """Preemptions of the instance that reported, since its report before."""
        self.dropped: list[ResponseRecord] = []
        """Responses that will not be trained or evaluated. Each is named once."""
        self.wasted: list[tuple[ResponseRecord, int]] = []
        """Tokens of dropped responses. Each token is counted once, although a dropped response may still grow."""
        self.gone: list[ResponseRecord] = []
        """Dropped responses that no instance runs any more. Where one has no ``finish``, it never ended: its length
        is a lower bound."""
        self.scored: list[tuple[Scored, ResponseRecord | None]] = []
        """Rewards that came back; None: the response was dropped."""
        self.parts: list[tuple[Scored, ResponseRecord | None]] = []
        """Parts of rewards that came back. All are the part that the message names."""
        self.step: StepRecord | None = None
        """The step that was trained."""
        self.trained: list[ResponseRecord] = []
        """The responses of that step."""
        self.evaluated: list[ResponseRecord] = []
        """Responses of the evaluation that closed."""
