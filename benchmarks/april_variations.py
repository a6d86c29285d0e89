"""Which assumptions about APRIL's GRPO setting move the gain of `active-partial`, and by how much.

    python benchmarks/april_variations.py --json benchmarks/results/april_variations.json

The gain that `scenarios/april_8b_grpo.toml` gives is far above the paper's. Each variation changes one or two
assumptions of that scenario. The paper says of its lengths: a standard deviation of 4,000 to 4,500 tokens over a batch,
and less than 1,500 within a prompt. Several distributions have these spreads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulated_papers import GRPO, STEPS
from simulated_runs import Range, load

from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario

DEARER = 16
SHORT_NORMAL = {"kind": "normal", "median": 5500, "between": 0.75, "within": 0.27}
LONG_NORMAL = {"kind": "normal", "median": 8000, "between": 0.5, "within": 0.19}
VARIATIONS: dict[str, tuple[int, Mapping[str, Any]]] = {
    "the scenario: lognormal lengths, median 4,000": (1, {}),
    "KV reads 16 times dearer": (DEARER, {}),
    "normal lengths, mean 5,500": (1, SHORT_NORMAL),
    "normal lengths, mean 8,000": (1, LONG_NORMAL),
    "KV reads 16 times dearer, and normal lengths, mean 8,000": (DEARER, LONG_NORMAL),
}
"""Factor of the seconds per token of KV cache, and changes of the lengths."""


def varied(scenario: Scenario, factor: int, lengths: Mapping[str, Any]) -> Scenario:
    engine = scenario.engine.model_copy(update={"k1": factor * scenario.engine.k1})
    return scenario.model_copy(update={"engine": engine, "lengths": scenario.lengths.model_copy(update=dict(lengths))})


def gain(name: str, seed: int) -> float:
    """Return the rollout throughput of `active-partial` over that of `sync`."""
    scenario = varied(load(GRPO).with_steps(STEPS).with_seed(seed), *VARIATIONS[name])
    partial, sync = (simulate(scenario, schedule).figures for schedule in ("active-partial", "sync"))
    return partial.rollout_tokens_per_s / sync.rollout_tokens_per_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    options = parser.parse_args()
    rows = []
    for name in VARIATIONS:
        found = Range.over([gain(name, seed) for seed in range(options.seeds)]).to_dict()
        rows.append({"name": name, "gain": found})
        print(f"{name:60} {found}", flush=True)
    result = {
        "settings": {"scenario": GRPO, "steps": STEPS, "seeds": options.seeds, "paper": [1.26, 1.44]},
        "rows": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
