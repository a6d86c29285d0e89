"""What a person reads while a run goes on: one line per step, one per evaluation, one per long wait."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core.run.waits import Wait
from tailrace.observe.metrics.rows import Row

SHOWN_WAIT_SHARE = 0.05
"""Share of a step from which its wait for rewards is shown."""


class Progress:
    """Turns rows into lines. Remembers only what the estimated time of arrival needs."""

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._mean_step_s = 0.0
        self._num_steps = 0

    def line(self, row: Row) -> str:
        return self._step_line(row) if "reward/mean" in row else _eval_line(row)

    def note(self, row: Row) -> None:
        """Take a row of the past into account."""
        if "reward/mean" in row:
            self.left_s(row)

    def left_s(self, row: Row) -> float:
        """Seconds until the end, from the steps so far and this one."""
        step_s: float = row["timing_s/step"] + row.get("timing_s/eval", 0.0)
        self._num_steps += 1
        # Recent steps count more: lengths change while a model learns. The first one, which contains the start of the
        # trainer, counts only while there is no other.
        share = 0.2 if self._num_steps > 2 else 1.0
        self._mean_step_s += share * (step_s - self._mean_step_s)
        num_left: int = self._max_steps - row["step"]
        return self._mean_step_s * num_left

    def _step_line(self, row: Row) -> str:
        step_s, left = row["timing_s/step"], self.left_s(row)
        lengths = "/".join(str(row[f"response_length/{name}"]) for name in ("p50", "p95", "max"))
        parts = [
            f"step {row['step']:>{len(str(self._max_steps))}}/{self._max_steps}",
            f"reward {row['reward/mean']:.3f}",
            f"length p50/p95/max {lengths}",
            f"{row['perf/tokens_per_s']:,.0f} tok/s",
            f"{step_s:.2f} s ({step_phases(row)})",
        ]
        if eval_s := row.get("timing_s/eval"):
            parts.append(f"eval {eval_s:.2f} s")
        parts.append(f"ETA {clock(left)}")
        failures = {name: row[f"reward/num_{name}"] for name in ("error", "timeout", "crash", "invalid")}
        if any(failures.values()):
            parts.append("rewards failed: " + ", ".join(f"{count} {name}" for name, count in failures.items() if count))
        return "  ".join(parts)


def step_phases(row: Row) -> str:
    """Seconds of generating and training; between them those of waiting for rewards alone, if they are worth a word."""
    waited_s = row.get("timing_s/reward_exposed", 0.0)
    rewards = f"rewards {waited_s:.2f}, " if waited_s > SHOWN_WAIT_SHARE * row["timing_s/step"] else ""
    return f"gen {row['timing_s/gen']:.2f}, {rewards}train {row['timing_s/update_actor']:.2f}"


def _eval_line(row: Row) -> str:
    scores = [f"{name.removeprefix('eval/')} {value:.3f}" for name, value in row.items() if "@" in name]
    return f"eval at step {row['step']}: " + "  ".join(scores)


def wait_line(waits: Sequence[Wait], now: float) -> str:
    """A line that names the oldest wait, its age and its limit."""
    oldest = min(waits, key=lambda wait: wait.since)
    age = now - oldest.since
    return f"waiting for {oldest.what}: {age:.0f} s (limit {oldest.limit_s:.0f} s)"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
