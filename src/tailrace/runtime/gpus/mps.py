"""How rollout, training and judges share a GPU: with NVIDIA's Multi-Process Service (MPS), or by time-slicing.

With time-slicing the GPU belongs to one process at a time. With MPS the kernels of all processes run at the same time.
``decide`` chooses from what was found on the machine; ``gpu_sharing`` looks, decides, acts and says one line.

The controller makes no CUDA context: it would be a process more on the GPU, and outside MPS.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tailrace.config.settings import Settings
from tailrace.runtime.gpus.mps_daemon import PIPES, MpsDaemon, MpsFailed, ask, has_failed_server
from tailrace.sizing.device_plan import DevicePlan

CONTROL = "nvidia-cuda-mps-control"
_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
_DEFAULT_PIPES = "/tmp/nvidia-mps"  # where NVIDIA's daemon has its pipes unless told otherwise
_NORMAL, _BELOW_NORMAL = "0", "1"
ROLLOUT, TRAINING, JUDGE = "rollout", "training", "judge"
"""Kinds of workers that use GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is of MPS on the machine."""

    control: str | None
    """Path of the program that controls the daemon."""
    pipes: str
    """Folder in which CUDA programs look for a daemon."""
    is_set: bool
    """Whether the user named that folder."""
    has_daemon: bool
    """Whether a daemon's pipe is in it."""
    is_answering: bool
    """Whether that daemon answers; unknown without the program: False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingChoice:
    is_mps: bool
    starts: bool = False
    """Whether the run starts a daemon of its own."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSharing:
    """What a run must know about it."""

    rollout: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of rollout workers."""
    training: Mapping[str, str] = field(default_factory=dict)
    judge: Mapping[str, str] = field(default_factory=dict)
    is_faulty: Callable[[], bool] | None = None
    """Whether new workers cannot use the GPU until all others have ended; it may take seconds to find out. None: that
    cannot happen, or cannot be found out.

    A process that is killed while its kernels run can take the MPS server along. The server then waits for its other
    clients to end, and an idle client does not notice."""


def decide(found: Found, *, may_start: bool) -> SharingChoice:
    """A daemon that is there is used. Otherwise the run starts its own, if it may and can."""
    if found.has_daemon and (found.is_answering or found.control is None):
        return SharingChoice(is_mps=True, reason=f"the daemon of {found.pipes}")
    if found.has_daemon:
        return SharingChoice(is_mps=False, reason=f"the MPS daemon of {found.pipes} does not answer")
    if found.is_set:
        return SharingChoice(is_mps=False, reason=f"{PIPES} is {found.pipes}, and no MPS daemon is there")
    if not may_start:
        return SharingChoice(is_mps=False, reason="schedule.mps is 'never'")
    if found.control is None:
        return SharingChoice(is_mps=False, reason=f"{CONTROL} is not on PATH")
    return SharingChoice(is_mps=True, starts=True)


@contextmanager
def gpu_sharing(settings: Settings, plan: DevicePlan, *, say: Callable[[str], None]) -> Iterator[GpuSharing]:
    """Share GPUs as well as the machine allows, while the context is open."""
    who = sharers(settings, plan)
    if len(who) < 2:
        yield GpuSharing()
        return
    found = look()
    choice, daemon = decide(found, may_start=settings.schedule.mps == "auto"), None
    if choice.starts:
        try:
            assert found.control is not None
            daemon = MpsDaemon.start(found.control, device=_index(settings.model.device))
        except MpsFailed as error:
            choice = SharingChoice(is_mps=False, reason=f"MPS does not work here ({error})")
    try:
        say(_line(choice, who))
        yield sharing(choice, {} if daemon is None else daemon.env, found, who)
    finally:
        if daemon is not None:
            daemon.stop()


def sharers(settings: Settings, plan: DevicePlan) -> tuple[str, ...]:
    """Kinds of workers of which several compute on one GPU at the same time; none if there are none."""
    judged = set(plan.judged)
    trains_beside_rollout = settings.schedule.placement == "shared" and bool(plan.shared)
    # With `colocated` rollout and training take turns, but a judge computes beside both.
    is_training = trains_beside_rollout or any(judged & set(own) for own in plan.training)
    is_rollout = trains_beside_rollout or any(judged & set(own) for own in plan.rollout)
    found = {ROLLOUT: is_rollout, TRAINING: is_training, JUDGE: bool(judged)}
    return tuple(kind for kind, shares in found.items() if shares)


def look() -> Found:
    control, pipes = shutil.which(CONTROL), os.environ.get(PIPES)
    folder = _DEFAULT_PIPES if pipes is None else pipes
    has_daemon = Path(folder, "control").exists()
    return Found(
        control=control,
        pipes=folder,
        is_set=pipes is not None,
        has_daemon=has_daemon,
        is_answering=has_daemon and control is not None and ask(control, "get_server_list", folder) is not None,
    )


def sharing(choice: SharingChoice, env: Mapping[str, str], found: Found, who: Sequence[str]) -> GpuSharing:
    """``env``: variables of all clients of the run's own daemon. ``who``: kinds of workers that share a GPU; the others
    stay outside MPS, where a failure of its server does not reach them."""
    if not choice.is_mps:
        return GpuSharing()
    control, pipes = found.control, env.get(PIPES, found.pipes)
    is_faulty = None if control is None else partial(has_failed_server, control, pipes)
    # A decode step is many short kernels, each of which waits for the one before: behind a long kernel of training or
    # of a judge each of them would wait, and generation would slow down many times. Those have few, long kernels and
    # lose little if short ones go first.
    priorities = {ROLLOUT: _NORMAL, TRAINING: _BELOW_NORMAL, JUDGE: _BELOW_NORMAL}
    if _PRIORITY in os.environ:
        clients = {kind: dict(env) for kind in who}
    else:
        clients = {kind: {**env, _PRIORITY: priorities[kind]} for kind in who}
    rollout, training, judge = (clients.get(kind, {}) for kind in (ROLLOUT, TRAINING, JUDGE))
    return GpuSharing(rollout=rollout, training=training, judge=judge, is_faulty=is_faulty)


def _line(choice: SharingChoice, who: Sequence[str]) -> str:
    how = "with MPS" if choice.is_mps else "by time-slicing"
    names = f"{', '.join(who[:-1])} and {who[-1]}"
    return f"{names} share the GPU {how}" + (f": {choice.reason}" if choice.reason else "")


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)
