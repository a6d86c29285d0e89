"""The optimizer step in progress: one or more pieces of a batch, and the finish.

    piece 0 --> piece 1 --> ... --> the rest of the batch --> finish
    (streamed: groups that completed while the round ran)

Without streaming the whole batch is the only piece. A trainer that was lost, or a run that was resumed, gets the same
pieces again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.ids import GroupId


@dataclass(slots=True, kw_only=True)
class Step:
    """The next optimizer step, or the one in progress."""

    streamed: list[tuple[GroupId, ...]] = field(default_factory=list)
    """Pieces that were chosen before the batch was full, in order."""
    num_sent: int = 0
    """Pieces that the trainer was sent."""
    num_done: int = 0
    """Pieces that it has added."""
    is_finishing: bool = False
    """Whether it was sent all pieces and the finish."""
    since: float = 0.0
    """When the trainer last became busy with a piece or with the finish."""

    @staticmethod
    def upgraded(stored: dict[str, object]) -> dict[str, object]:
        """Return the stored fields of a step as this release has them. Before, a step was the request for it."""
        if "version" not in stored:
            return stored
        return {"since": stored.get("since", 0.0), "num_sent": 1, "is_finishing": True}

    @property
    def has_begun(self) -> bool:
        """Whether the trainer was sent anything."""
        return self.num_sent > 0

    @property
    def is_busy(self) -> bool:
        """Whether the trainer has something to do for it."""
        return self.is_finishing or self.num_done < self.num_sent

    @property
    def groups(self) -> list[GroupId]:
        """Groups of the pieces that were chosen before the batch was full."""
        return [group for piece in self.streamed for group in piece]

    def send(self, now: float) -> None:
        """Note that the trainer was sent one more piece."""
        if not self.is_busy:
            self.since = now
        self.num_sent += 1

    def add(self, now: float) -> None:
        """Note that the trainer has added one more piece."""
        self.num_done += 1
        self.since = now

    def finish(self, now: float) -> None:
        """Note that the trainer was sent the finish, after all pieces."""
        if not self.is_busy:
            self.since = now
        self.is_finishing = True

    def forget(self) -> None:
        """Note that the trainer has lost or dropped all that it was sent."""
        self.num_sent = self.num_done = 0
        self.is_finishing = False
