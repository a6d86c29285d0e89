"""Parallel sizes from the settings of a run: the layouts between which the core chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tailrace.config.parallel_profile import ParallelProfile, SizeProfile, read_profile
from tailrace.config.rollout_settings import CostSettings, RolloutSettings
from tailrace.config.settings import Settings
from tailrace.core.schedule import Coordination, Layout, Parallelism
from tailrace.core.schedule.parallelism import layouts_by_order


def parallelism_of(settings: Settings, base: Coordination, *, max_in_flight: int) -> Parallelism:
    """Return the layouts of ``rollout.parallel_sizes``. ``base``: an instance of the size with which the run starts.
    ``ValueError`` if the profile does not fit."""
    rollout = settings.rollout
    if not rollout.parallel_sizes:
        return Parallelism()
    longest = settings.data.max_prompt_length + rollout.max_response_length
    layouts = [
        _in_proportion(layout, base, rollout.tensor_parallel_size, max_in_flight, longest)
        for layout in plain_layouts(rollout)
    ]
    plain = Parallelism(layouts=tuple(layouts), initial=rollout.tensor_parallel_size)
    if rollout.parallel_profile is None:
        return plain
    model = settings.model
    profile = read_profile(
        rollout.parallel_profile, model=model.path, dtype=model.dtype, sizes=sorted({*rollout.parallel_sizes})
    )
    made = _as_measured(plain, profile)
    if small := [layout for layout in made.layouts if layout.kv_tokens < longest]:
        raise ValueError(
            f"rollout.parallel_profile: an instance of size {small[0].size} had a KV cache of {small[0].kv_tokens}"
            f" tokens, which cannot hold one longest response ({longest} tokens with prompt); measure this recipe"
        )
    return made


def plain_layouts(rollout: RolloutSettings) -> tuple[Layout, ...]:
    """Return which instances there are of each of ``rollout.parallel_sizes``; nothing of them is known yet."""
    if not rollout.parallel_sizes:
        return ()
    initial = rollout.tensor_parallel_size
    return layouts_by_order(rollout.num_instances * initial, rollout.parallel_sizes, initial)


def rollout_of(rollout: RolloutSettings, layout: Layout) -> RolloutSettings:
    """Return the settings of the instances of a layout, as if the run had only them."""
    costs = CostSettings(**{name: getattr(layout.costs, name) for name in CostSettings.model_fields})
    numbers = {"max_running": layout.max_running or None, "kv_tokens": layout.kv_tokens or None}
    return rollout.model_copy(
        update={
            "tensor_parallel_size": layout.size,
            "num_instances": layout.count,
            "parallel_sizes": (),
            "costs": costs,
            **numbers,
        }
    )


def settings_by_size(settings: Settings) -> Iterator[Settings]:
    """Yield the settings as if the run had one parallel size, for each of its sizes, in proportion to their devices.
    The size with which it starts comes first."""
    rollout = settings.rollout
    yield settings
    for layout in plain_layouts(rollout):
        if layout.size != rollout.tensor_parallel_size:
            scale = layout.size / rollout.tensor_parallel_size
            numbers = {
                name: None if (number := getattr(rollout, name)) is None else max(1, int(number * scale))
                for name in ("max_running", "kv_tokens")
            }
            sized = {"tensor_parallel_size": layout.size, "num_instances": layout.count, **numbers}
            yield settings.model_copy(update={"rollout": rollout.model_copy(update=sized)})


def _in_proportion(layout: Layout, base: Coordination, initial: int, max_in_flight: int, longest: int) -> Layout:
    """Return a layout with the numbers of its instances, in proportion to their devices. A profile replaces them."""

    def scaled(number: int) -> int:
        return max(1, number * layout.size // initial) if number else 0

    return replace(
        layout,
        kv_tokens=max(longest, scaled(base.kv_tokens)) if base.kv_tokens else 0,
        max_running=scaled(base.max_running),
        max_in_flight=scaled(max_in_flight),
        costs=base.costs,
    )


def _as_measured(plain: Parallelism, profile: ParallelProfile) -> Parallelism:
    """Return the layouts with what was measured of each."""
    found = [(layout, profile.of(layout.size)) for layout in plain.layouts]
    measured = [each for _, each in found if each is not None]
    wakes = [each.wake_s for each in measured if each.wake_s is not None]
    return replace(
        plain,
        layouts=tuple(layout if each is None else _measured(layout, each) for layout, each in found),
        start_s=max((each.start_s for each in measured), default=plain.start_s),
        wake_s=max(wakes, default=plain.wake_s),
    )


def _measured(layout: Layout, profile: SizeProfile) -> Layout:
    return replace(layout, costs=profile.costs, kv_tokens=profile.kv_tokens, max_running=profile.max_running)
