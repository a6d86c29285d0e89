"""The synchronous schedule as rules: each looks at the state, does what is due, and returns the commands.

Rules look at state, not at the event that led there, so it does not matter how a state was reached: a first
start, a lost instance and a resumed run all take the same way. The order below is the order of their commands.

    step v:  evaluate v (if due)  and  generate B groups with v  ->  train  ->  publish v+1  ->  pull v+1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.core import commands as do
from tailrace.core.absorb import move
from tailrace.core.errors import CoreError
from tailrace.core.fleet import InstancePhase
from tailrace.core.groups import GroupPhase
from tailrace.core.policy import InstanceView, RoutingPolicy
from tailrace.core.schedule import Schedule
from tailrace.core.state import Pending, State
from tailrace.core.trajectory import Finish, TrajectoryPhase
from tailrace.core.waits import waits

Rule = Callable[[State, Schedule, RoutingPolicy, float], Iterator[do.Command]]


def start_instances(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    for instance in state.instances.values():
        if instance.phase is not InstancePhase.ABSENT:
            continue
        if instance.num_restarts > state.limits.max_restarts:
            times = f"{instance.num_restarts} times within one step"
            state.verdict = f"instance {instance.id} was lost {times}; the last time: {instance.last_loss}"
            return
        instance.move(InstancePhase.STARTING, now=now)
        yield do.StartInstance(instance=instance.id)


def start_trainer(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    if schedule.trains and not state.is_trainer_asked:
        state.is_trainer_asked, state.trainer_heard_at = True, now
        yield do.StartTrainer()


def save(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    # Comes before any rule that changes the state of the new step, and the training worker does one thing after
    # the other: the checkpoint holds exactly this version.
    is_possible = state.saving is None and state.training is None and state.is_trainer_ready
    if state.save_due is not None and is_possible:
        state.saving = Pending(since=now, version=state.save_due)
        yield do.SaveCheckpoint(version=state.saving.version)


def publish(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    if state.published < state.version and state.publishing is None and state.is_trainer_ready:
        state.publishing = Pending(since=now, version=state.version)
        yield do.PublishWeights(version=state.version)


def pull(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    for instance in state.instances.values():
        is_idle = instance.phase is InstancePhase.READY and not instance.running and not instance.is_condemned
        if is_idle and instance.version < state.published == state.version:
            instance.move(InstancePhase.PULLING, now=now)
            yield do.PullWeights(instance=instance.id, version=state.published)


def evaluate(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
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


def close_evaluation(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
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


def request_prompts(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    source = schedule.train_source
    if state.version == schedule.max_steps or source in state.prompts:
        return
    if (count := schedule.batch_size - state.num_train_groups) > 0:
        state.prompts[source] = Pending(since=now, version=state.version)
        epoch, offset = state.cursor
        yield do.RequestPrompts(source=source, epoch=epoch, offset=offset, count=count)


def dispatch(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    able = [instance for instance in state.instances.values() if instance.accepts(state.version)]
    if not able or not state.pending:
        return
    batches: dict[int, list[do.Dispatch]] = {instance.id: [] for instance in able}
    while state.pending:
        views = [InstanceView(instance=i.id, num_running=len(i.running), capacity=schedule.max_in_flight) for i in able]
        if (chosen := routing.choose(views)) is None:
            break
        instance = state.instances[chosen]
        instance.heard_at = instance.heard_at if instance.running else now
        group = state.groups[next(iter(state.pending)).group]
        for trajectory in group.members.values():
            if trajectory.phase is TrajectoryPhase.PENDING:
                batches[chosen].append(do.Dispatch(trajectory=trajectory.id, start=trajectory.length))
                move(state, trajectory, TrajectoryPhase.RUNNING, now)
                trajectory.instance = chosen
                instance.running[trajectory.id] = None
    for instance in able:
        if batches[instance.id]:
            yield do.Submit(instance=instance.id, dispatches=tuple(batches[instance.id]))


def score(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    # A barrier holds back training responses only: an evaluation is never part of what it compares.
    is_open = schedule.is_reward_streamed or (state.num_unfinished == 0 and schedule.train_source not in state.prompts)
    if not state.generated or not (is_open or state.eval_open):
        return
    due = [t for t in state.generated if is_open or t.group.source != schedule.train_source]
    if not due:
        return
    if not state.scoring:
        state.scored_at = now
    for trajectory in due:
        move(state, state.trajectory(trajectory), TrajectoryPhase.SCORING, now)
    yield do.Score(trajectories=tuple(due))


def train(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    is_possible = state.training is None and state.is_trainer_ready and state.eval_done == state.version
    if not is_possible or len(state.complete) < schedule.batch_size:
        return
    members = []
    for group_id in sorted(state.complete):
        group = state.groups[group_id]
        group.move(GroupPhase.TRAINING, now=now)
        members += group.scored()
    for trajectory in members:
        if any(version != state.version for version, _ in trajectory.segments):
            raise CoreError(f"{trajectory.id} has tokens of {trajectory.segments}, training version {state.version}")
    state.complete.clear()
    state.training = Pending(since=now, version=state.version)
    yield do.TrainStep(
        version=state.version,
        trajectories=tuple(trajectory.id for trajectory in members),
        scores=tuple(trajectory.score for trajectory in members),
        truncated=tuple(trajectory.id for trajectory in members if trajectory.finish is Finish.LENGTH),
    )


def judge(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    """Is the run over?"""
    if state.num_dropped_in_a_row >= schedule.batch_size:
        count = state.num_dropped_in_a_row
        state.verdict = f"{count} groups in a row lost every response to a failing reward; {state.last_reward_failure}"
    elif state.num_useless_in_a_row >= schedule.max_useless_groups:
        count = state.num_useless_in_a_row
        state.verdict = (
            f"{count} groups in a row had equal scores and were filtered; the prompts are too easy or too hard"
        )
    is_saved = state.save_due is None and state.saving is None
    if state.verdict is None and state.version == schedule.max_steps and state.eval_done == state.version and is_saved:
        state.verdict = f"{state.version} steps are done" if schedule.trains else "every prompt is done"
        yield do.FinishRun(is_complete=True, reason=state.verdict)


def watch(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    """Act on waits past their limit, and be woken when the next one may be."""
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
    deadline = min((wait.until for wait in waits(state, schedule)), default=None)
    if deadline is not None and (state.timer_at is None or deadline < state.timer_at):
        state.timer_at = deadline
        yield do.SetTimer(at=deadline)


RULES: tuple[Rule, ...] = (
    start_trainer,
    start_instances,
    save,
    publish,
    pull,
    evaluate,
    close_evaluation,
    request_prompts,
    dispatch,
    score,
    train,
    judge,
    watch,
)
