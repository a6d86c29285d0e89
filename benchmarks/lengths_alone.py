"""What speculation saves by the lengths alone: no engine, no costs, every decode step takes the same time.

    python benchmarks/lengths_alone.py --json benchmarks/results/lengths_alone.json

A round then takes as long as its longest response that counts. Per distribution of `scenarios/length_grid.toml` and
cap, over those of `sync`: responses alone (10 for 8), prompts alone (160 for 128) and both, with the long round that
takes up what four short ones left. An ordering that fails here fails under any costs that do not grow with the
load, and where they do grow, more responses cost more.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from simulated_runs import grid, load

from tailrace.core.ids import GroupId, ResponseId
from tailrace.sim.lengths import Lengths

PROMPTS, RESPONSES = 128, 8
MORE_PROMPTS, MORE_RESPONSES = 160, 10
SHORT_ROUNDS, PERIODS = 4, 20
Group = list[int]
"""Lengths, ascending."""


class Rounds:
    """Deals out prompts, each once, and says how long rounds over them are."""

    def __init__(self, lengths: Lengths, cap: int) -> None:
        self._lengths, self._cap, self._next = lengths, cap, 0

    def take(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def responses(self, prompt: int, count: int, attempt: int = 0) -> Group:
        group = GroupId("train", 0, prompt)
        drawn = (self._lengths.draw(ResponseId(group, member, attempt), 0) for member in range(count))
        return sorted(min(length, self._cap) for length in drawn)

    def plain(self, responses: int) -> float:
        """All prompts of a batch; of each the first 8 responses."""
        return max(self.responses(prompt, responses)[RESPONSES - 1] for prompt in self.take(PROMPTS))

    def period(self, responses: int) -> float:
        """Mean of four short rounds over more prompts than needed, and the long one over those that were left."""
        took, left = [], list[int]()
        for _ in range(SHORT_ROUNDS):
            ends = sorted((self.responses(p, responses)[RESPONSES - 1], p) for p in self.take(MORE_PROMPTS))
            took.append(ends[PROMPTS - 1][0])
            left += [prompt for _, prompt in ends[PROMPTS:]]
        took.append(max(self.responses(prompt, RESPONSES, attempt=1)[-1] for prompt in left))
        return fmean(took)


def look_at(name: str, lengths: Lengths, cap: int) -> dict[str, Any]:
    rounds = Rounds(lengths, cap)
    sync = fmean(rounds.plain(RESPONSES) for _ in range(PERIODS))
    over_sync = {
        "responses": fmean(rounds.plain(MORE_RESPONSES) for _ in range(PERIODS)) / sync,
        "prompts": fmean(rounds.period(RESPONSES) for _ in range(PERIODS // SHORT_ROUNDS)) / sync,
        "joint": fmean(rounds.period(MORE_RESPONSES) for _ in range(PERIODS // SHORT_ROUNDS)) / sync,
    }
    share = (1 - over_sync["responses"]) / (1 - over_sync["joint"]) if over_sync["joint"] < 1 else None
    return {"lengths": name, "cap": cap, **over_sync, "share_of_joint": share}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    print("longest response that counts, over that of sync; what responses alone save, over what both save")
    rows = []
    for entry in grid().long_tailed:
        for cap in grid().caps:
            lengths = load("rollpacker_14b_16k").with_lengths(entry, cap).make_lengths()
            rows.append(row := look_at(entry.name, lengths, cap))
            ratios = "  ".join(f"{name} {row[name]:.2f}" for name in ("responses", "prompts", "joint"))
            share = "-" if row["share_of_joint"] is None else f"{row['share_of_joint']:.2f}"
            print(f"{entry.name:10} {cap:>6}  {ratios}  {share}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"benchmark": "lengths_alone", "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
