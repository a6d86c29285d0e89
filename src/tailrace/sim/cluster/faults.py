"""Faults of a simulated cluster. The world causes them; the scheduler only sees their effects."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.ids import JobId, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFails:
    """The node is lost with everything in its memory, and returns empty after ``down_s``."""

    at: float
    node: NodeId
    down_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCrashes:
    """The job fails for good. Nothing happens if it has not been submitted yet, or is over."""

    at: float
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSlows:
    """The first phase of the job that starts after ``at`` takes ``factor`` times as long."""

    at: float
    job: JobId
    factor: float = 10.0


Fault = NodeFails | JobCrashes | PhaseSlows
