"""What a user says about a job."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.checks import finite
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Size of a job's state on its node group, all nodes together."""

    weights: int = 0
    optimizer: int = 0
    """Gradients and the optimizer's state."""

    def __post_init__(self) -> None:
        finite(0, weights=self.weights, optimizer=self.optimizer)

    @property
    def total(self) -> int:
        return self.weights + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    id: JobId
    train_devices: int
    """Devices of a node group that the job can train on. It shares groups with jobs of the same number."""
    rollout_devices: int = 0
    """Devices that generate responses. They are the job's own as long as it runs."""
    steps: int = 1
    """Optimizer steps."""
    trace: DemandTrace | None = None
    """Demand known from an earlier run; None: the job is profiled first."""
    state: StateBytes = StateBytes()
    tenant: TenantId = TenantId("default")

    def __post_init__(self) -> None:
        finite(1, train_devices=self.train_devices, steps=self.steps)
        finite(0, rollout_devices=self.rollout_devices)

    @property
    def alone_s(self) -> float | None:
        """Seconds that the job takes without sharing; None: not known."""
        return None if self.trace is None else self.steps * self.trace.step_s
