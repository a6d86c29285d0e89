"""What a person sees of a run that only generates and scores: a line whenever a batch of prompts is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.display.display import PlainDisplay
from tailrace.observe.display.progress import clock
from tailrace.observe.display.rollout_tally import RolloutTally
from tailrace.observe.metrics.rows import Row
from tailrace.observe.shared_fold.run_fold import RunFold


class RolloutDisplay(PlainDisplay):
    """Each line is about all responses so far; short ones are done first, so the numbers settle only at the end."""

    def __init__(self, schedule: Schedule, say: Callable[[str], None], past: Iterable[Entry] = ()) -> None:
        super().__init__(schedule.max_steps, say)
        self._total, self._every = sum(s.num_prompts for s in schedule.eval_sets), schedule.batch_size
        self._tally = RolloutTally()
        for entry in past:
            self._tally.feed(entry)
        self._began_s, self._began_at = self._tally.busy_s, self._tally.num_prompts_done
        self._next = self._after(self._began_at)

    def begin(self, run: RunFold, rows: Sequence[Row]) -> None:
        pass  # it was opened with all entries

    def entry(self, entry: Entry) -> None:
        self._tally.feed(entry)
        if (done := self._tally.num_prompts_done) >= self._next:
            self._next = self._after(done)
            self.say(self._line(done))

    def row(self, row: Row) -> None:
        pass  # the one row of such a run comes at its end, with the closing lines

    def _after(self, done: int) -> int:
        """Prompts that must be done for the next line; none comes after the last prompt."""
        return min(done + self._every, max(self._total, done + 1))

    def _line(self, done: int) -> str:
        row = self._tally.row()
        lengths = "/".join(str(row[f"response_length/{name}"]) for name in ("p50", "p95", "max"))
        left_s = (self._tally.busy_s - self._began_s) / max(done - self._began_at, 1) * (self._total - done)
        parts = (
            f"prompts {done:>{len(str(self._total))}}/{self._total}",
            f"reward {row['reward/mean']:.3f}",
            f"length p50/p95/max {lengths}",
            f"{row['perf/tokens_per_s']:,.0f} tok/s",
            f"ETA {clock(left_s)}",
        )
        return "  ".join(parts)
