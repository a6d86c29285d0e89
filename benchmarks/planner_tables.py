"""The tables of the parallelism planner, and of RollPacker's Table 2 with all its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simulated_papers import shown_paper, shown_range

Result = dict[str, Any]
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], list[str]]
_PLANNERS = {
    "parked": "planner, parked",
    "fresh starts": "planner, fresh starts",
    "free": "planner, parked, price off",
    "free, fresh starts": "planner, fresh starts, price off",
    "forecast": "`forecast`, parked",
}


def planner(result: Result, table: Table) -> list[str]:
    """Each schedule of each setting, beside the fixed size with which the setting starts."""
    rows = [
        [
            row["setting"],
            _PLANNERS.get(row["schedule"], row["schedule"]),
            shown_range(row["rounds_speed_up"]),
            shown_range(row["short_rounds_speed_up"]) if row["long_round_s"]["mean"] else "",
            shown_range(row["long_rounds_speed_up"]) if row["long_round_s"]["mean"] else "",
            shown_range(row["speed_up"]),
            shown_range(row["preemptions_short"]),
            shown_range(row["preemptions_long"]) if row["long_round_s"]["mean"] else "",
            _changes(row),
        ]
        for row in result["rows"]
        if not row["change"]
    ]
    heading = ["setting", "", "times as fast: rounds", "short rounds", "long rounds", "steps"]
    heading += ["preemptions of a short round", "of a long one", "size changes at (of the seeds)"]
    return table(heading, rows)


def planner_changed(result: Result, table: Table) -> list[str]:
    """What drives the gain of the planner on the ramp."""
    chosen = [row for row in result["rows"] if row["schedule"] == "parked"]
    before = {row["setting"]: row for row in chosen if not row["change"]}
    rows = [
        [
            row["setting"],
            row["change"],
            shown_range(before[row["setting"]]["rounds_speed_up"]),
            shown_range(row["rounds_speed_up"]),
            shown_range(row["preemptions_short"]),
            _changes(row),
        ]
        for row in chosen
        if row["change"]
    ]
    heading = ["planner, parked", "what is changed", "rounds, times as fast: before", "after"]
    return table([*heading, "preemptions of a short round", "size changes at (of the seeds)"], rows)


def _changes(row: Result) -> str:
    """Return at which steps the size changed, in how many seeds: "8: 2 (x3)" is size 2 from step 8 in three of them."""
    parts = []
    for kind in ("short", "long"):
        seeds = row.get(f"changes_{kind}", [])
        counts = Counter(change for seed in seeds for change in seed)
        ordered = sorted(counts, key=lambda change: int(change.split(":")[0]))
        found = ", ".join(f"{change} (x{counts[change]})" if len(seeds) > 1 else change for change in ordered)
        if found:
            parts.append(f"{kind} {found}")
    return "; ".join(parts) or ("never" if "changes_short" in row else "")


def rollpacker(result: Result, table: Table) -> list[str]:
    """Table 2, cumulative, and the rows over stage overlap."""
    rows = [
        [row["name"], row["size"], shown_paper(row), shown_range(row["simulated"]), _far(row)]
        for row in result["rows"]
        if not row["change"]
    ]
    return table(["", "", "paper", "simulated", "difference"], rows)


def _far(row: Result) -> str:
    return "" if row["is_near"] in (True, None) else "more than 20 % off"


def rollpacker_changed(result: Result, table: Table) -> list[str]:
    plain = {(row["name"], row["size"]): row for row in result["rows"] if not row["change"]}
    arms = {(arm["size"], arm["schedule"], arm["change"]): arm for arm in result["arms"]}
    rows = [
        [
            row["name"],
            row["size"],
            row["change"],
            shown_range(plain[row["name"], row["size"]]["simulated"]),
            shown_range(row["simulated"]),
            _changes(arms[row["size"], "planner", row["change"]]),
        ]
        for row in result["rows"]
        if row["change"]
    ]
    return table(["row", "", "what is changed", "before", "after", "size changes at (of the seeds)"], rows)


def rollpacker_arms(result: Result, table: Table) -> list[str]:
    rows = [
        [
            arm["size"],
            f"`{arm['schedule']}`",
            shown_range(arm["step_s"]),
            shown_range(arm["preemptions_short"]),
            shown_range(arm["preemptions_long"]),
            _changes(arm),
        ]
        for arm in result["arms"]
        if not arm["change"]
    ]
    heading = ["", "schedule", "seconds per step", "preemptions of a short round", "of a long one"]
    return table([*heading, "size changes at (of the seeds)"], rows)
