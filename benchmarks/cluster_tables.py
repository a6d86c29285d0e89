"""Tables of places in real time, and of the queue for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simulated_papers import shown_range

Result = dict[str, Any]
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], list[str]]


def placement_truth(result: Result, table: Table) -> list[str]:
    names = ("accepted", "in_step", "overlapping", "refused", "wrongly_refused")
    rows = [[row["periods"], row["arrivals"], *(str(row[name]) for name in names)] for row in result["rows"]]
    return table(["periods", "arrivals", *(name.replace("_", " ") for name in names)], rows)


def queue(result: Result, table: Table) -> list[str]:
    shares = ("0.5", "0.9", "1")
    rows = [
        [
            row["jobs"],
            f"`{row['policy']}`",
            f"`{row['order']}`",
            shown_range(row["makespan_h"]),
            *(shown_range(row["wait_ratio"][share]) for share in shares),
        ]
        for row in result["rows"]
    ]
    waits = [f"wait ratio, {float(share):.0%}" for share in shares]
    return table(["jobs", "policy", "order", "makespan, hours", *waits], rows)
