"""Lending: for the rest of a round some instances leave their devices, and the trainer computes gradients there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlace:
    """Devices on which some instances and some replicas of the trainer stand, and no others. It is lent as a whole."""

    instances: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """Settings of lending."""

    strategy: str = "never"
    """Name of the strategy that chooses when instances are lent (`policies/strategies.py`)."""
    places: tuple[SharedPlace, ...] = ()
    """The places of the run that have instances and replicas. Fewer than two: nothing can be lent."""
    at: float = 0.4
    """Strategy `fixed`: completed part of the batch from which on instances are lent."""
    share: float = 0.5
    """Largest part of the instances that is lent."""
    max_length: int = 0
    """Most tokens of a response."""

    def __post_init__(self) -> None:
        if not 0 <= self.at <= 1 or not 0 < self.share < 1:
            raise ValueError(f"at must be from 0 to 1 and share between 0 and 1, got {self.at} and {self.share}")


def places_by_order(num_instances: int, num_replicas: int) -> tuple[SharedPlace, ...]:
    """Return the places of a CPU, or of imagined devices: as many as there are of the fewer kind."""
    count = min(num_instances, num_replicas)
    return joined_places(_spread(num_instances, count), _spread(num_replicas, count))


def recorded_places(
    known: tuple[SharedPlace, ...], *, num_instances: int, num_replicas: int, is_apart: bool
) -> tuple[SharedPlace, ...]:
    """Return the places of a recorded run, of which another schedule could lend; none, if nothing can be lent.

    ``known``: those in its journal. A run that lends nothing has none there; its places are assumed by order.
    ``is_apart``: whether rollout and training have devices of their own.
    """
    if is_apart:
        return ()
    places = known or places_by_order(num_instances, num_replicas)
    return places if len(places) > 1 else ()


def joined_places(instances: Sequence[set[str]], replicas: Sequence[set[str]]) -> tuple[SharedPlace, ...]:
    """Return the places that have both instances and replicas, given the devices of each."""
    return tuple(
        SharedPlace(instances=tuple(mine), replicas=tuple(theirs))
        for mine, theirs in _joined(instances, replicas)
        if mine and theirs
    )


def _spread(number: int, count: int) -> list[set[str]]:
    return [{str(each * count // number)} for each in range(number)]


def _joined(instances: Sequence[set[str]], replicas: Sequence[set[str]]) -> list[tuple[list[int], list[int]]]:
    """Join what shares a device, directly or through others. Return the numbers of instances and replicas of each
    part."""
    parts: list[tuple[set[str], list[int], list[int]]] = []
    for is_replica, kind in ((False, instances), (True, replicas)):
        for number, devices in enumerate(kind):
            touching = [part for part in parts if part[0] & devices]
            parts = [part for part in parts if not part[0] & devices]
            own: tuple[list[int], list[int]] = ([], [number]) if is_replica else ([number], [])
            mine = sorted(each for part in touching for each in part[1]) + own[0]
            theirs = sorted(each for part in touching for each in part[2]) + own[1]
            parts.append((devices.union(*(part[0] for part in touching)), mine, theirs))
    return sorted((mine, theirs) for _, mine, theirs in parts)
