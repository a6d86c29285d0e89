"""Journal bytes per optimizer step with 1,024 programs of 50 test cases: what adaptive limits and parts add.

    python benchmarks/journal_bytes.py --json benchmarks/results/journal_bytes.json

The journals are those of the simulator, which has the core, the events and the file format of a real run. 128 prompts x
8 responses, `sync`, ten steps over 256 prompts, so that most steps have problems with anchors; programs as in
`scenarios/rollpacker_rewards_7b_8k.toml`, but with 50 cases. `slow` has cases that take ten times as long: most of
them can change a limit, and the journal has them all. `before` is the same journal without what parts of scores added
to it: the part of each command and event, and how long each score waited.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.core.journal import Entry, encode
from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_file import load_scenario

HERE = Path(__file__).resolve().parent
STEPS, PROMPTS, CASES, SCALE = 10, 256, 50, 10.0
ADDED = ("part", "queued_s")


def scenario(timeouts: str, *, is_slow: bool) -> Scenario:
    found = load_scenario(HERE.parent / "scenarios" / "rollpacker_rewards_7b_8k.toml")
    tests = found.reward.code_tests
    assert tests is not None
    changed = tests.model_copy(
        update={
            "timeouts": timeouts,
            "num_cases": CASES,
            "median_s": tests.median_s * (SCALE if is_slow else 1.0),
        }
    )
    reward = found.reward.model_copy(update={"kinds": (), "judge": None, "code_tests": changed})
    lengths = found.lengths.model_copy(update={"num_prompts": PROMPTS})
    return found.model_copy(update={"reward": reward, "lengths": lengths}).with_steps(STEPS)


def without(value: Any) -> Any:
    """The data without what was added."""
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if key not in ADDED}
    return [without(each) for each in value] if isinstance(value, list) else value


def journal(timeouts: str, *, is_slow: bool = False) -> list[str]:
    entries: list[Entry] = []
    simulate(scenario(timeouts, is_slow=is_slow), "sync", record=entries.append)
    return [encode(entry) + "\n" for entry in entries]


def before(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield json.dumps(without(json.loads(line)), separators=(",", ":")) + "\n"


def sizes(lines: list[str]) -> dict[str, float]:
    text = "".join(lines).encode()
    return {"bytes_per_step": len(text) / STEPS, "compressed_per_step": len(gzip.compress(text, 6, mtime=0)) / STEPS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    fixed, adaptive = journal("fixed"), journal("adaptive")
    slow, slow_adaptive = journal("fixed", is_slow=True), journal("adaptive", is_slow=True)
    rows = {
        "before": sizes(list(before(fixed))),
        "fixed": sizes(fixed),
        "adaptive": sizes(adaptive),
        "slow, fixed": sizes(slow),
        "slow, adaptive": sizes(slow_adaptive),
    }
    for name, found in rows.items():
        base = rows["slow, fixed" if name.startswith("slow") else "before"]
        ratios = ", ".join(f"{found[key] / base[key] - 1:+.1%}" for key in found)
        compressed = f"compressed {found['compressed_per_step']:>9,.0f}"
        print(f"{name:<16} {found['bytes_per_step']:>10,.0f} bytes  {compressed}  {ratios}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
