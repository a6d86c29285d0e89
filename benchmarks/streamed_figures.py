"""What streamed steps did in a run: how much of training rollout hid, in how many pieces, by the kind of round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry

Step = dict[str, Any]
"""A row of ``metrics.jsonl`` about an optimizer step."""


def streaming(steps: Sequence[Step], entries: Sequence[Entry]) -> dict[str, Any]:
    """``steps``: those that count; ``entries``: of the whole run."""
    pieces = Counter(each.version for each in commands_of(entries, do.Accumulate))
    return {
        "update_hidden_share": hidden_share(steps),
        "streamed_steps": sum(count > 1 for count in pieces.values()),
        "pieces_per_step": round(fmean(pieces.values()), 2),
        "lent": lent(entries),
        "kinds": {name: of_kind(steps, is_long=name == "long") for name in ("short", "long")},
    }


def hidden_share(steps: Sequence[Step]) -> float:
    """The share of the seconds of training that rollout hid."""
    computed = sum(row["timing_s/update_actor"] for row in steps)
    return round(sum(row["timing_s/update_hidden"] for row in steps) / computed, 3) if computed else 0.0


def of_kind(steps: Sequence[Step], *, is_long: bool) -> dict[str, Any]:
    """Steps of short or of long rounds. Where nothing is deferred every round counts as short."""
    mine = [row for row in steps if bool(row.get("groups/is_long_round", 0)) == is_long]
    if not mine:
        return {"steps": 0}
    return {
        "steps": len(mine),
        "s_per_step": round(fmean(row["timing_s/step"] for row in mine), 3),
        "update_s": round(fmean(row["timing_s/update_actor"] for row in mine), 3),
        "update_hidden_share": hidden_share(mine),
        "mean_length": round(fmean(row["response_length/mean"] for row in mine), 1),
        "longest": max(row["response_length/max"] for row in mine),
    }


def lent(entries: Sequence[Entry]) -> dict[str, int]:
    """Pieces that were trained on lent devices alone, and how often an instance released its memory."""
    pieces = [each for each in commands_of(entries, do.Accumulate) if each.replicas]
    return {"pieces": len(pieces), "releases": sum(isinstance(each.event, ev.MemoryReleased) for each in entries)}


def commands_of(entries: Sequence[Entry], kind: type[Any]) -> list[Any]:
    return [command for entry in entries for command in entry.commands if isinstance(command, kind)]
