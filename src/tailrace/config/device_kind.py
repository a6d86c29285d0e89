"""Whether workers compute on a CPU: as far as ``model.device`` and this machine tell, or as a run has recorded it.

Does not import torch, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DRIVER = Path("/dev/nvidiactl")
"""Exists if this machine has NVIDIA's driver."""


def is_cpu(device: str) -> bool:
    """``device``: as ``model.device`` names it."""
    return device == "cpu" or (device == "auto" and not DRIVER.exists())


def recorded_device(config: Mapping[str, Any]) -> str:
    """Return ``model.device`` of a run, from its ``config.json``, whatever machine reads it.

    A run with "auto" was on a GPU if it has ``rollout.kv_tokens``: a run on a CPU only has it if the user gave it.
    """
    device = str(config.get("model", {}).get("device", "cpu"))
    if device != "auto":
        return device
    return "cpu" if config.get("rollout", {}).get("kv_tokens") is None else "cuda"
