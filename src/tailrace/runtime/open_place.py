"""Opens the place where the workers of a run are: processes of this machine, or actors of a Ray cluster (`runtime`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.config.load import SettingsError
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.runtime.gpus import found_devices
from tailrace.runtime.gpus.mps import gpu_sharing
from tailrace.runtime.launchers.place import WorkerPlace
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.sizing.channel_choice import chosen_channel, refused_channel
from tailrace.sizing.device_plan import DevicePlan, TooFewDevices, demand_of, plan_devices


def check_runtime(settings: Settings) -> None:
    """Raise ``SettingsError`` if the package of the runtime is missing, or this machine has too few devices for the
    local one."""
    if settings.runtime == "ray":
        found = importlib.util.find_spec("ray")
        if found is None or found.origin is None:  # a folder of that name, such as Ray's own in /tmp, is no package
            raise SettingsError("runtime 'ray' needs the package ray: pip install 'tailrace[ray]'")
    else:
        local_plan(settings, trains=settings.schedule.preset != ROLLOUT_ONLY)


def local_plan(settings: Settings, *, trains: bool) -> DevicePlan:
    """The device plan of a run on this machine. ``SettingsError`` if it has too few devices."""
    try:
        plan = plan_devices(demand_of(settings, trains=trains), found_devices.find_devices(settings.model.device))
    except TooFewDevices as error:
        raise SettingsError(str(error)) from error
    if (sentence := refused_channel(settings, plan)) is not None:
        raise SettingsError(sentence)
    return plan


@contextmanager
def open_place(settings: Settings, *, logs: Path, trains: bool, say: Callable[[str], None]) -> Iterator[WorkerPlace]:
    """Make ready what the workers need, while the context is open. ``trains``: whether the run trains."""
    if settings.runtime == "ray":
        from tailrace.runtime.ray.place import open_ray  # Ray is imported only by runs that use it

        with open_ray(settings, logs=logs, trains=trains, say=say) as place:
            yield place
        return
    plan = local_plan(settings, trains=trains)
    for line in (plan.line(), *chosen_channel(settings, plan).lines):
        say(line)
    with gpu_sharing(settings, plan, say=say) as sharing:
        yield WorkerPlace(launch=ProcessLauncher(logs), sharing=sharing, plan=plan)
