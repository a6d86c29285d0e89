"""Accuracy of a schedule beside that of `sync` after as many optimizer steps, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

LEAST_DIFFERENCE = -0.05
"""The 95 % interval of the difference to `sync` has to lie above it."""
_STUDENT_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles for 1, 2, ... degrees of freedom."""


def accuracy_beside_sync(schedule: str, rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each evaluation set; ``rows`` are those of `tailrace compare` over all seeds, in the same order for each."""
    sets = next(row["accuracy"] for row in rows if row["schedule"] == schedule)
    return {name: _difference(_after(rows, schedule, name), _after(rows, "sync", name)) for name in sets}


def shown(found: dict[str, Any]) -> str:
    text = f"{found['after_mean']:.3f} {found['difference_to_sync']:+.3f}"
    if found["interval_95"] is not None:
        low, high = found["interval_95"]
        text += f" [{low:+.3f}, {high:+.3f}]"
    return text


def _after(rows: Sequence[dict[str, Any]], schedule: str, set_name: str) -> list[float]:
    return [float(row["accuracy"][set_name]["after"]) for row in rows if row["schedule"] == schedule]


def _difference(after: list[float], sync: list[float]) -> dict[str, Any]:
    differences = [mine - theirs for mine, theirs in zip(after, sync, strict=True)]
    mean, half = fmean(differences), _half_width(differences)
    return {
        "after_mean": fmean(after),
        "difference_to_sync": mean,
        "interval_95": None if half is None else [mean - half, mean + half],
        "differences": differences,
    }


def _half_width(values: list[float]) -> float | None:
    """Of the 95 % interval of the mean; one value has none."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    return _STUDENT_T_975[min(freedom, len(_STUDENT_T_975)) - 1] * stdev(values) / len(values) ** 0.5
