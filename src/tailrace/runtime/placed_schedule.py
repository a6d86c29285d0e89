"""What a schedule takes from the place of a run: which instances can be lent to training, and whether instances of
other parallel sizes wait with released memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tailrace.config.memory_release import changes_size, may_lend
from tailrace.config.settings import Settings
from tailrace.core.schedule import Lending, Schedule, SharedPlace
from tailrace.engines.registry import ENGINES, engine_name, with_chosen_engine
from tailrace.sizing.device_plan import DevicePlan
from tailrace.sizing.memory_plan import plan
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parking import Parking, parking
from tailrace.sizing.shared_places import nothing_lent, shared_places

_MEMORY = Path("/proc/meminfo")


def placed(
    schedule: Schedule, settings: Settings, devices: DevicePlan, *, model: Path, say: Callable[[str], None]
) -> Schedule:
    """Return the schedule for these devices."""
    has = parked(settings, devices, model=model)
    if has.line is not None:
        say(has.line)
    schedule = replace(schedule, parallelism=replace(schedule.parallelism, parks=has.parks))
    return schedule if schedule.lending.strategy == Lending().strategy else _lending(schedule, settings, devices, say)


def parked(settings: Settings, devices: DevicePlan, *, model: Path) -> Parking:
    """Decide whether instances of other parallel sizes wait. ``model``: directory of the model."""
    if not changes_size(settings):
        return parking(settings, can_release=False, needed=0, has=None)
    engine = ENGINES[engine_name(with_chosen_engine(settings, model))]
    can_release = engine.capabilities_on(settings.model.device).releases_memory
    return parking(settings, can_release=can_release, needed=_needed(settings, devices, model), has=_available())


def _lending(schedule: Schedule, settings: Settings, devices: DevicePlan, say: Callable[[str], None]) -> Schedule:
    def places(instances: range | None = None) -> tuple[SharedPlace, ...]:
        return shared_places(devices, settings.trainer.num_replicas, instances) if may_lend(settings) else ()

    known, first = schedule.parallelism, places()
    if (line := nothing_lent(settings, devices)) is not None:
        say(line)
    layouts = tuple(replace(layout, places=places(layout.instances)) for layout in known.layouts)
    lending = replace(schedule.lending, places=first)
    return replace(schedule, lending=lending, parallelism=replace(known, layouts=layouts))


def _needed(settings: Settings, devices: DevicePlan, model: Path) -> int:
    """Bytes of main memory that the run takes on its host; 0 if the sizes of the model are not known."""
    try:
        shape = ModelShape.read(model)
    except ValueError:
        return 0
    is_cuda = bool(devices.devices)
    memory = plan(shape, settings, is_cuda=is_cuda, num_devices=max(1, len(devices.devices)))
    return max(host.num_bytes for host in memory.hosts) if memory.hosts else memory.num_bytes


def _available() -> int | None:
    """Bytes of main memory that are available; None where the system does not say."""
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None
