"""What can be wrong with the rewards of a run, part by part. None of these reads a file or a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.core.outcomes import Outcome, Part
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.schedule import CaseTime
from tailrace.dashboard.diagnosis import ExaminedRun, Finding
from tailrace.observe.journal.run_files import logs_of
from tailrace.observe.metrics.rows import Row
from tailrace.observe.prompts.fates import ResponseNote
from tailrace.observe.quantities import quantity

MANY_FAILURES, RECENT_RESPONSES = 0.02, 512
SLOW_REWARD_SHARE, RECENT_STEPS = 0.25, 5
FEW_QUEUED = 0.1
"""Share of the exposed seconds of a step. If no score waited longer for a worker, more workers do not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How a part is called in findings."""

    name: str
    waited_for: str
    """What training waits for."""
    faster: str
    """What makes it faster, beside more workers."""


_WORDS = {
    Part.FUNCTION: _Words(
        name="the reward function",
        waited_for="rewards",
        faster="make the reward function faster",
    ),
    Part.TESTS: _Words(
        name="the reward code_tests",
        waited_for="test results",
        faster="lower reward.code_tests.case_timeout_s or max_cases",
    ),
    Part.JUDGE: _Words(
        name="the judge",
        waited_for="scores by the judge",
        faster="use a smaller judge or a shorter prompt",
    ),
}


def failing_rewards(run: ExaminedRun) -> Iterator[Finding]:
    notes = _recent(run)
    for part in Part:
        failed = [note for note in notes if note.failed_part is part]
        yield from _failures_of(part, failed, len(notes), run.reward)


def _failures_of(
    part: Part, failed: Sequence[ResponseNote], num_scores: int, reward: dict[str, Any]
) -> Iterator[Finding]:
    counts = Counter(note.outcome for note in failed if note.outcome is not None)
    if num_late := counts.pop(Outcome.TIMEOUT, 0):
        yield _hanging(part, num_late, num_scores, reward)
    if counts and counts.total() >= max(1.0, MANY_FAILURES * num_scores):
        kinds = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
        last = next(note.detail for note in reversed(failed) if note.outcome in counts)
        what = "rewards fail" if part is Part.FUNCTION else f"{_WORDS[part].name} fails"
        yield Finding(
            subject="reward",
            what=f"{what}: {kinds} among the last {num_scores} scores; the last one: {last or 'no detail'}",
            suggestion=f"try one of those responses by hand; the output of {_WORDS[part].name} is in {logs_of(part)}",
        )


def _hanging(part: Part, num_late: int, num_scores: int, reward: dict[str, Any]) -> Finding:
    limit, setting = _limit(part, reward)
    url = reward.get("judge", {}).get("url") if part is Part.JUDGE else None
    if url is not None:
        within = limit.replace(" of ", " within ", 1)
        return Finding(
            subject="reward",
            what=f"{num_late} of the last {num_scores} requests to {url} had no usable reply{within}",
            suggestion=f"look at the log of that server; if it is only slow, lower reward.judge.max_requests or raise"
            f" {setting}",
        )
    return Finding(
        subject="reward",
        what=f"{_WORDS[part].name} hangs: {num_late} of the last {num_scores} scores passed their time limit"
        f"{limit} and were killed",
        suggestion=f"find what it waits for with one of those responses, or raise {setting} if it is only slow;"
        f" its output is in {logs_of(part)}",
    )


def _recent(run: ExaminedRun) -> list[ResponseNote]:
    notes: list[ResponseNote] = []
    for fate in reversed(run.account.fates.groups.values()):
        notes += [note for note in fate.responses.values() if note.outcome is not None]
        if len(notes) >= RECENT_RESPONSES:
            break
    return list(reversed(notes))


def _limit(part: Part, reward: dict[str, Any]) -> tuple[str, str]:
    """The time limit of this part in words, empty where functions differ, and the setting that holds it."""
    if part is not Part.FUNCTION:
        section = {Part.TESTS: "code_tests", Part.JUDGE: "judge"}[part]
        return _seconds(reward.get(section, {}).get("timeout_s")), f"reward.{section}.timeout_s"
    functions = [each for each in reward.get("functions") or () if each["function"] not in ("code_tests", "judge")]
    common = reward.get("timeout_s")
    own = {each["function"]: each["timeout_s"] for each in functions if each.get("timeout_s") is not None}
    limits = {own.get(each["function"], common) for each in functions} or {common}
    words = _seconds(limits.pop()) if len(limits) == 1 else ""
    if not own:
        return words, "reward.timeout_s"
    if len(own) == len(functions) == 1:
        return words, f"the timeout_s of {next(iter(own))} in reward.functions"
    return words, "the timeout_s of that function in reward.functions, or reward.timeout_s,"


def _seconds(limit: object) -> str:
    return f" of {limit:g} s" if isinstance(limit, int | float) else ""


def slow_rewards(run: ExaminedRun) -> Iterator[Finding]:
    """Names the part that training waited for longest while nothing else went on."""
    rows = run.account.steps[-RECENT_STEPS:]
    whole = sum(row["timing_s/step"] for row in rows)
    exposed = {part: sum(row.get(f"scoring/{part.value}/exposed_s", 0.0) for row in rows) for part in Part}
    part = max(exposed, key=exposed.__getitem__)
    if whole > 0 and exposed[part] / whole > SLOW_REWARD_SHARE:
        yield Finding(
            subject="reward",
            what=f"training waited {exposed[part] / whole:.0%} of the last {quantity(len(rows), 'step')} for"
            f" {_WORDS[part].waited_for} alone",
            suggestion=_faster(part, run, rows),
        )


def _faster(part: Part, run: ExaminedRun, rows: Sequence[Row]) -> str:
    """What makes a part faster."""
    name = f"scoring/{part.value}"
    rows = [row for row in rows if f"{name}/load" in row]
    exposed_s = max(row[f"{name}/exposed_s"] for row in rows)
    is_queued = max(row[f"{name}/queued_max_s"] for row in rows) > FEW_QUEUED * exposed_s
    ways = [_more_workers(part, run.reward)] if is_queued else []
    if part is Part.TESTS and run.reward.get("code_tests", {}).get("timeouts") != "adaptive":
        ways.append('set reward.code_tests.timeouts to "adaptive"')
    if part is Part.JUDGE:
        ways += _ways_of_judge(run.reward.get("judge", {}))
    schedule = run.account.schedule
    if schedule is not None and not schedule.is_reward_streamed:
        ways.append('set reward.timing to "streamed"')
    note = "" if is_queued else " (no score waited long for a worker, so more workers would not help)"
    return ", or ".join([*ways, _WORDS[part].faster]) + note


def _more_workers(part: Part, reward: dict[str, Any]) -> str:
    if part is Part.FUNCTION:
        return "raise reward.workers"
    if part is Part.JUDGE:
        is_remote = reward.get("judge", {}).get("url") is not None
        return "raise reward.judge.max_requests" if is_remote else "raise reward.judge.workers"
    return "raise reward.code_tests.workers, up to the number of free cores"


def _ways_of_judge(judge: dict[str, Any]) -> list[str]:
    if judge.get("url") is not None:
        return []
    own = ['set reward.judge.placement to "own"'] if judge.get("placement") == "shared" else []
    more = ["raise reward.judge.memory_gb"] if judge.get("memory_gb") is not None else []
    return own + more


def cutting_limits(run: ExaminedRun) -> Iterator[Finding]:
    """Problems whose adaptive limits cut most of the responses."""
    schedule = run.account.schedule
    if run.memory is None or schedule is None:
        return
    rules, known = schedule.case_time, run.memory.coordinator.rooms.rewards.case_times
    cutting = {problem: times for problem, times in known.items() if cuts_most(times, rules)}
    if cutting:
        first = next(iter(cutting))
        others = f" and {len(cutting) - 1} more" if len(cutting) > 1 else ""
        yield Finding(
            subject="time limits",
            what=f"adaptive time limits cut most of the responses to problem {first}{others}",
            suggestion="run some of those programs by hand: if they are right and only slow, raise"
            " reward.code_tests.min_case_timeout_s, timeout_factor or timeout_probe_share",
        )


def cuts_most(times: CaseTimes, rules: CaseTime) -> bool:
    """Whether some case cuts most of the responses since it was last lifted, and still could be lifted."""
    if 2 * times.num_tried < rules.lift_after:
        return False
    most = [case for case, count in times.cuts.items() if count > rules.lift_share * times.num_tried]
    return any(times.limit_of(case, rules) < rules.most_s for case in most)
