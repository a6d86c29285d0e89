"""Which weight channel a run uses, by its device plan. Pure.

CUDA IPC works inside one GPU. So `auto` leaves it to the training worker to try that only if rollout and training are
all on one GPU, and otherwise takes shared memory on one machine: the host's memory holds a version once, each receiver
copies its own slices out of it, and the last version outlives a trainer that dies. The collective channel is taken
only if it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config.settings import Settings
from tailrace.sizing.device_plan import DevicePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelChoice:
    name: str
    """A value of `trainer.weight_channel`."""
    lines: tuple[str, ...] = ()
    """What to tell the user."""


def chosen_channel(settings: Settings, plan: DevicePlan) -> ChannelChoice:
    asked = settings.trainer.weight_channel
    if asked != "auto" or settings.runtime == "ray" or len(plan.policy_devices) <= 1 or not plan.training:
        return ChannelChoice(name=asked)
    why = "rollout and training are on different GPUs" if not plan.shared else "they use several GPUs"
    return ChannelChoice(name="shared-memory", lines=(f"weights go through shared memory, because {why}",))


def refused_channel(settings: Settings, plan: DevicePlan) -> str | None:
    """Why the weight channel that the settings name cannot work; None if it can."""
    asked, num_used = settings.trainer.weight_channel, len(plan.policy_devices)
    if asked == "cuda-ipc" and not num_used:
        return "trainer.weight_channel is 'cuda-ipc', which needs a GPU, and none was found: use 'auto'"
    if asked == "cuda-ipc" and plan.training and num_used > 1:
        return (
            f"trainer.weight_channel is 'cuda-ipc', which works inside one GPU, and the run uses {num_used}:"
            " use 'shared-memory'"
        )
    if asked == "collective" and plan.shared:
        return (
            f"trainer.weight_channel is 'collective', but rollout and training share {len(plan.shared)} GPUs, and NCCL"
            " takes no two processes on one GPU: use 'shared-memory', or schedule.placement 'disaggregated'"
        )
    return None
