"""Whole runs that publish to two instances: what their journals and logs say about the weights."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.core import events as ev
from tailrace.observe.journal import journal_file

_FETCHED = re.compile(r"version (\d+): ([\d,]+) bytes were fetched")


@dataclass(frozen=True, kw_only=True)
class Span:
    start: float
    end: float

    def common(self, other: Span) -> float:
        return max(0.0, min(self.end, other.end) - max(self.start, other.start))


def run(output: Path, model: Path, settings: dict[str, Any]) -> None:
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    base = ["--output_dir", str(output), "--model.path", str(model), "--report", "False"]
    command = [sys.executable, "-m", "tailrace", "train", "quickstart", *base, *flags]
    subprocess.run(command, check=True, stdout=sys.stderr)


def found(output: Path) -> dict[str, Any]:
    """Publishes against the accumulation of gradients of the next step, and bytes of every pull."""
    publishes, steps = spans(output)
    rows = [_row(version, span, steps.get(version)) for version, span in sorted(publishes.items())]
    beside = [row for row in rows if row["hidden_s"] > 0]
    return {
        "publishes": len(rows),
        "beside_the_next_step": len(beside),
        "publish_s": round(sum(row["publish_s"] for row in rows), 3),
        "publish_s_beside": round(sum(row["publish_s"] for row in beside), 3),
        "hidden_s": round(sum(row["hidden_s"] for row in beside), 3),
        "next_step_waited_s": round(sum(row["waited_s"] for row in beside), 3),
        "versions": rows,
        "bytes_per_pull": {name: sorted(set(sizes)) for name, sizes in fetched(output).items()},
    }


def spans(output: Path) -> tuple[dict[int, Span], dict[int, Span]]:
    """For each version: when it was published, and when the next step from it added up its gradients."""
    publishes: dict[int, Span] = {}
    steps: dict[int, Span] = {}
    for _, entry in journal_file.read(output / "journal.jsonl"):
        match entry.event:
            case ev.WeightsPublished(version=version, seconds=seconds):
                publishes[version] = Span(start=entry.now - seconds, end=entry.now)
            case ev.GradientsAccumulated(version=version, seconds=seconds):
                steps[version] = Span(start=entry.now - seconds, end=entry.now)
    return publishes, steps


def fetched(output: Path) -> dict[str, list[int]]:
    """Bytes of every pull, by worker, from the workers' logs."""
    logs = sorted((output / "logs").glob("rollout-*.log"))
    return {path.stem: [int(size.replace(",", "")) for _, size in _FETCHED.findall(path.read_text())] for path in logs}


def _row(version: int, publish: Span, step: Span | None) -> dict[str, float]:
    hidden = 0.0 if step is None else publish.common(step)
    return {
        "version": version,
        "publish_s": round(publish.end - publish.start, 4),
        "next_step_s": 0.0 if step is None else round(step.end - step.start, 4),
        "hidden_s": round(hidden, 4),
        "waited_s": 0.0 if step is None else round(max(0.0, publish.end - step.end), 4),
    }
