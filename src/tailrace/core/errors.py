"""Exceptions of the core. Each means a bug in the core or in a driver, never a user's mistake.

CoreError
+-- InvalidTransition   a phase change that the table of legal changes does not have; holds the history of the object
+-- UnknownSubject      an id that the core does not know
+-- ReplayMismatch      a replayed journal gave other commands than it recorded
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
