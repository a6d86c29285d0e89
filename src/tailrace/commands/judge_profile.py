"""The ``profile --judge`` command: measure what passes of a judge need, by the length of its texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.runtime.inputs.sources import check_device
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT
from tailrace.sizing.offload_profile_file import CPU, Measured
from tailrace.sizing.resident_layers import OffloadProfile

_GIB, _MIB = 2**30, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeProfiled:
    profile: OffloadProfile
    measured: Measured

    def lines(self) -> list[str]:
        profile = self.profile
        weights = profile.outside_bytes + profile.num_layers * profile.layer_bytes
        on_cpu = self.measured.device == CPU
        copied = "" if on_cpu else f"; a layer is copied in {profile.copy_s:.2e} s"
        rows = [
            f"{point.length:>7} {point.working_bytes / _MIB:>12,.0f} {point.layer_s:>12.3e}" for point in profile.points
        ]
        return [
            f"{self.measured.model}, {self.measured.dtype}, on {self.measured.device}",
            f"{profile.num_layers} layers, {weights / _GIB:.2f} GiB with what is outside them{copied}",
            " length  memory: MiB  s per layer",
            *rows,
            *(["note: memory of a pass is measured on a GPU only; on a CPU it counts as 0"] if on_cpu else []),
        ]


def profile_judge(settings: Settings, *, lengths: Sequence[int] | None = None) -> JudgeProfiled:
    """``lengths``: tokens of the texts; None: from 1,024 to 32,768, as far as model and memory allow. ``SettingsError``
    if there is no judge to measure."""
    judge = settings.reward.judge
    if judge.model is None:
        raise SettingsError("--judge measures reward.judge.model, and it is not set: set it, or give a model")
    if judge.url is not None:
        raise SettingsError(
            f"--judge measures a judge of this machine, and the judge is at reward.judge.url {judge.url}"
        )
    os.environ.update(OPENMP_PASSIVE_WAIT)  # as in a worker; must be set before torch is loaded
    try:
        check_device(settings.model.device)
        return _measure(settings, judge.model, lengths)
    except (OSError, ValueError) as error:
        raise SettingsError(str(error)) from error


def _measure(settings: Settings, name: str, lengths: Sequence[int] | None) -> JudgeProfiled:
    import torch  # heavy: waits until the settings are known to be good

    from tailrace.judge.model import load_judge_model
    from tailrace.judge.profiling import LENGTHS, measure_profile
    from tailrace.trainer.model.model_files import resolve_device

    judge, path = settings.reward.judge, resolve_model(name)
    device, dtype = resolve_device(settings.model.device), judge.dtype or settings.model.dtype
    if device.type == "cpu":
        torch.set_num_threads(judge.threads or 1)
    model = load_judge_model(
        path, device, dtype=getattr(torch, dtype), has_reward_head=not judge.answers, num_resident=0
    )
    budget = int(judge.memory_gb * _GIB) if isinstance(judge.memory_gb, float) else None  # of a half nothing is known
    try:
        profile = measure_profile(model, lengths or LENGTHS, budget_bytes=budget)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"memory is too short for the shortest text: {str(error).splitlines()[0]}") from error
    used = torch.cuda.get_device_name(device) if device.type == "cuda" else CPU
    return JudgeProfiled(profile=profile, measured=Measured(model=name, dtype=dtype, device=used))
