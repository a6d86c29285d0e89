"""Faults of a simulated run. The world causes them; the coordinator only sees their effects."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFails:
    """The instance fails, and its unreported work is lost."""

    at: float
    instance: InstanceId
    down_s: float = 0.0
    """Seconds before it can be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSlows:
    """Everything on the instance takes ``factor`` times as long."""

    at: float
    until: float
    instance: InstanceId
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLost:
    """The instance's next message is lost and arrives only when it is repeated; later ones queue behind it."""

    at: float
    instance: InstanceId
    repeat_s: float


Fault = InstanceFails | InstanceSlows | MessageLost
