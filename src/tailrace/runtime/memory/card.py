"""The GPU that the workers of a run will use, and its memory.

The controller must not open the device itself: a CUDA context takes half a gigabyte and stays until the process ends.
So a short-lived process asks torch, which sees exactly the devices that the workers will see
(``CUDA_VISIBLE_DEVICES``, parts of a card). For ``auto`` it is only started if the NVIDIA driver is installed, so a
machine without a GPU loses no time.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from tailrace.runtime.memory.parts import CONTEXT_BYTES

_LIBRARY = "libnvidia-ml.so.1"
_MOST_S = 120.0
_QUESTION = """
import json, sys, torch
if torch.cuda.is_available():
    device = torch.device(sys.argv[1])
    free, total = torch.cuda.mem_get_info(device)
    print(json.dumps({"name": torch.cuda.get_device_name(device), "total": total, "free": free}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    name: str
    total: int
    """Bytes of the card's memory."""
    free: int
    """Bytes that no process used when the question was answered; the asking process counts as one."""
    count: int = 1
    """Cards like this one over which rollout and training are spread."""

    @property
    def available(self) -> int:
        """Bytes that a run can use, in whole GiB: small differences between two looks do not change the answer."""
        return min(self.total, self.free + CONTEXT_BYTES) // 2**30 * 2**30


def find_card(device: str) -> Card | None:
    """The card of ``model.device``; None on a CPU, or if the card cannot be asked."""
    if device == "cpu" or (device == "auto" and not _has_driver()):
        return None
    return _ask("cuda" if device == "auto" else device)


@cache
def _has_driver() -> bool:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _ask(device: str) -> Card | None:
    command = [sys.executable, "-c", _QUESTION, device]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_S, check=True)
        return Card(**json.loads(asked.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None
