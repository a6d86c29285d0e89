"""What a row of metrics says about the parts of scores: seconds run, queued, hidden and exposed; limits of test cases.

Only scores of training responses count. Seconds in which only responses of evaluations run do not.
"""

from __future__ import annotations

from tailrace.core.commands import LimitCases, Score
from tailrace.core.events import Scored
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.rewards.case_times import problem_of
from tailrace.observe.metrics.memory import CaseMemory, LimitCounts, PartClock
from tailrace.observe.shared_fold.news import News
from tailrace.observe.shared_fold.run_fold import RunFold

_NOT_COMPUTED = (Outcome.ABSTAINED, Outcome.ABORTED)
_TOKENS = ("num_tokens", "judge/num_tokens")
"""Names under which a judge tells how many tokens it read: alone, and beside other reward functions."""


def elapse_parts(run: RunFold, parts: dict[Part, PartClock], seconds: float) -> tuple[float, float]:
    """Count seconds for the parts that training awaits. Return those that are exposed, and those that are hidden."""
    awaited = run.scores.awaited_of(run.train_source)
    if not awaited:
        return 0.0, 0.0
    is_exposed = run.scores.is_alone
    for part in awaited:
        clock = parts.setdefault(part, PartClock())
        if is_exposed:
            clock.exposed_s += seconds
        else:
            clock.hidden_s += seconds
    return (seconds, 0.0) if is_exposed else (0.0, seconds)


def note_scores(run: RunFold, parts: dict[Part, PartClock], cases: CaseMemory, part: Part, news: News) -> None:
    """Note one part of some scores that came back."""
    for scored, response in news.parts:
        if scored.response.group.source != run.train_source:
            continue
        _note_score(parts.setdefault(part, PartClock()), scored)
        if (
            part is Part.TESTS
            and cases.has_limits
            and response is not None
            and scored.outcome is Outcome.OK
            and scored.is_correct
        ):
            cases.solved[problem_of(scored.response.group)] = None


def _note_score(clock: PartClock, scored: Scored) -> None:
    clock.run_s += scored.seconds
    clock.num_cut_cases += len(scored.cut_cases)
    clock.num_tokens += sum(int(value) for name, value in scored.extras if name in _TOKENS)
    if scored.outcome in _NOT_COMPUTED:
        return
    clock.num_scored += 1
    clock.num_failed += scored.outcome is not Outcome.OK
    clock.queued_s += scored.queued_s
    clock.queued_max_s = max(clock.queued_max_s, scored.queued_s)


def note_limits(run: RunFold, limits: LimitCounts, cases: CaseMemory, command: Score | LimitCases) -> None:
    """Note the limits that were sent for some responses."""
    each = [command.limits] * len(command.responses) if isinstance(command, LimitCases) else command.limits
    if not each:
        return
    cases.has_limits = True
    for response, (others_s, own) in zip(command.responses, each, strict=True):
        if response.group.source == run.train_source:
            limits.add(max([others_s, *(seconds for _, seconds in own)]))
            limits.num_probes += _is_probe(run, response, others_s, cases)


def _is_probe(run: RunFold, response: ResponseId, others_s: float, cases: CaseMemory) -> bool:
    """Whether every case has the longest limit although the problem is solved."""
    schedule = run.state.schedule
    is_longest = schedule is not None and others_s == schedule.case_time.most_s > schedule.case_time.least_s
    return is_longest and problem_of(response.group) in cases.solved


def part_metrics(parts: dict[Part, PartClock], step_s: float) -> dict[str, float]:
    row: dict[str, float] = {}
    for part in Part:
        if (clock := parts.get(part)) is not None:
            row |= _part_row(part.value, clock, step_s)
    return row


def _part_row(part: str, clock: PartClock, step_s: float) -> dict[str, float]:
    awaited_s = clock.exposed_s + clock.hidden_s
    row = {
        f"scoring/{part}/exposed_s": clock.exposed_s,
        f"scoring/{part}/hidden_s": clock.hidden_s,
        f"scoring/{part}/load": min(awaited_s / step_s, 1.0),
        f"scoring/{part}/run_s": clock.run_s,
        f"scoring/{part}/queued_mean_s": clock.queued_s / max(clock.num_scored, 1),
        f"scoring/{part}/queued_max_s": clock.queued_max_s,
        f"scoring/{part}/num_failed": clock.num_failed,
    }
    if clock.num_tokens:
        row[f"scoring/{part}/tokens_per_s"] = clock.num_tokens / max(awaited_s, 1e-9)
    return row


def limit_metrics(limits: LimitCounts, cases: CaseMemory, tests: PartClock | None) -> dict[str, float]:
    """Limits of test cases, where the run learns them."""
    row: dict[str, float] = {}
    if tests is not None:
        row["scoring/tests/num_cut_cases"] = tests.num_cut_cases
    if not cases.has_limits:
        return row
    row["scoring/tests/num_solved_problems"] = len(cases.solved)
    row["scoring/tests/num_probes"] = limits.num_probes
    if limits.num_sent:
        row["scoring/tests/limit_mean_s"] = limits.sum_s / limits.num_sent
        row["scoring/tests/limit_min_s"] = limits.min_s
        row["scoring/tests/limit_max_s"] = limits.max_s
    return row
