"""The rollout instances, as the core knows them.

ABSENT --> STARTING --> READY <--------> PULLING
                          |                 ^
                          +--> RELEASING --> RELEASED      (colocated with training)

Any of them --> ABSENT when the instance is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tailrace.core.errors import InvalidTransition
from tailrace.core.ids import InstanceId, TrajectoryId, Version


class InstancePhase(Enum):
    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    """Accepts work; generates whenever it has some."""
    PULLING = "pulling"
    RELEASING = "releasing"
    RELEASED = "released"
    """Holds no weights and no cache."""


_P = InstancePhase
LEGAL: frozenset[tuple[InstancePhase, InstancePhase]] = frozenset(
    {
        (_P.ABSENT, _P.STARTING),
        (_P.STARTING, _P.READY),
        (_P.READY, _P.PULLING),
        (_P.PULLING, _P.READY),
        (_P.READY, _P.RELEASING),
        (_P.RELEASING, _P.RELEASED),
        (_P.RELEASED, _P.PULLING),
        *((phase, _P.ABSENT) for phase in _P if phase is not _P.ABSENT),
    }
)


@dataclass(slots=True, kw_only=True)
class Instance:
    id: InstanceId
    phase: InstancePhase = InstancePhase.ABSENT
    version: Version = Version(0)
    running: dict[TrajectoryId, None] = field(default_factory=dict)
    """An ordered set."""
    stopping: dict[TrajectoryId, None] = field(default_factory=dict)
    """Those of them that were asked to stop."""
    aborting: dict[TrajectoryId, None] = field(default_factory=dict)
    """Responses the run has given up; the instance has not confirmed it yet."""
    num_tokens: int = 0
    """Of its running responses, as far as reported; prompts do not count."""
    is_called: bool = False
    """It takes no more work, and pulls when nothing of it is left to be heard of."""
    moved_at: float | None = None
    """When it last had to give work away that others could do faster."""
    heard_at: float = 0.0
    """When it last changed phase, took work or reported."""
    num_restarts: int = 0
    """Since the last optimizer step."""
    is_condemned: bool = False
    """Its end has been asked for; only the news of it is still awaited."""
    last_loss: str = ""

    def move(self, new: InstancePhase, *, now: float) -> None:
        if (self.phase, new) not in LEGAL:
            raise InvalidTransition(f"instance {self.id}", self.phase.value, new.value, [self.last_loss])
        self.phase = new
        self.heard_at = now
        self.is_called = False

    @property
    def accepts_work(self) -> bool:
        is_ready = self.phase is InstancePhase.READY and not self.is_condemned
        return is_ready and not self.stopping and not self.is_called

    @property
    def owes_nothing(self) -> bool:
        """Ready, and nothing it was asked to stop is still to be heard of."""
        is_ready = self.phase is InstancePhase.READY and not self.is_condemned
        return is_ready and not self.stopping and not self.aborting

    @property
    def is_idle(self) -> bool:
        """Ready, and nothing of it is left to be heard of."""
        return self.accepts_work and not self.running and not self.aborting

    def check(self) -> None:
        has_work = bool(self.running or self.aborting)
        assert not has_work or self.phase is InstancePhase.READY, f"instance {self.id} has work while {self.phase}"
        assert self.stopping.keys() <= self.running.keys()
        assert not self.is_called or self.phase is InstancePhase.READY
