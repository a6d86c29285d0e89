"""Tables of the rewards for the report: seconds by source, parts, verdicts, limits of test cases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tailrace.core.outcomes import Part
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.schedule import CaseTime
from tailrace.observe.account import Account
from tailrace.observe.journal.recollection import Recollection
from tailrace.observe.metrics.natural_lengths import WINDOW_STEPS
from tailrace.observe.metrics.rows import Row
from tailrace.observe.quantities import quantity
from tailrace.observe.time_use.timeline import PART_LANES
from tailrace.rewards.sandbox.weak import what_weak_does_not_stop

MAX_PROBLEMS = 20
_VERDICT = re.compile(r"reward/(?:code_tests/)?verdict/(\w+)/mean")
"""Metrics of verdicts. The name of the reward is part of them where a run has several."""
_VERDICTS = ("passed", "wrong", "time", "memory", "output", "crashed")
"""In the order of their rows."""
_NONE_SOLVED = "No response has solved a problem yet, so every case has the longest limit."


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    head: tuple[str, ...]
    """The first column holds words, the others numbers."""
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    is_shown_without_rows: bool = False

    @property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        return self.head, *self.rows


def tables(account: Account, memory: Recollection | None) -> list[Table]:
    """The tables that say something about this run. ``memory``: the core's state; None: it is not known."""
    found = [
        _sources(account),
        _data(account),
        _parts(account.steps),
        _verdicts(account.steps),
        *([] if memory is None else [_limits(memory)]),
    ]
    return [table for table in found if table.rows or table.is_shown_without_rows]


def weak_note(account: Account, config: dict[str, Any]) -> str:
    """What mode `weak` does not stop, if the run used it; else nothing."""
    has_tests = account.schedule is not None and Part.TESTS in account.schedule.score_parts
    is_weak = config.get("reward", {}).get("code_tests", {}).get("mode") == "weak"
    return f"{what_weak_does_not_stop()}" if has_tests and is_weak else ""


def _sources(account: Account) -> Table:
    train = account.fates.train_source
    rows = [
        (
            name,
            _s(each.rollout_s),
            _s(each.hidden_s),
            _s(each.exposed_s),
            _s(each.training_s) if name == train else "-",
        )
        for name, each in account.sources.seconds.items()
    ]
    return Table(
        title="Seconds by source of prompts",
        head=("source", "rollout", "rewards hidden", "rewards exposed", "training"),
        rows=tuple(rows),
        note="Hidden: scores were awaited while responses were generated or the trainer worked. Exposed: training"
        " waited for scores alone. Sources overlap where their responses run at the same time.",
    )


def _data(account: Account) -> Table:
    rows = [
        (
            name,
            f"{each.num_responses:,}",
            f"{each.num_tokens:,}",
            _s(each.reward_s),
            f"{each.reward_s / each.num_responses:,.3f} s",
        )
        for name, each in sorted(account.sources.data.items())
    ]
    return Table(
        title="Scores by part of the training data",
        head=("data", "responses", "tokens", "computed", "a response"),
        rows=tuple(rows),
    )


def _parts(steps: Sequence[Row]) -> Table:
    found = []
    for part in Part:
        name = f"scoring/{part.value}"
        if rows := [row for row in steps if f"{name}/load" in row]:
            found.append((PART_LANES[part], *_part_cells(name, rows, sum(row["timing_s/step"] for row in steps))))
    has_tokens = any(cells[-1] != "-" for cells in found)
    head = ("part", "load", "hidden", "exposed", "computed", "queued, mean", "queued, longest", "failed", "tokens/s")
    return Table(
        title="Parts of the scores",
        head=head if has_tokens else head[:-1],
        rows=tuple(cells if has_tokens else cells[:-1] for cells in found),
        note="Load: share of the time in which the part was awaited. Computed: seconds of all scores added up, also of"
        " those that were computed at the same time. Queued: how long a score waited for a worker.",
    )


def _part_cells(name: str, rows: Sequence[Row], steps_s: float) -> tuple[str, ...]:
    hidden_s, exposed_s, run_s = (
        sum(row[f"{name}/{each}"] for row in rows) for each in ("hidden_s", "exposed_s", "run_s")
    )
    speeds = [row[f"{name}/tokens_per_s"] for row in rows if f"{name}/tokens_per_s" in row]
    return (
        f"{(hidden_s + exposed_s) / steps_s:.1%}" if steps_s else "-",
        _s(hidden_s),
        _s(exposed_s),
        _s(run_s),
        _s(fmean(row[f"{name}/queued_mean_s"] for row in rows)),
        _s(max(row[f"{name}/queued_max_s"] for row in rows)),
        f"{sum(row[f'{name}/num_failed'] for row in rows):,}",
        f"{fmean(speeds):,.0f}" if speeds else "-",
    )


def _verdicts(steps: Sequence[Row]) -> Table:
    rows = [
        (verdict, _mean_share(steps, name), _mean_share(steps[-WINDOW_STEPS:], name))
        for name, verdict in verdict_names(steps).items()
    ]
    return Table(
        title="Verdicts of programs",
        head=("verdict", "all steps", f"last {quantity(min(len(steps), WINDOW_STEPS), 'step')}"),
        rows=tuple(rows),
    )


def verdict_names(steps: Iterable[Row]) -> dict[str, str]:
    """The metrics of verdicts, and the word for each."""
    matches = [match for name in {name for row in steps for name in row} if (match := _VERDICT.fullmatch(name))]
    order = {verdict: number for number, verdict in enumerate(_VERDICTS)}
    matches.sort(key=lambda match: (order.get(match[1], len(order)), match[0]))
    return {match[0]: match[1] for match in matches}


def _mean_share(steps: Sequence[Row], name: str) -> str:
    values = [row[name] for row in steps if name in row]
    return f"{fmean(values):.1%}" if values else "-"


def _limits(memory: Recollection) -> Table:
    """Problems with a limit above the shortest one, or with responses that were cut."""
    rooms = memory.coordinator.rooms
    rules, known = rooms.schedule.case_time, rooms.rewards.case_times
    slowest = {problem: _slowest_case(times, rules) for problem, times in known.items()}
    told = [problem for problem, times in known.items() if slowest[problem][0] is not None or any(times.cuts.values())]
    # The longest limits first; among equal ones those that cut most.
    told.sort(key=lambda problem: (-slowest[problem][1], -sum(known[problem].cuts.values()), problem))
    rest = f"All cases of the other {len(known) - len(told):,} solved problems have {rules.least_s:g} s."
    if not told:
        rest = f"All cases of all {len(known):,} solved problems have {rules.least_s:g} s." if known else _NONE_SOLVED
    notes = (
        "The case with the longest limit. Anchor: the longest time of a response that passed all cases. Raised for: the"
        " time at which most responses were cut.",
        f"{len(told) - MAX_PROBLEMS:,} more problems with such limits are not shown." * (len(told) > MAX_PROBLEMS),
        rest,
    )
    return Table(
        title="Limits and anchors of problems",
        head=("problem", "case", "limit", "anchor", "raised for", "cases above the shortest", "cut of last responses"),
        rows=tuple(_limit_cells(problem, known[problem], slowest[problem], rules) for problem in told[:MAX_PROBLEMS]),
        note=" ".join(note for note in (notes if told else (rest,)) if note),
        is_shown_without_rows=True,
    )


def _limit_cells(problem: str, times: CaseTimes, slowest: tuple[int | None, float], rules: CaseTime) -> tuple[str, ...]:
    case, limit_s = slowest
    above = sum(times.limit_of(each, rules) > rules.least_s for each in {*times.anchors, *times.lifted})
    known = case is not None
    return (
        problem,
        str(case) if known else "all",
        _s(limit_s),
        _s(times.anchors[case]) if known and case in times.anchors else f"up to {rules.slow_s:.2f} s",
        _s(times.lifted[case]) if known and case in times.lifted else "-",
        f"{above:,}",
        f"{max(times.cuts.values(), default=0):,} of {times.num_tried:,}",
    )


def _slowest_case(times: CaseTimes, rules: CaseTime) -> tuple[int | None, float]:
    """The case with the longest limit, and that limit; None: every case has the shortest."""
    cases = sorted({*times.anchors, *times.lifted})
    found = max(cases, key=lambda case: times.limit_of(case, rules), default=None)
    if found is None or times.limit_of(found, rules) <= rules.least_s:
        return None, rules.least_s
    return found, times.limit_of(found, rules)


def _s(seconds: float) -> str:
    return f"{seconds:,.2f} s"
