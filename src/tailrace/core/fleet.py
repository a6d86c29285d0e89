"""The rollout instances, as the core knows them.

ABSENT --> STARTING --> READY <--> PULLING
  ^           |           |           |
  +-----------+-----------+-----------+   (lost)
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


_P = InstancePhase
LEGAL: frozenset[tuple[InstancePhase, InstancePhase]] = frozenset(
    {
        (_P.ABSENT, _P.STARTING),
        (_P.STARTING, _P.READY),
        (_P.READY, _P.PULLING),
        (_P.PULLING, _P.READY),
        (_P.STARTING, _P.ABSENT),
        (_P.READY, _P.ABSENT),
        (_P.PULLING, _P.ABSENT),
    }
)


@dataclass(slots=True, kw_only=True)
class Instance:
    id: InstanceId
    phase: InstancePhase = InstancePhase.ABSENT
    version: Version = Version(0)
    running: dict[TrajectoryId, None] = field(default_factory=dict)
    """An ordered set."""
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

    def accepts(self, version: Version) -> bool:
        return self.phase is InstancePhase.READY and self.version == version and not self.is_condemned

    def check(self) -> None:
        assert not self.running or self.phase is InstancePhase.READY, f"instance {self.id} runs work while {self.phase}"
