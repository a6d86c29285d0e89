"""What the core raises: always a bug in the core or in a driver, never a user's mistake.

CoreError
+-- InvalidTransition   a life cycle was asked for a move its table does not have; carries the story
+-- UnknownSubject      an event speaks of a thing the core has never heard of
+-- ReplayMismatch      a journal, fed back, gave other commands than it recorded
"""

from __future__ import annotations

from collections.abc import Sequence


class CoreError(Exception):
    """Base class."""


class InvalidTransition(CoreError):
    def __init__(self, subject: str, old: str, new: str, story: Sequence[str]) -> None:
        super().__init__(subject, old, new, tuple(story))
        self.subject, self.old, self.new, self.story = subject, old, new, tuple(story)

    def __str__(self) -> str:
        story = "\n  ".join(self.story) or "(it has no story yet)"
        return f"{self.subject}: {self.old} -> {self.new} is not legal\n  {story}"


class UnknownSubject(CoreError):
    pass


class ReplayMismatch(CoreError):
    pass
