"""Parallel sizes from the settings of a run: the layouts between which the core chooses."""

from __future__ import annotations

from dataclasses import replace

from tailrace.config.rollout_settings import RolloutSettings
from tailrace.core.schedule import Coordination, Layout, Parallelism
from tailrace.core.schedule.parallelism import layouts_by_order


def parallelism_of(rollout: RolloutSettings, base: Coordination, *, max_in_flight: int) -> Parallelism:
    """Return the layouts of ``rollout.parallel_sizes``. ``base``: an instance of the size with which the run starts."""
    initial, sizes = rollout.tensor_parallel_size, rollout.parallel_sizes
    if not sizes:
        return Parallelism()
    if initial not in sizes:
        raise ValueError(
            f"rollout.tensor_parallel_size {initial} is the size with which the run starts, so it must be one of"
            f" rollout.parallel_sizes {list(sizes)}"
        )
    layouts = layouts_by_order(rollout.num_instances * initial, sizes, initial)
    return Parallelism(
        layouts=tuple(_filled(layout, base, initial, max_in_flight) for layout in layouts), initial=initial
    )


def _filled(layout: Layout, base: Coordination, initial: int, max_in_flight: int) -> Layout:
    """Return a layout with the numbers of its instances, in proportion to their devices. A profile replaces them."""

    def scaled(number: int) -> int:
        return max(1, number * layout.size // initial) if number else 0

    return replace(
        layout,
        kv_tokens=scaled(base.kv_tokens),
        max_running=scaled(base.max_running),
        max_in_flight=scaled(max_in_flight),
        costs=base.costs,
    )
