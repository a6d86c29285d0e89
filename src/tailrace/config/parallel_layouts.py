"""Parallel sizes from the settings of a run: the layouts between which the core chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tailrace.config.complaints import SettingsError
from tailrace.config.parallel_profile import ParallelProfile, SizeProfile, read_profile
from tailrace.config.rollout_settings import CostSettings, RolloutSettings
from tailrace.config.settings import Settings
from tailrace.core.schedule import Coordination, Layout, Parallelism
from tailrace.core.schedule.parallelism import layouts_by_order

_NUMBERS = ("max_running", "kv_tokens")
"""What an instance has more of if it has more devices. A profile says how much, unless the user does."""


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
    if (profile := profile_of(settings)) is None:
        return plain
    made = _as_measured(plain, profile, rollout)
    if small := [layout for layout in made.layouts if layout.kv_tokens < longest]:
        raise ValueError(
            f"rollout.parallel_profile: an instance of size {small[0].size} had a KV cache of {small[0].kv_tokens}"
            f" tokens, which cannot hold one longest response ({longest} tokens with prompt); measure this recipe"
        )
    return made


def profile_of(settings: Settings) -> ParallelProfile | None:
    """Return what was measured of the run's sizes; None: nothing. ``ValueError`` if the profile does not fit."""
    rollout, model = settings.rollout, settings.model
    if rollout.parallel_profile is None:
        return None
    return read_profile(
        rollout.parallel_profile,
        model=model.path,
        dtype=model.dtype,
        sizes=sorted({*rollout.parallel_sizes}),
        engine=None if rollout.engine == "auto" else rollout.engine,
        is_cpu=None if model.device == "auto" else model.device == "cpu",
    )


def with_profiled_numbers(settings: Settings) -> Settings:
    """Return the settings with the KV cache and the most running responses that the profile has of the size with which
    the run starts, where the user gave none. ``SettingsError`` if the profile does not fit."""
    rollout = settings.rollout
    try:
        profile = profile_of(settings)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if profile is None or (first := profile.of(rollout.tensor_parallel_size)) is None:
        return settings
    found = {name: getattr(first, name) for name in _NUMBERS if getattr(rollout, name) is None}
    return settings.model_copy(update={"rollout": rollout.model_copy(update=found)})


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
    """Yield the settings as if the run had one parallel size, for each of its sizes: as measured, or in proportion to
    their devices. The size with which it starts comes first."""
    rollout, profile = settings.rollout, profile_of(settings)
    yield settings
    for layout in plain_layouts(rollout):
        if layout.size != rollout.tensor_parallel_size:
            scale = layout.size / rollout.tensor_parallel_size
            numbers = {
                name: None if (number := getattr(rollout, name)) is None else max(1, int(number * scale))
                for name in _NUMBERS
            }
            numbers |= _profiled(rollout, profile, layout.size)
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


def _profiled(rollout: RolloutSettings, profile: ParallelProfile | None, size: int) -> dict[str, int]:
    """Return the numbers of a size that were measured. A number that the user gave for the first size counts, in
    proportion, also for the others."""
    if profile is None or (measured := profile.of(size)) is None:
        return {}
    first = profile.of(rollout.tensor_parallel_size)
    return {
        name: getattr(measured, name)
        for name in _NUMBERS
        if getattr(rollout, name) in (None, getattr(first, name, None))
    }


def _as_measured(plain: Parallelism, profile: ParallelProfile, rollout: RolloutSettings) -> Parallelism:
    """Return the layouts with what was measured of each."""
    found = [(layout, profile.of(layout.size)) for layout in plain.layouts]
    measured = [each for _, each in found if each is not None]
    wakes = [each.wake_s for each in measured if each.wake_s is not None]
    return replace(
        plain,
        layouts=tuple(
            layout if each is None else _measured(layout, each, _profiled(rollout, profile, layout.size))
            for layout, each in found
        ),
        start_s=max((each.start_s for each in measured), default=plain.start_s),
        wake_s=max(wakes, default=plain.wake_s),
    )


def _measured(layout: Layout, profile: SizeProfile, numbers: Mapping[str, int]) -> Layout:
    """``numbers``: those of the profile that count."""
    return replace(
        layout,
        costs=profile.costs,
        is_measured=True,
        kv_tokens=numbers.get("kv_tokens", layout.kv_tokens),
        max_running=numbers.get("max_running", layout.max_running),
    )
