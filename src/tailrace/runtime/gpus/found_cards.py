"""The GPUs that the workers of a run will use, and their memory.

The controller must not open a device itself: a CUDA context takes half a gigabyte and stays until the process ends. So
a short-lived process asks torch. It sees exactly the devices that the device plan gives to workers, and no others:
those may be full of somebody else's work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.runtime.gpus.found_devices import find_devices
from tailrace.sizing.card import Card
from tailrace.sizing.device_plan import DeviceDemand, TooFewDevices, demand_of, device_env, plan_devices

_MOST_S = 120.0
_QUESTION = """
import json, torch
cards = []
for device in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(device)
    cards.append({"name": torch.cuda.get_device_name(device), "total": total, "free": free})
print(json.dumps(cards))
"""


def find_card(
    settings: Settings,
    *,
    find: Callable[[str], Sequence[str]] = find_devices,
) -> Card | None:
    """The card that a run with these settings will use; None on a CPU, or if the card cannot be asked.

    If the run uses several cards, this is the one with the least memory available, counted as often. On Ray the GPUs of
    this machine stand for those of the cluster, and the run waits until there are as many as it needs.
    """
    demand = demand_of(settings, trains=settings.schedule.preset != ROLLOUT_ONLY)
    cards = ask_cards(_used(demand, find(settings.model.device)))
    if not cards:
        return None
    return replace(min(cards, key=lambda card: card.available), count=max(len(cards), demand.least))


def ask_cards(devices: Sequence[str]) -> list[Card]:
    """The cards with these names; none if they cannot be asked."""
    if not devices:
        return []
    command, env = [sys.executable, "-c", _QUESTION], {**os.environ, **device_env(devices)}
    try:
        asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_MOST_S, check=True)
        return [Card(**card) for card in json.loads(asked.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []


def _used(demand: DeviceDemand, devices: Sequence[str]) -> Sequence[str]:
    """The devices that the plan uses. If there are too few for a plan, all of them: the run is refused, or waits."""
    try:
        return plan_devices(demand, devices).devices
    except TooFewDevices:
        return devices
