"""Where the workers of a run are: how they are started, which devices they get and how they share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tailrace.runtime.gpus.mps import GpuSharing
from tailrace.runtime.launchers.worker import GROWING_SEGMENTS, Launcher
from tailrace.sizing.device_plan import DevicePlan, device_env
from tailrace.workers.sample_transfer import Batch, SentSamples


def _as_they_are(samples: SentSamples) -> Batch:
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    launch: Launcher
    """Starts the workers."""
    sharing: GpuSharing
    """How they share a GPU."""
    plan: DevicePlan
    """Which device does what."""
    names_devices: bool = True
    """Whether workers are told their devices; if not, whoever starts them gives them devices by the plan."""
    pack: Callable[[SentSamples], Batch] = _as_they_are
    """Makes the batch that a trainer is sent, if it does not see the payload store."""

    def rollout_env(self, instance: int) -> dict[str, str]:
        """Environment variables of the worker of this instance."""
        own = device_env(self.plan.of_instance(instance)) if self.names_devices else {}
        return {**self.sharing.rollout, **own}

    def training_env(self, rank: int) -> dict[str, str]:
        """Environment variables of the worker of this rank."""
        own = device_env(self.plan.of_rank(rank)) if self.names_devices else {}
        return {**GROWING_SEGMENTS, **self.sharing.training, **own}

    def judge_env(self, number: int) -> dict[str, str]:
        """Environment variables of this judge. The lengths of its texts differ as those of micro-batches do."""
        own = device_env(self.plan.of_judge(number)) if self.names_devices else {}
        return {**GROWING_SEGMENTS, **self.sharing.judge, **own}
