"""The GPUs of this machine that the workers of a run may use.

Looking makes no CUDA context in the controller: it would be one more process on the GPU, and outside of MPS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tailrace.config.device_kind import DRIVER
from tailrace.config.model_settings import ModelSettings
from tailrace.sizing.device_plan import VISIBLE_DEVICES


def find_devices(device: str) -> tuple[str, ...]:
    """GPUs by the names that CUDA_VISIBLE_DEVICES takes; none: the run uses the CPU. ``device``: ``model.device``."""
    if not is_cuda(device):
        return ()
    return visible_devices(device, count=_count(), environ=os.environ)


def visible_devices(device: str, *, count: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The devices that the user lets us see. ``count``: how many torch sees. With `cuda:N` it is the N-th of them."""
    kind, _, index = device.partition(":")
    number = int(index or 0)
    if kind == "cuda":  # if torch sees none, a worker will say so
        count = max(count, number + 1)
    named = environ.get(VISIBLE_DEVICES)
    names = [str(each) for each in range(count)] if named is None else [name.strip() for name in named.split(",")]
    return tuple(names[number : number + 1] if index else names[:count])


def is_cuda(device: str) -> bool:
    """Whether workers compute on CUDA. Imports torch only if there is an NVIDIA driver."""
    if device != "auto":
        return device.startswith("cuda")
    if not DRIVER.exists():
        return False
    import torch  # takes seconds

    return bool(torch.cuda.is_available())


def seen_by_worker(model: ModelSettings) -> ModelSettings:
    """The model's settings for a worker that sees only its own devices: the first of them is the one to use."""
    return model.model_copy(update={"device": "cuda"}) if model.device.startswith("cuda:") else model


def _count() -> int:
    if not DRIVER.exists():
        return 0
    import torch  # takes seconds; asks the driver's library, without a context

    return int(torch.cuda.device_count())
