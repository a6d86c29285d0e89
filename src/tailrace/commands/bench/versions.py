"""What a measurement ran on: the line to paste into a bug report."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from typing import Any

import torch


def versions(device: torch.device) -> dict[str, Any]:
    is_cuda = device.type == "cuda"
    return {
        "tailrace": version("tailrace"),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if is_cuda else platform.machine(),
        "driver": _driver_version() if is_cuda else None,
        "threads": torch.get_num_threads(),
    }


def _driver_version() -> str | None:
    """Version of the NVIDIA driver; None if ``nvidia-smi`` does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.splitlines()[0].strip() if answer.strip() else None
