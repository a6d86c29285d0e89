"""The tables of the report that compare short and long rounds: means over the rounds of each kind.

Schedules without rounds have the seconds of a step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tailrace.dashboard.charts import Parts
from tailrace.dashboard.reward_tables import Table
from tailrace.observe.metrics.rows import Row
from tailrace.observe.time_use.step_parts import BOTH, GENERATE

_KINDS = {0: "short rounds", 1: "long rounds"}


@dataclass(frozen=True, slots=True)
class _Line:
    words: str
    metric: str
    shown: Callable[[float], str]
    of: Callable[[Iterable[float]], float] = fmean


def _s(seconds: float) -> str:
    return f"{seconds:,.2f} s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _precise(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


_ROLLOUT = "rollout_s"
_SECONDS = (
    _Line("a step", "timing_s/step", _s),
    _Line("rollout", _ROLLOUT, _s),
    _Line("rewards hidden", "timing_s/reward_hidden", _s),
    _Line("rewards exposed", "timing_s/reward_exposed", _s),
    _Line("training", "timing_s/update_actor", _s),
    _Line("training hidden by rollout", "timing_s/update_hidden", _s),
)
_TOKENS = (
    _Line("responses sent", "round/num_responses", _count),
    _Line("longest response", "round/longest_response", _count, max),
    _Line("time to first token", "round/time_to_first_token_s/mean", _s),
    _Line("longest time to first token", "round/time_to_first_token_s/max", _s, max),
    _Line("time per token", "round/time_per_token_ms/mean", lambda value: f"{value:,.1f} ms"),
    _Line("tokens held", "round/kv_tokens/mean", _count),
    _Line("most tokens held", "round/kv_tokens/max", _count, max),
    _Line("preemptions", "round/num_preemptions", _precise),
    _Line("preemptions of a response", "round/preemptions_per_response", lambda value: f"{value:.3f}"),
    _Line("devices of an instance", "round/parallel_size", _precise),
)


def rounds_heading(steps: Sequence[Row]) -> str:
    """What the tables are about."""
    if len(_by_kind(steps)) > 1:
        return "Short and long rounds"
    return "Rounds" if not steps or _has_rounds(steps) else "Steps (this schedule has no rounds)"


def round_tables(steps: Sequence[Row], parts: Sequence[Parts]) -> list[Table]:
    """One table of seconds and one of tokens, each with a column for each kind of round that the run had. ``parts``:
    how the seconds of each step were spent."""
    rollout_s = [each.get(GENERATE, 0.0) + each.get(BOTH, 0.0) for each in parts]
    kinds = _by_kind([{**row, _ROLLOUT: seconds} for row, seconds in zip(steps, rollout_s, strict=True)])
    head, counts = [*kinds], ("steps", *(f"{len(rows):,}" for rows in kinds.values()))
    tables = [
        Table(
            title="Mean seconds of a step",
            head=("", *head),
            rows=(counts, *_rows(_SECONDS, [*kinds.values()])),
            note="Rollout: instances generated for training. Rewards are hidden while rollout or training goes on, and"
            " exposed while nothing else does.",
        ),
        Table(
            title="Responses and tokens of a round",
            head=("", *head),
            rows=tuple(_rows(_TOKENS, [*kinds.values()])),
            note="Means, except longest and most. Times to first token end with the first report that has a token, so"
            " they are too long by up to one report interval. Tokens held are those of responses, without prompts.",
        ),
    ]
    return [table for table in tables if table.rows] if steps else []


def _by_kind(steps: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for kind in (*_KINDS, None):
        rows = [row for row in steps if row.get("groups/is_long_round") == kind]
        if rows:
            every = "all rounds" if _has_rounds(rows) else "all steps"
            found[every if kind is None else _KINDS[kind]] = rows
    return found


def _has_rounds(rows: Sequence[Row]) -> bool:
    return any("round/num_responses" in row for row in rows)


def _rows(lines: Sequence[_Line], kinds: Sequence[Sequence[Row]]) -> list[tuple[str, ...]]:
    found = []
    for line in lines:
        values = [[row[line.metric] for row in rows if line.metric in row] for rows in kinds]
        if any(values):
            found.append((line.words, *(line.shown(line.of(each)) if each else "-" for each in values)))
    return found
