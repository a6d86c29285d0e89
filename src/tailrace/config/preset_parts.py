"""Parts of a preset that are left out where they cannot work, each with a line that says why.

A preset may bring more than a run has use for: `rollpacker` lends instances to training, and a trainer with one replica
has no use for them. What the user asks for stays, and is refused if it cannot work, as with every preset. Only lending
that finds nothing to lend is left out with a line also then (`sizing/shared_places.py`): the rest works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from tailrace.config.presets import Preset
from tailrace.core.outcomes import Part
from tailrace.core.schedule import Leftovers, Placement, Schedule, Stream
from tailrace.policies.strategies import ParallelSizes, Scaling, Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What decides whether parts of a preset can work. A reason is a clause behind "because"; None: there is none."""

    placement: Placement
    no_pieces: str | None = None
    """Why a batch cannot be trained in pieces."""
    no_places: str | None = None
    """Why no instance can be lent to training."""
    no_sizes: str | None = None
    """Why there is only one parallel size."""
    no_tests: str | None = None
    """Why limits of test cases cannot adapt."""
    no_offload: str | None = None
    """Why no layer of a judge can lie in host memory."""

    @classmethod
    def recorded(cls, schedule: Schedule) -> Circumstances:
        """Return those of a schedule from a journal, which is simulated under another preset."""
        has_tests, has_judge = (part in schedule.score_parts for part in (Part.TESTS, Part.JUDGE))
        is_adaptive = schedule.case_time.strategy == Timeouts.ADAPTIVE.value
        seconds = "the journal does not tell the seconds of every test case"
        return cls(
            placement=schedule.placement,
            no_places=None
            if len(schedule.lending.places) > 1
            else "the journal does not tell which instances and replicas share their devices",
            no_sizes=None if len(schedule.parallelism.layouts) > 1 else "the journal has one parallel size",
            no_tests=None if is_adaptive else seconds if has_tests else "no response was scored by test cases",
            no_offload="the judge computes as it did in the journal" if has_judge else "there was no judge",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A part that is left out."""

    name: str
    """The field of ``Preset``."""
    what: str
    why: str

    def line(self, whose: str) -> str:
        """``whose``: the preset that brings the part, or the setting that asks for it."""
        return f"{whose}: without {self.what}, because {self.why}"


Obstacle = Callable[[Preset, Circumstances], str | None]


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of ``Preset`` that may be left out."""

    name: str
    off: Any
    """The value without it."""
    what: str
    obstacle: Obstacle
    """Returns why it cannot work; None if it can."""


def _pieces(preset: Preset, given: Circumstances) -> str | None:
    if preset.leftovers is Leftovers.KEEP:
        return "'keep' has no rounds and trains beside rollout anyway (schedule.leftovers)"
    if given.placement is Placement.COLOCATED and preset.lending is Scaling.NEVER:
        return "colocated training waits until all instances have left its devices (schedule.placement)"
    return given.no_pieces


def _places(preset: Preset, given: Circumstances) -> str | None:
    if preset.stream is Stream.NEVER:
        return "no step is streamed"
    if preset.rounds_ahead:
        return "the next round would begin before lent instances come back (schedule.rounds_ahead)"
    return given.no_places


def _sizes(preset: Preset, given: Circumstances) -> str | None:
    return "'keep' has no rounds (schedule.leftovers)" if preset.leftovers is Leftovers.KEEP else given.no_sizes


LENDING = "lent instances"
_PARTS = (
    _Part("stream", Stream.NEVER, "streamed steps", _pieces),
    _Part("lending", Scaling.NEVER, LENDING, _places),
    _Part("parallelism", ParallelSizes.FIXED, "changes of the parallel size", _sizes),
    _Part("timeouts", Timeouts.FIXED, "adaptive limits of test cases", lambda preset, given: given.no_tests),
    _Part("offloads_judge", False, "layers of a judge in host memory", lambda preset, given: given.no_offload),
)
NAMES = tuple(part.name for part in _PARTS)
"""The fields of ``Preset`` that may be left out."""


def fitted(preset: Preset, asked: Collection[str], given: Circumstances) -> tuple[Preset, tuple[LeftOut, ...]]:
    """Return the preset without the parts that cannot work, and these parts in a fixed order.

    ``asked``: fields that the user gave; they stay. One part may need another, so the search goes on until nothing is
    left out any more.
    """
    found: dict[str, LeftOut] = {}
    while preset.leaves_out:
        before = len(found)
        for part in _PARTS:
            if part.name in asked or getattr(preset, part.name) == part.off:
                continue
            if (why := part.obstacle(preset, given)) is not None:
                found[part.name] = LeftOut(name=part.name, what=part.what, why=why)
                without: dict[str, Any] = {part.name: part.off}
                preset = replace(preset, **without)
        if len(found) == before:
            break
    return preset, tuple(found[name] for name in NAMES if name in found)
