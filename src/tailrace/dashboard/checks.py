"""What can be wrong with a run: one function per question, each returning findings. None reads a file or a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tailrace.core.groups import GroupPhase
from tailrace.core.outcomes import Outcome
from tailrace.core.trajectory import TrajectoryPhase
from tailrace.dashboard.diagnosis import RUNNING, STOPPED, Finding, Patient
from tailrace.observe.disk import says_disk_full
from tailrace.observe.fates import ResponseNote

Check = Callable[[Patient], Iterator[Finding]]

NEAR_LIMIT = 0.5
"""Share of its limit from which a wait is worth a word."""
MANY_FAILURES, RECENT_RESPONSES = 0.02, 512
SLOW_REWARD_SHARE, RECENT_STEPS = 0.25, 5
FEW_LEFT, STRAGGLER_S = 0.1, 5.0
"""A straggler: at most this share of a step is unfinished, and nothing else has ended for so long."""
MANY_PREEMPTIONS = 0.1
MIN_FREE_BYTES, MIN_FREE_MEMORY = 200 * 1024 * 1024, 0.05


def stopped(patient: Patient) -> Iterator[Finding]:
    if patient.life != STOPPED:
        return
    cause = patient.stop_reason or "its process ended without a word (it was killed, or the machine went down)"
    yield Finding(
        subject="run",
        what=f"it stopped after {patient.account.version} steps: {cause}",
        suggestion="repair what is named here, then run the same command again: it continues from here",
    )


def disk(patient: Patient) -> Iterator[Finding]:
    needed = max(2 * patient.checkpoint_bytes, MIN_FREE_BYTES)
    free = patient.machine.disk_free
    evidence = _disk_full_evidence(patient)
    if evidence:
        yield Finding(
            subject="disk",
            what=f"the disk was full: {evidence}; {_size(free)} are free now",
            suggestion=f"free at least {_size(needed)} on the disk of {patient.path}, or lower keep_checkpoints; then"
            " run the same command again",
        )
    elif free < needed:
        yield Finding(
            subject="disk",
            what=f"the disk is nearly full: {_size(free)} are free, the next checkpoints may need {_size(needed)}",
            suggestion="free some space, or lower keep_checkpoints",
        )


def _disk_full_evidence(patient: Patient) -> str:
    if patient.life == RUNNING:
        return ""
    if patient.life == STOPPED and says_disk_full(patient.stop_reason):
        return patient.stop_reason
    if patient.life == STOPPED and not patient.stop_reason and patient.log_complaint:
        return patient.log_complaint  # only of a run without a word of its own: logs reach far back
    if patient.has_torn_end and patient.machine.disk_free < MIN_FREE_BYTES:
        return "the last line of the journal is cut off"
    return ""


def checkpoints(patient: Patient) -> Iterator[Finding]:
    for name, problem in patient.damaged:
        where = f"{patient.path}/checkpoints/{name}"
        left = "the newest whole checkpoint" if patient.num_whole_checkpoints else "the beginning"
        yield Finding(
            subject="checkpoint",
            what=f"checkpoint {name} is damaged: {problem}",
            suggestion=f"move {where} away; the same command then continues from {left}",
        )


def instances(patient: Patient) -> Iterator[Finding]:
    by_instance: dict[int, list[str]] = {}
    for loss in patient.account.losses:
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


def rewards(patient: Patient) -> Iterator[Finding]:
    notes = _recent(patient)
    failures = Counter(note.outcome for note in notes if note.outcome not in (None, Outcome.OK))
    if failures[Outcome.TIMEOUT]:
        limit = f" of {patient.reward_timeout_s:g} s" if patient.reward_timeout_s else ""
        yield Finding(
            subject="reward",
            what=f"the reward function hangs: {failures[Outcome.TIMEOUT]} of the last {len(notes)} scores passed their"
            f" time limit{limit} and were killed",
            suggestion="find what it waits for with one of those responses, or raise reward.timeout_s if it is only"
            " slow",
        )
    others = {outcome: count for outcome, count in failures.items() if outcome is not Outcome.TIMEOUT}
    if notes and sum(others.values()) >= max(1.0, MANY_FAILURES * len(notes)):
        kinds = ", ".join(f"{count} {outcome.value}" for outcome, count in others.items() if outcome)
        last = next(note.detail for note in reversed(notes) if note.outcome in others)
        yield Finding(
            subject="reward",
            what=f"rewards fail: {kinds} among the last {len(notes)} scores; the last one: {last or 'no detail'}",
            suggestion="call the reward function with one of those responses; its output is in logs/reward-*.log",
        )
    yield from _slow_rewards(patient)


def _recent(patient: Patient) -> list[ResponseNote]:
    notes: list[ResponseNote] = []
    for fate in reversed(patient.account.fates.groups.values()):
        notes += [note for note in fate.responses.values() if note.outcome is not None]
        if len(notes) >= RECENT_RESPONSES:
            break
    return list(reversed(notes))


def _slow_rewards(patient: Patient) -> Iterator[Finding]:
    rows = patient.account.steps[-RECENT_STEPS:]
    waited, whole = (sum(row[name] for row in rows) for name in ("timing_s/reward", "timing_s/step"))
    if whole > 0 and waited / whole > SLOW_REWARD_SHARE:
        yield Finding(
            subject="reward",
            what=f"training waited {waited / whole:.0%} of the last {len(rows)} steps for rewards alone",
            suggestion="raise reward.workers, or make the reward function faster",
        )


def stragglers(patient: Patient) -> Iterator[Finding]:
    """Everything but a few responses is there, and the trainer has nothing to do."""
    memory = patient.memory
    if memory is None or patient.life != RUNNING or memory.state.training is not None:
        return
    state, source = memory.state, memory.schedule.train_source
    groups = [
        g for g in state.groups.values() if g.id.source == source and g.phase in (GroupPhase.OPEN, GroupPhase.COMPLETE)
    ]
    members = [t for group in groups for t in group.members.values()]
    left = [t for t in members if t.phase is TrajectoryPhase.RUNNING]
    is_rest_done = len(left) == sum(t.phase is not TrajectoryPhase.SCORED for t in members)
    if not left or not is_rest_done or len(left) > max(1.0, FEW_LEFT * len(members)):
        return
    quiet_s = (
        patient.now - max(_last_move(t.story) for t in members if t not in left) if len(left) < len(members) else 0
    )
    if quiet_s < STRAGGLER_S:
        return
    slowest = max(left, key=lambda t: t.length)
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    yield Finding(
        subject="straggler",
        what=f"the trainer waits for response {slowest.id}{others} on instance {slowest.instance}"
        f" ({slowest.length} tokens so far); the other {len(members) - len(left)} of this step have been ready for"
        f" {quiet_s:.0f} s",
        suggestion="lower rollout.max_response_length if such lengths are of no use",
    )


def _last_move(story: list[str]) -> float:
    """When a trajectory last changed its phase: the number its story's last line begins with."""
    return float(story[-1].split()[0]) if story else 0.0


def waiting(patient: Patient) -> Iterator[Finding]:
    for wait in patient.waits:
        age = patient.now - wait.since
        if age >= NEAR_LIMIT * wait.limit_s:
            then = "it is restarted" if wait.instance is not None else "the run fails"
            yield Finding(
                subject="wait",
                what=f"waiting for {wait.what} for {age:.0f} s; after {wait.limit_s:.0f} s {then}",
                suggestion="look at that worker's log in logs/; if it only needs longer, raise its limit ([limits], or"
                " reward.timeout_s)",
            )


def preemptions(patient: Patient) -> Iterator[Finding]:
    count = sum(patient.account.num_preemptions.values())
    responses = sum(len(fate.responses) for fate in patient.account.fates.groups.values())
    if count > MANY_PREEMPTIONS * responses > 0:
        yield Finding(
            subject="preemptions",
            what=f"{count} times a response had to be recomputed because the KV budget was used up",
            suggestion="raise rollout.kv_tokens, or lower rollout.max_running",
        )


def memory(patient: Patient) -> Iterator[Finding]:
    available, total = patient.machine.memory_available, patient.machine.memory_total
    if available is not None and total and available < MIN_FREE_MEMORY * total and patient.life == RUNNING:
        yield Finding(
            subject="memory",
            what=f"{_size(available)} of {_size(total)} memory are left on this machine",
            suggestion="lower rollout.kv_tokens or trainer.max_tokens_per_gpu before the system kills a process",
        )


def record(patient: Patient) -> Iterator[Finding]:
    if patient.memory_problem:
        yield Finding(
            subject="journal",
            what=f"the journal cannot be followed to its end: {patient.memory_problem}",
            suggestion="use the version of tailrace that wrote it, or start in another output_dir",
        )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


CHECKS: tuple[Check, ...] = (
    disk,
    checkpoints,
    record,
    instances,
    rewards,
    stragglers,
    waiting,
    preemptions,
    memory,
    stopped,
)
"""In the order of what usually is the cause of the rest."""
