"""The figures of several sets of rules side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.sim.cluster.result import ClusterResult

_HEADING = (
    "rules",
    "makespan {unit}",
    "over first",
    "wait p50",
    "wait p90",
    "wait max",
    "slowdown",
    "worst",
    "device-{unit}/step",
    "alone",
    "colocated",
    "saved",
    "switches/step",
    "TB moved",
    "utilisation",
)


_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_LEAST = 2.0
"""A unit is used if the first makespan is at least this many of them. Seconds are used for anything shorter."""


def lines(results: Sequence[ClusterResult]) -> list[str]:
    """Return a table with one row for each result. Makespans are compared with the first one."""
    longest_s = results[0].figures.makespan_s
    unit, unit_s = next((each for each in _UNITS if longest_s >= _LEAST * each[1]), _UNITS[-1])
    heading = tuple(cell.format(unit=unit) for cell in _HEADING)
    rows = [heading, *(_row(result, results[0], unit_s) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    return [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in rows)
    ]


def _row(result: ClusterResult, first: ClusterResult, unit_s: float) -> tuple[str, ...]:
    figures = result.figures
    per_hour = 3600 / unit_s
    return (
        result.policy,
        f"{figures.makespan_s / unit_s:.1f}",
        f"{figures.makespan_s / first.figures.makespan_s:.3f}",
        *(f"{figures.wait_ratio[share]:.2f}" for share in ("0.5", "0.9", "1")),
        f"{figures.mean_slowdown:.3f}",
        f"{figures.max_slowdown:.3f}",
        f"{figures.device_hours_per_step * per_hour:.2f}",
        f"{figures.alone_device_hours_per_step * per_hour:.2f}",
        f"{figures.colocated_device_hours_per_step * per_hour:.2f}",
        f"{round(figures.saving, 3) + 0.0:.1%}",  # not -0.0
        f"{figures.switches_per_step:.2f}",
        f"{figures.bytes_moved / 1e12:.3g}",
        f"{figures.utilisation:.1%}",
    )
