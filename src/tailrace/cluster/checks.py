"""Checks of numbers that a user gives, with sentences that name the number."""

from __future__ import annotations

import math


def at_least(least: float, **values: float) -> None:
    """``ValueError`` if one of the values is smaller, or no number. Infinity is a number here."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, got {value!r}")


def finite(least: float, **values: float) -> None:
    """``ValueError`` if one of the values is smaller, infinite, or no number."""
    for name, value in values.items():
        if not least <= value < math.inf:
            raise ValueError(f"{name} must be a number from {least:g} on, got {value!r}")


def above_zero(**values: float) -> None:
    """``ValueError`` if one of the values is 0 or less, infinite, or no number."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0 and finite, got {value!r}")
