"""What can be wrong with a run: one function per question, each returning findings. None reads a file or a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.core.responses.response import ResponsePhase
from tailrace.dashboard.diagnosis import FINISHED, RUNNING, STOPPED, ExaminedRun, Finding
from tailrace.dashboard.reward_checks import cutting_limits, failing_rewards, slow_rewards
from tailrace.observe.journal.disk import says_disk_full
from tailrace.observe.prompts import fairness
from tailrace.observe.quantities import quantity

Check = Callable[[ExaminedRun], Iterator[Finding]]

NEAR_LIMIT = 0.5
"""Share of its limit from which a wait is worth a word."""
FEW_LEFT, STRAGGLER_S = 0.1, 5.0
"""A straggler: at most this share of a step is unfinished, and nothing else has ended for so long."""
MANY_PREEMPTIONS = 0.1
MIN_FREE_BYTES, MIN_FREE_MEMORY = 200 * 1024 * 1024, 0.05


def stopped(run: ExaminedRun) -> Iterator[Finding]:
    if run.life != STOPPED:
        return
    cause = run.stop_reason or "its process ended without a word (it was killed, or the machine went down)"
    yield Finding(
        subject="run",
        what=f"it stopped after {quantity(run.account.version, 'step')}: {cause}",
        suggestion="repair what is named here, then run the same command again: it continues from here",
    )


def disk(run: ExaminedRun) -> Iterator[Finding]:
    needed = max(2 * run.checkpoint_bytes, MIN_FREE_BYTES)
    free = run.machine.disk_free
    evidence = _disk_full_evidence(run)
    if evidence:
        yield Finding(
            subject="disk",
            what=f"the disk was full: {evidence}; {_size(free)} are free now",
            suggestion=f"free at least {_size(needed)} on the disk of {run.path}, or lower keep_checkpoints; then"
            " run the same command again",
        )
    elif free < needed and run.life != FINISHED:
        yield Finding(
            subject="disk",
            what=f"the disk is nearly full: {_size(free)} are free, the next checkpoints may need {_size(needed)}",
            suggestion="free some space, or lower keep_checkpoints",
        )


def _disk_full_evidence(run: ExaminedRun) -> str:
    if run.life == RUNNING:
        return ""
    if run.life == STOPPED and says_disk_full(run.stop_reason):
        return run.stop_reason
    if run.life == STOPPED and not run.stop_reason and run.log_complaint:
        return run.log_complaint  # only of a run without a word of its own: logs reach far back
    if run.has_torn_end and run.machine.disk_free < MIN_FREE_BYTES:
        return "the last line of the journal is cut off"
    return ""


def checkpoints(run: ExaminedRun) -> Iterator[Finding]:
    for name, problem in run.damaged:
        where = f"{run.path}/checkpoints/{name}"
        left = "the newest whole checkpoint" if run.num_whole_checkpoints else "the beginning"
        yield Finding(
            subject="checkpoint",
            what=f"checkpoint {name} is damaged: {problem}",
            suggestion=f"move {where} away; the same command then continues from {left}",
        )


def refused_reports(run: ExaminedRun) -> Iterator[Finding]:
    coordinator = None if run.memory is None else run.memory.coordinator
    if coordinator is not None and coordinator.num_refused_reports:
        count = coordinator.num_refused_reports
        yield Finding(
            subject="reports",
            what=f"{count} reports of workers were repeated, late or impossible, and ignored;"
            f" the last one: {coordinator.last_refused_report}",
            suggestion="they do no harm; many of them point to a connection that loses or repeats messages",
        )


def instances(run: ExaminedRun) -> Iterator[Finding]:
    by_instance: dict[int, list[str]] = {}
    for loss in run.account.losses:
        by_instance.setdefault(loss.instance, []).append(loss.reason)
    for number, reasons in sorted(by_instance.items()):
        times = "once" if len(reasons) == 1 else f"{len(reasons)} times"
        was_killed = any(words in reasons[-1].lower() for words in ("signal 9", "sigkill", "killed"))
        yield Finding(
            subject=f"instance {number}",
            what=f"its engine was lost {times}; the last time: {reasons[-1]}",
            suggestion="if nobody killed it, the machine ran out of memory: lower rollout.kv_tokens or"
            " rollout.max_running"
            if was_killed
            else f"read logs/rollout-{number}.log",
        )


def stragglers(run: ExaminedRun) -> Iterator[Finding]:
    """Everything but a few responses is there, and the trainer has nothing to do."""
    memory = run.memory
    if memory is None or run.life != RUNNING or memory.coordinator.rooms.training.is_stepping:
        return
    groups = [group for group in memory.coordinator.rooms.responses.training_groups() if group.is_live]
    members = [r for group in groups for r in group.members.values()]
    left = [r for r in members if r.phase is ResponsePhase.RUNNING]
    is_rest_done = len(left) == sum(r.phase is not ResponsePhase.SCORED for r in members)
    if not left or not is_rest_done or len(left) > max(1.0, FEW_LEFT * len(members)):
        return
    quiet_s = run.now - max(_last_move(r.story) for r in members if r not in left) if len(left) < len(members) else 0
    if quiet_s < STRAGGLER_S:
        return
    slowest = max(left, key=lambda r: r.length)
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    yield Finding(
        subject="straggler",
        what=f"the trainer waits for response {slowest.id}{others} on instance {slowest.instance}"
        f" ({slowest.length} tokens so far); the other {len(members) - len(left)} of this step have been ready for"
        f" {quiet_s:.0f} s",
        suggestion="lower rollout.max_response_length if such lengths are of no use",
    )


def _last_move(story: list[str]) -> float:
    """When a response last changed its phase: the number its story's last line begins with."""
    return float(story[-1].split()[0]) if story else 0.0


def waiting(run: ExaminedRun) -> Iterator[Finding]:
    for wait in run.waits:
        age = run.now - wait.since
        if age >= NEAR_LIMIT * wait.limit_s:
            then = "it is restarted" if wait.instance is not None else "the run fails"
            yield Finding(
                subject="wait",
                what=f"waiting for {wait.what} for {age:.0f} s; after {wait.limit_s:.0f} s {then}",
                suggestion="look at that worker's log in logs/; if it only needs longer, raise its limit ([limits], or"
                " the timeout_s of the reward)",
            )


def preemptions(run: ExaminedRun) -> Iterator[Finding]:
    count = sum(run.account.num_preemptions.values())
    responses = sum(len(fate.responses) for fate in run.account.fates.groups.values())
    if count > MANY_PREEMPTIONS * responses > 0:
        yield Finding(
            subject="preemptions",
            what=f"{count} times a response had to be recomputed because the KV budget was used up",
            suggestion="raise rollout.kv_tokens, or lower rollout.max_running",
        )


def lengths(run: ExaminedRun) -> Iterator[Finding]:
    for alarm in fairness.length_alarms(run.account.fates):
        yield Finding(
            subject="lengths",
            what=alarm,
            suggestion="launch fewer prompts or responses beyond the batch (schedule.over_provision_prompts,"
            " schedule.over_provision_responses), or choose a schedule that keeps or resumes unfinished responses",
        )


def restarts(run: ExaminedRun) -> Iterator[Finding]:
    schedule = run.account.schedule
    for alarm in fairness.restart_alarms(run.account.fates, schedule) if schedule is not None else ():
        yield Finding(
            subject="restarts",
            what=alarm,
            suggestion="raise schedule.max_versions_per_sample, or set schedule.on_version_cap to 'finish'",
        )


def memory(run: ExaminedRun) -> Iterator[Finding]:
    available, total = run.machine.memory_available, run.machine.memory_total
    if available is not None and total and available < MIN_FREE_MEMORY * total and run.life == RUNNING:
        yield Finding(
            subject="memory",
            what=f"{_size(available)} of {_size(total)} memory are left on this machine",
            suggestion="lower rollout.kv_tokens or trainer.max_tokens_per_gpu before the system kills a process",
        )


def record(run: ExaminedRun) -> Iterator[Finding]:
    if run.memory_problem:
        yield Finding(
            subject="journal",
            what=f"the journal cannot be followed to its end: {run.memory_problem}",
            suggestion="use the version of tailrace that wrote it, or start in another output_dir",
        )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


CHECKS: tuple[Check, ...] = (
    disk,
    checkpoints,
    record,
    refused_reports,
    instances,
    failing_rewards,
    slow_rewards,
    cutting_limits,
    stragglers,
    waiting,
    preemptions,
    lengths,
    restarts,
    memory,
    stopped,
)
"""In the order of what usually is the cause of the rest."""
