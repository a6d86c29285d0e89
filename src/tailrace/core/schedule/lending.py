"""Lending: for the rest of a round some instances leave their devices, and the trainer computes gradients there."""

from __future__ import annotations

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
