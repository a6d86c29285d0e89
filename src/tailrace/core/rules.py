"""Every schedule as rules: each looks at the state, does what is due, and returns the commands.

Rules look at state, not at the event that led there, so it does not matter how a state was reached: a first start, a
lost instance and a resumed run all take the same way. The order of ``RULES`` is the order of their commands.

    batch of step r:  launch groups  ->  accept B of them  ->  collect: what becomes of the rest?  ->  train r -> r+1

With rounds (``round_rules``) a batch is collected from one round, which begins when the version it needs is published;
without them (`keep`) groups begin whenever the ledger has room, and a batch is collected when the trainer is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.core import commands as do
from tailrace.core.dispatching import dispatch
from tailrace.core.errors import CoreError
from tailrace.core.fleet import InstancePhase
from tailrace.core.groups import GroupPhase
from tailrace.core.moves import let_go, move
from tailrace.core.policy import Policies
from tailrace.core.relief import relieve
from tailrace.core.round_rules import accept, collect, open_round, request_prompts
from tailrace.core.schedule import Placement, Schedule
from tailrace.core.state import Pending, State
from tailrace.core.steering import close_plan, migrate, open_plan, pull, synchronize
from tailrace.core.trajectory import Finish, TrajectoryPhase
from tailrace.core.waits import waits

_MAX_RELIEFS = 20
"""Times in a row that training may be relieved of what it waits for, without a batch in between."""
_MIN_FAILURES = 32
"""Rewards that fail one after the other before it is not bad luck any more."""
Rule = Callable[[State, Schedule, Policies, float], Iterator[do.Command]]


def release_surplus(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """A group that has what it needs calls off the rest of its members, and is heard of if that is all it comes to."""
    surplus, state.surplus = state.surplus, {}
    yield from let_go(state, surplus.values())
    left_out, state.left_out = state.left_out, {}
    if left_out:
        filtered = tuple(sorted(group for group, phase in left_out.items() if phase is GroupPhase.FILTERED))
        dropped = tuple(sorted(group for group in left_out if group not in filtered))
        yield do.LeaveOut(filtered=filtered, dropped=dropped)


def start_trainer(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if schedule.trains and not state.is_trainer_asked:
        state.is_trainer_asked, state.trainer_heard_at = True, now
        yield do.StartTrainer()


def start_instances(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """One that is lost again and again is left alone until the next step, while there are others."""
    gone = InstancePhase.ABSENT  # looked up once: every event asks this of every instance
    absent = [each for each in state.instances.values() if each.phase is gone]
    startable = [each for each in absent if each.num_restarts <= state.limits.max_restarts]
    if len(absent) == len(state.instances) and not startable:
        last = max(absent, key=lambda each: each.heard_at)
        times = f"{last.num_restarts} times within one step"
        state.verdict = (
            f"no rollout instance is left: instance {last.id} was lost {times}; the last time: {last.last_loss}"
        )
        return
    for instance in startable:
        instance.move(InstancePhase.STARTING, now=now)
        yield do.StartInstance(instance=instance.id)


def publish(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """Instances wait for it, so it comes before the checkpoint; both, and the next step, may then go on beside it."""
    if state.published < state.version and state.publishing is None and state.is_trainer_ready:
        state.publishing = Pending(since=now, version=state.version)
        yield do.PublishWeights(version=state.version)


def save(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    # Comes before the rule that begins a step, and the training worker does one thing after the other: the
    # checkpoint holds exactly this version.
    is_possible = state.saving is None and state.training is None and state.is_trainer_ready
    if state.save_due is not None and is_possible:
        state.saving = Pending(since=now, version=state.save_due)
        yield do.SaveCheckpoint(version=state.saving.version)


def evaluate(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if state.eval_done == state.version:
        return
    if not schedule.is_eval_due(state.version):
        state.eval_done = state.version
        return
    for eval_set in schedule.eval_sets:
        if eval_set.name not in state.eval_open:
            state.eval_open[eval_set.name] = eval_set.num_prompts
            state.prompts[eval_set.name] = Pending(since=now, version=state.version)
            yield do.RequestPrompts(source=eval_set.name, epoch=state.version, offset=0, count=eval_set.num_prompts)


def close_evaluation(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if not state.eval_open or any(state.eval_open.values()):
        return
    for name in state.eval_open:
        groups = [group for group in state.groups.values() if group.id.source == name]
        for group in groups:
            group.move(GroupPhase.EVALUATED, now=now)
            del state.groups[group.id]
        ids = tuple(sorted(group.id for group in groups))
        yield do.CloseEvaluation(version=state.version, source=name, groups=ids)
    state.eval_open = {}
    state.eval_done = state.version


def score(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    # A barrier holds back training responses only: an evaluation is never part of what it compares.
    if not state.generated:
        return
    is_open = schedule.is_reward_streamed or not _is_generating(state, schedule)
    due = [t for t in state.generated if is_open or t.group.source != schedule.train_source]
    if not due:
        return
    if not state.scoring:
        state.scored_at = now
    for trajectory in due:
        move(state, state.trajectory(trajectory), TrajectoryPhase.SCORING, now)
    yield do.Score(trajectories=tuple(due))


def _is_generating(state: State, schedule: Schedule) -> bool:
    source = schedule.train_source
    is_waiting = source in state.prompts or any(group.source == source for group in state.pending)
    return is_waiting or any(t.group.source == source for i in state.instances.values() for t in i.running)


def release_memory(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """Colocated: rollout makes room for the optimizer step."""
    if schedule.placement is not Placement.COLOCATED or not _may_train(state):
        return
    for instance in state.instances.values():
        if instance.is_idle:
            instance.move(InstancePhase.RELEASING, now=now)
            yield do.ReleaseMemory(instance=instance.id)


def _may_train(state: State) -> bool:
    is_free = state.training is None and state.is_trainer_ready and state.eval_done == state.version
    return is_free and bool(state.batches)


def train(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if not _may_train(state):
        return
    if schedule.placement is Placement.COLOCATED:
        away = (InstancePhase.RELEASED, InstancePhase.ABSENT)
        if any(instance.phase not in away for instance in state.instances.values()):
            return
    step = next_step(state)
    if schedule.is_strict and min(step.oldest) < state.version - (schedule.max_staleness or 0):
        worst = min(zip(step.oldest, step.trajectories, strict=True))
        raise CoreError(f"{worst[1]} has tokens of version {worst[0]}, too old to train {state.version}")
    state.training = Pending(since=now, version=state.version)
    yield step


def next_step(state: State) -> do.TrainStep:
    """On the first batch that is not trained yet; the same whenever it is asked for."""
    members = sorted((t for group in state.batches[0] for t in state.groups[group].scored()), key=lambda t: t.id)
    # A response without tokens is as fresh as can be.
    oldest = tuple(min((version for version, _ in t.segments), default=state.version) for t in members)
    return do.TrainStep(
        version=state.version,
        trajectories=tuple(t.id for t in members),
        scores=tuple(t.score for t in members),
        truncated=tuple(t.id for t in members if t.finish is Finish.LENGTH),
        oldest=oldest,
    )


def judge(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """Is the run over?"""
    if state.num_dropped_in_a_row >= schedule.batch_size:
        count = state.num_dropped_in_a_row
        state.verdict = f"{count} groups in a row lost every response to a failing reward; {state.last_reward_failure}"
    elif state.num_useless_in_a_row >= schedule.max_useless_groups:
        count = state.num_useless_in_a_row
        state.verdict = (
            f"{count} groups in a row had equal scores and were filtered; the prompts are too easy or too hard"
        )
    elif state.num_failed_in_a_row >= max(_MIN_FAILURES, 2 * schedule.batch_size * schedule.group_size):
        count = state.num_failed_in_a_row
        state.verdict = f"the last {count} rewards failed, every one of them; {state.last_reward_failure}"
    elif state.num_reliefs_in_a_row >= _MAX_RELIEFS:
        state.verdict = (
            f"training gave up what it waited for {_MAX_RELIEFS} times in a row, each time after"
            f" {schedule.max_stuck_s} s: max_stuck_s is shorter than responses take"
        )
    is_saved = state.save_due is None
    if state.verdict is None and state.version == schedule.max_steps and state.eval_done == state.version and is_saved:
        state.verdict = f"{state.version} steps are done" if schedule.trains else "every prompt is done"
        yield do.FinishRun(is_complete=True, reason=state.verdict)


def watch(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """Act on waits past their limit, and be woken when the next one may be."""
    shortest_s, planned = state.limits.shortest_s, [] if state.plan_at is None else [state.plan_at]
    if state.stuck_since is not None and schedule.max_stuck_s is not None:
        planned.append(state.stuck_since + schedule.max_stuck_s)
    if state.timer_at is not None and now < state.timer_at <= min([now + shortest_s, *planned]):
        return  # it was set by the waits of that time, and none that began since can end before it
    current = waits(state, schedule)
    for wait in current:
        if wait.until > now:
            continue
        age = f"waited {now - wait.since:.0f} s for {wait.what} (limit {wait.limit_s:.0f} s)"
        if wait.instance is None:
            state.verdict = age
            return
        state.instances[wait.instance].is_condemned = True
        state.instances[wait.instance].heard_at = now
        yield do.KillInstance(instance=wait.instance, reason=age)
    ends = [wait.until for wait in waits(state, schedule)] + planned
    if ends:
        state.timer_at = min(*ends, now + shortest_s)
        yield do.SetTimer(at=state.timer_at)


RULES: tuple[Rule, ...] = (
    release_surplus,
    start_trainer,
    start_instances,
    publish,
    save,
    open_plan,
    synchronize,
    pull,
    migrate,
    evaluate,
    close_evaluation,
    accept,
    relieve,
    collect,
    open_round,
    request_prompts,
    dispatch,
    close_plan,
    score,
    release_memory,
    train,
    judge,
    watch,
)
