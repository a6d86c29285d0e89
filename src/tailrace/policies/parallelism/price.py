"""What a change of the parallel size takes."""

from __future__ import annotations

from tailrace.core.fleet.parallelism import ParallelismView, SizeView


def change_s(view: ParallelismView, now: SizeView, other: SizeView) -> float:
    """Return how many seconds more go to changes within the horizon with ``other`` than with ``now``. If short and long
    rounds have different sizes, each turn from one kind to the other is a change too."""
    turns = 2 * min(view.rounds)
    return (
        other.change_s
        - now.change_s
        + view.back_s * turns * ((other.size != view.other_size) - (now.size != view.other_size))
    )
