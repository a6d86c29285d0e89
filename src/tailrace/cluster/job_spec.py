"""What a user says about a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tailrace.cluster.checks import finite
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, TenantId


class StatePart(StrEnum):
    """A part of a job's state that can be moved by itself."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"


Parts = tuple[StatePart, ...]
ALL_PARTS: Parts = tuple(StatePart)


def in_order(parts: Iterable[StatePart]) -> Parts:
    """Return these parts, each once, in the order of ``StatePart``."""
    wanted = set(parts)
    return tuple(part for part in ALL_PARTS if part in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Size of a job's state on its node group, all nodes together."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    """The optimizer's state; with the gradients, if these are not given by themselves."""

    def __post_init__(self) -> None:
        finite(0, weights=self.weights, gradients=self.gradients, optimizer=self.optimizer)

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer

    def of(self, parts: Iterable[StatePart]) -> int:
        """Return the bytes of these parts."""
        sizes = {"weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer}
        return sum(sizes[part] for part in parts)


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
    host_parts: Parts = ()
    """Parts of the state that are never on the devices: an optimizer that steps on the host needs no device."""
    tenant: TenantId = TenantId("default")

    def __post_init__(self) -> None:
        finite(1, train_devices=self.train_devices, steps=self.steps)
        finite(0, rollout_devices=self.rollout_devices)
        if StatePart.WEIGHTS in self.host_parts:
            raise ValueError(f"job {self.id}: its weights must come to the devices, host_parts names {self.host_parts}")

    @property
    def device_parts(self) -> Parts:
        """Parts of the state that can be on the devices."""
        return tuple(part for part in ALL_PARTS if part not in self.host_parts)

    @property
    def alone_s(self) -> float | None:
        """Seconds that the job takes without sharing; None: not known."""
        return None if self.trace is None else self.steps * self.trace.step_s
