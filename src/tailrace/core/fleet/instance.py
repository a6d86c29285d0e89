"""One rollout instance, as the core knows it.

ABSENT --> STARTING --> READY <--------> PULLING
                          |                 ^
                          +--> RELEASING --> RELEASED      (colocated with training, or lent to it)
                          |
                          +--> STOPPING --> (leaves the fleet, or is parked: ABSENT)

Any of them --> ABSENT when the instance is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tailrace.core.errors import InvalidTransition
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.lost_workers import Losses
from tailrace.core.responses.response import Response


class InstancePhase(Enum):
    """What an instance is doing."""

    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    """It accepts work, and generates if it has any."""
    PULLING = "pulling"
    RELEASING = "releasing"
    RELEASED = "released"
    """It has released its weights and its KV cache."""
    STOPPING = "stopping"
    """It is retired or parked, and was asked to end."""


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
        (_P.READY, _P.STOPPING),
        (_P.RELEASED, _P.STOPPING),
        *((phase, _P.ABSENT) for phase in _P if phase is not _P.ABSENT),
    }
)


@dataclass(slots=True, kw_only=True)
class Instance:
    """State of one rollout instance."""

    id: InstanceId
    phase: InstancePhase = InstancePhase.ABSENT
    version: Version = Version(0)
    """Version of its weights."""
    incarnation: int = 0
    """Number of its last start. Reports of an earlier start are refused."""
    pulling: Version | None = None
    """Version that it was asked to pull; set exactly while PULLING."""
    is_waking: bool = False
    """Whether it takes its memory again with this pull."""
    running: dict[ResponseId, None] = field(default_factory=dict)
    """Its unfinished responses, in the order they were submitted."""
    stopping: dict[ResponseId, None] = field(default_factory=dict)
    """Running responses that it was asked to interrupt."""
    aborting: dict[ResponseId, None] = field(default_factory=dict)
    """Aborted responses; the instance has not confirmed it yet."""
    num_tokens: int = 0
    """Reported tokens of its running responses, prompts not included."""
    is_draining: bool = False
    """It gets no more work. When it is idle, it pulls."""
    is_retiring: bool = False
    """It gets no more work. When it is idle, it leaves the fleet."""
    is_lent: bool = False
    """It gets no more work before the next optimizer step. When it is idle, it releases its memory to training."""
    is_parked: bool = False
    """Its layout is not used (`core/fleet/resizing.py`). It gets no work, and leaves its devices when it is idle."""
    is_being_killed: bool = False
    """``KillInstance`` was sent, and ``InstanceLost`` has not arrived."""
    moved_at: float | None = None
    """When migration last took responses from it that it was generating."""
    heard_at: float = 0.0
    """When it last changed its phase, got work or reported."""
    progressed_at: float = 0.0
    """When it last changed its phase, got work, or reported that it had got on with it."""
    num_failed_pulls: int = 0
    """Pulls of published weights that failed since it last pulled what it was asked for."""
    num_preempted: int = 0
    """Preemptions since its start, as far as it has said."""
    num_prefilled: int = 0
    """Tokens that it has prefilled since its start, as far as it has said."""
    losses: Losses = field(default_factory=Losses)

    def move(self, new: InstancePhase, *, now: float) -> None:
        if (self.phase, new) not in LEGAL:
            raise InvalidTransition(f"instance {self.id}", self.phase.value, new.value, [self.losses.last])
        self.is_waking = self.phase is InstancePhase.RELEASED and new is InstancePhase.PULLING
        self.phase = new
        self.heard_at = self.progressed_at = now
        self.is_draining = False
        self.pulling = None

    def hear(self, *, now: float, has_progressed: bool) -> None:
        """Record a sign of life, and whether it got on with its work. What it says while it does something else, or is
        being killed, does not extend that limit."""
        if self.phase is InstancePhase.READY and not self.is_being_killed:
            self.heard_at = now
            if has_progressed:
                self.progressed_at = now

    def prefill(self, num_tokens: int) -> bool:
        """Record how many tokens it has prefilled since its start. Return whether they are more than before."""
        is_more = num_tokens > self.num_prefilled
        self.num_prefilled = max(num_tokens, self.num_prefilled)
        return is_more

    @property
    def accepts_work(self) -> bool:
        is_ready = self.phase is InstancePhase.READY and not self.is_being_killed
        return is_ready and not (self.stopping or self.is_draining or self.is_retiring or self.is_away)

    @property
    def is_away(self) -> bool:
        """Whether it leaves its devices to others and is not started again, nor pulls, for the time being."""
        return self.is_lent or self.is_parked

    @property
    def owes_nothing(self) -> bool:
        """Whether it is ready and has no outstanding interrupt or abort."""
        is_ready = self.phase is InstancePhase.READY and not self.is_being_killed
        return is_ready and not self.stopping and not self.aborting

    @property
    def has_nothing(self) -> bool:
        """Whether it is ready, runs nothing and has no outstanding interrupt or abort."""
        return self.owes_nothing and not self.running

    @property
    def is_idle(self) -> bool:
        """Whether it accepts work, runs nothing and has no outstanding interrupt or abort."""
        return self.accepts_work and not self.running and not self.aborting

    def take(self, responses: list[Response]) -> None:
        """Record that these responses were submitted to it."""
        self.running.update(dict.fromkeys([r.id for r in responses]))
        self.num_tokens += sum([r.length for r in responses])

    def leave(self, response: Response) -> None:
        """Record that a response no longer runs on it."""
        del self.running[response.id]
        self.stopping.pop(response.id, None)
        self.num_tokens -= response.length
        response.instance = None

    def check(self) -> None:
        has_work = bool(self.running or self.aborting)
        assert not has_work or self.phase is InstancePhase.READY, f"instance {self.id} has work while {self.phase}"
        assert self.stopping.keys() <= self.running.keys()
        assert (self.pulling is not None) == (self.phase is InstancePhase.PULLING)
        assert not self.is_draining or self.phase is InstancePhase.READY
        assert not self.is_parked or self.running.keys() == self.stopping.keys()
