"""Whether workers compute on a CPU, as far as ``model.device`` and this machine tell.

Does not import torch, which takes seconds.
"""

from __future__ import annotations

from pathlib import Path

DRIVER = Path("/dev/nvidiactl")
"""Exists if this machine has NVIDIA's driver."""


def is_cpu(device: str) -> bool:
    """``device``: as ``model.device`` names it."""
    return device == "cpu" or (device == "auto" and not DRIVER.exists())
