"""Orderings of policies and rules in the result of `cluster.py`, as counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cluster_runs import SHARING

Found = Iterator[tuple[str, bool]]
"""Where it was looked, and whether the ordering holds there."""
Result = dict[str, Any]


def orderings(result: Result) -> list[dict[str, Any]]:
    rows = [count(f"backlog: {policy} is faster than isolated", _faster(result, policy)) for policy in SHARING]
    for one, other in (("spread", "pack"), ("spread-backfill", "spread")):
        rows.append(count(f"backlog: {one} is no slower than {other}", _makespans(result, one, other)))
    for one, other in (("pack", "isolated"), ("spread", "pack"), ("spread-backfill", "spread")):
        for name, share in (("median", "0.5"), ("90 % quantile", "0.9")):
            name = f"arrivals: {name} of waiting, {one} is no worse than {other}"
            rows.append(count(name, _waits(result, one, other, share)))
    claims: list[tuple[str, str, str, Callable[[float, float], bool]]] = [
        ("a lease for the phase is faster than operation-level HRRS", "hrrs-phase", "hrrs-operation", _is_less),
        ("operation-level HRRS is within 5 % of FCFS", "hrrs-operation", "fcfs-operation", _is_near),
        ("(W+E)/S is no slower than operation-level HRRS", "execution-operation", "hrrs-operation", _is_no_more),
        ("a lease for the phase is no slower than (W+E)/S", "hrrs-phase", "execution-operation", _is_no_more),
        ("a hold is no slower than a lease for the phase", "hrrs-hold", "hrrs-phase", _is_no_more),
        ("leases with holds are no slower than without", "hrrs-phase-hold", "hrrs-phase", _is_no_more),
        ("leases with holds are no slower than operations with holds", "hrrs-phase-hold", "hrrs-hold", _is_no_more),
    ]
    for overlap in ("serial", "one-step"):
        for name, one, other, holds in claims:
            found = _slowdowns(result, overlap, one, other, holds)
            rows.append(count(f"arbitration, {overlap} jobs: {name}", found))
    return rows


def count(name: str, found: Found) -> dict[str, Any]:
    """Return how often an ordering holds, and where it does not."""
    all_found = list(found)
    missed = [where for where, holds in all_found if not holds]
    return {"name": name, "held": len(all_found) - len(missed), "of": len(all_found), "not_in": ", ".join(missed)}


def _is_less(one: float, other: float) -> bool:
    return one < other


def _is_no_more(one: float, other: float) -> bool:
    return one <= other


def _is_near(one: float, other: float) -> bool:
    return abs(one / other - 1) < 0.05


def _faster(result: Result, policy: str) -> Found:
    for row in result["backlog"]:
        if row["most"] > 1:
            yield from ((f"k={row['most']}/{seed}", ratio < 1) for seed, ratio in enumerate(row["by_seed"][policy]))


def _makespans(result: Result, one: str, other: str) -> Found:
    for row in result["backlog"]:
        if row["most"] > 1:
            pairs = zip(row["by_seed"][one], row["by_seed"][other], strict=True)
            yield from ((f"k={row['most']}/{seed}", first <= second) for seed, (first, second) in enumerate(pairs))


def _waits(result: Result, one: str, other: str, share: str) -> Found:
    waits = {row["policy"]: [each[share] for each in row["by_seed"]] for row in result["arrivals"]}
    pairs = zip(waits[one], waits[other], strict=True)
    yield from ((f"seed {seed}", first <= second) for seed, (first, second) in enumerate(pairs))


def _slowdowns(result: Result, overlap: str, one: str, other: str, holds: Callable[[float, float], bool]) -> Found:
    rows = [row for row in result["arbitration"] if row["overlap"] == overlap]
    found = {(row["model"], row["jobs"], row["rules"]): row["by_seed"] for row in rows}
    for (model, jobs, rules), values in found.items():
        if rules == one:
            for seed, pair in enumerate(zip(values, found[model, jobs, other], strict=True)):
                yield f"{model}/{jobs}/{seed}", holds(*pair)
