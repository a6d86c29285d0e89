"""What becomes of instances whose parallel size is not used: they wait with released memory, or end. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.config.memory_release import changes_size
from tailrace.config.settings import Settings
from tailrace.policies.strategies import ParallelSizes

_GIB = 2**30


class Parking(NamedTuple):
    parks: bool
    line: str | None
    """What to tell the user; None: nothing that the user does not know."""


def parking(settings: Settings, *, can_release: bool, needed: int, has: int | None) -> Parking:
    """``can_release``: whether the engine can. ``needed``: bytes of main memory that the run takes on its host if
    instances wait. ``has``: bytes that are available there; None: not known."""
    if not changes_size(settings):
        return Parking(False, _unused(settings))
    why_not = _why_not(settings, can_release=can_release, needed=needed, has=has)
    sizes = ", ".join(str(size) for size in sorted({*settings.rollout.parallel_sizes}))
    if why_not is not None:
        return Parking(False, f"parallel sizes {sizes}: instances of another size end, because {why_not}")
    host = f"about {needed / _GIB:.1f} GiB of main memory with their processes"
    host += "" if has is None else f", of {has / _GIB:.1f} GiB available"
    return Parking(True, f"parallel sizes {sizes}: instances of another size wait with released memory; {host}")


def _unused(settings: Settings) -> str | None:
    """The line of a run that has several sizes and keeps one; None if it has one, or if a preset's line says it."""
    asked = settings.schedule.resolved().parallelism
    if len({*settings.rollout.parallel_sizes}) < 2 or asked is not ParallelSizes.FIXED:
        return None
    return f"rollout.parallel_sizes: the size does not change, because schedule.parallelism is '{asked.value}'"


def _why_not(settings: Settings, *, can_release: bool, needed: int, has: int | None) -> str | None:
    if settings.rollout.park == "never":
        return "rollout.park is 'never'"
    if settings.runtime == "ray":
        return "on Ray a process keeps the GPUs that it reserved"
    if not can_release:
        return "the engine cannot release its memory here"
    if settings.rollout.park == "auto" and has is not None and needed > has:
        return (
            f"with their processes the run needs about {needed / _GIB:.1f} GiB of main memory, and {has / _GIB:.1f} GiB"
            " are available"
        )
    return None
