"""Which instances and which replicas of the trainer stand on the same devices: such a place is lent as a whole. Pure.

    instance 0  instance 1 | instance 2  instance 3
    replica 0   replica 0  | replica 1   replica 1
    GPU 0       GPU 1      | GPU 2       GPU 3

These are two places: none of the left one uses a device of the right one. With fewer than two nothing can be lent.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.config.parallel_layouts import plain_layouts
from tailrace.config.run_preset import lending_line, no_places, run_preset
from tailrace.config.settings import Settings
from tailrace.core.schedule import SharedPlace
from tailrace.core.schedule.lending import joined_places, places_by_order
from tailrace.policies.strategies import Scaling
from tailrace.sizing.device_plan import DevicePlan


def shared_places(plan: DevicePlan, num_replicas: int, instances: range | None = None) -> tuple[SharedPlace, ...]:
    """Return the places that have both instances and replicas. On a CPU the instances are divided by order.

    ``instances``: those of one parallel size, by their numbers; None: those with which the run starts.
    """
    num_ranks, numbers = len(plan.training), range(len(plan.rollout)) if instances is None else instances
    if not num_ranks or not numbers:
        return ()
    size = num_ranks // num_replicas
    ranks = [range(replica * size, (replica + 1) * size) for replica in range(num_replicas)]
    replicas = [{device for rank in own for device in plan.of_rank(rank)} for own in ranks]
    found = (
        joined_places([set(plan.of_instance(number)) for number in numbers], replicas)
        if plan.devices
        else places_by_order(len(numbers), num_replicas)
    )
    return tuple(replace(place, instances=tuple(numbers[each] for each in place.instances)) for place in found)


def nothing_lent(settings: Settings, plan: DevicePlan) -> str | None:
    """The line of a run whose schedule lends instances, if there are none to lend; None if there are, or if the preset
    leaves lending out anyway."""
    preset = run_preset(settings)
    if preset.lending is Scaling.NEVER:
        return None
    why = no_places(settings)
    layouts = [None, *(layout.instances for layout in plain_layouts(settings.rollout))]
    if why is None and all(len(shared_places(plan, settings.trainer.num_replicas, each)) < 2 for each in layouts):
        why = "there are no two groups of devices that each have an instance and a whole replica"
    return None if why is None else lending_line(settings, why)
