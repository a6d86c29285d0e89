"""Rules between the settings of parallel sizes and others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.settings import Settings
from tailrace.policies.strategies import ParallelSizes


def parallel_rules(settings: Settings) -> Iterator[str]:
    rollout = settings.rollout
    sizes = sorted({*rollout.parallel_sizes})
    horizon, default = settings.schedule.parallel_horizon, type(settings.schedule).model_fields["parallel_horizon"]
    if horizon != default.default and settings.schedule.resolved().parallelism is ParallelSizes.FIXED:
        yield (
            f"schedule.parallel_horizon is {horizon!r} for changes of the parallel size, and schedule.parallelism is"
            " 'fixed'; set it to 'preemptions' or 'forecast', or leave the horizon out"
        )
    if not sizes:
        if rollout.parallel_profile is not None:
            yield "rollout.parallel_profile is the speed of rollout.parallel_sizes, and there are none: give them"
        if rollout.park != "auto":
            yield (
                f"rollout.park is '{rollout.park}' for instances of other rollout.parallel_sizes, and there are none:"
                " give them, or leave it out"
            )
        return
    if rollout.from_run is not None:
        yield "rollout.parallel_sizes: saved responses (rollout.from_run) need no devices; leave it out"
    if broken := list(_sizes(rollout, sizes)):
        yield from broken
        return
    yield from _cache(settings, sizes)
    yield from _ray(settings)


def _sizes(rollout: RolloutSettings, sizes: list[int]) -> Iterator[str]:
    """Sizes must fill the same devices, so that an instance never lies across two larger ones."""
    initial, given = rollout.tensor_parallel_size, list(rollout.parallel_sizes)
    if initial not in sizes:
        yield (
            f"rollout.tensor_parallel_size {initial} is the size with which the run starts, so it must be one of"
            f" rollout.parallel_sizes {given}"
        )
    for smaller, larger in pairwise(sizes):
        if larger % smaller:
            yield (
                f"rollout.parallel_sizes {given}: {larger} is no multiple of {smaller}, so they would not fill the same"
                " devices"
            )
    num_devices = rollout.num_instances * initial
    if num_devices % sizes[-1]:
        one, has = ("", "has") if rollout.num_instances == 1 else ("s", "have")
        yield (
            f"rollout.parallel_sizes {given}: {rollout.num_instances} instance{one} of size {initial}"
            f" (rollout.num_instances, rollout.tensor_parallel_size) {has} {num_devices}"
            f" device{'' if num_devices == 1 else 's'}, which instances of size {sizes[-1]} do not fill"
        )


def _cache(settings: Settings, sizes: list[int]) -> Iterator[str]:
    rollout = settings.rollout
    longest = settings.data.max_prompt_length + rollout.max_response_length
    if rollout.kv_tokens is None or rollout.kv_tokens < longest:
        return
    least = rollout.kv_tokens * sizes[0] // rollout.tensor_parallel_size
    if least < longest and rollout.parallel_profile is None:
        yield (
            f"rollout.kv_tokens ({rollout.kv_tokens}) is for an instance of size {rollout.tensor_parallel_size}; one of"
            f" size {sizes[0]} has {least}, which cannot hold one longest response ({longest} tokens with prompt)"
        )


def _ray(settings: Settings) -> Iterator[str]:
    if settings.runtime != "ray":
        return
    if settings.rollout.park == "always":
        yield (
            "rollout.park is 'always', but on Ray a process keeps the GPUs that it reserved: instances of another"
            " parallel size must end; set it to 'auto'"
        )
    if settings.ray.rollout.gpus is not None:
        yield (
            f"ray.rollout.gpus is {settings.ray.rollout.gpus:g} for every instance, but instances of different"
            " rollout.parallel_sizes reserve different numbers; leave it out"
        )
