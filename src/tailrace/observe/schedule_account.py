"""What a schedule cost and what it gave: a pure fold over the journal, for real and simulated runs alike.

    tokens generated  ==  trained  +  wasted  +  held (in flight, buffered, or complete and waiting)

Tokens are those of training responses, as far as reported. Wasted are those of responses that were called off or begun
again, of groups that were deferred without their tokens, dropped or filtered, and of members one too many for their
group: from the moment they are given up, though they may still run; of a member that had nothing left to be called off,
from the step that trains its group. What the fold remembers depends on what is live, not on how long the run lasted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.device_time import DeviceTime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFigures:
    """One row of a comparison of schedules."""

    num_steps: int
    wall_s: float
    """From the start of the run to its last entry, without the pause of a run that was interrupted."""
    seconds_per_step: float
    """From the first ``Submit`` to the last optimizer step, per step."""
    tokens_generated: int
    tokens_trained: int
    tokens_wasted: int
    bubble_share: float
    """Device-seconds without any work."""
    rollout_idle_share: float
    """Instance-seconds without a response to generate, whatever the device did meanwhile."""
    trainer_idle_share: float
    rollout_tokens_per_s: float
    """Tokens generated per second in which at least one instance generated."""
    staleness_mean: float
    staleness_max: int
    staleness_violations: int
    """Trained responses older than ``max_staleness``, where there is a bound."""
    rounds_short: int
    rounds_long: int
    versions_mean: float
    """Versions that wrote a trained response."""
    versions_max: int
    carried_share: float
    """Trained tokens that an older version wrote than the one trained."""

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class _Response:
    segments: list[tuple[Version, int]] = field(default_factory=list)
    instance: InstanceId | None = None
    """Where it runs."""

    @property
    def length(self) -> int:
        return sum(count for _, count in self.segments)

    def grow(self, length: int, version: Version) -> int:
        """Take note of tokens up to ``length`` and return how many are new."""
        new = length - self.length
        if new > 0 and self.segments and self.segments[-1][0] == version:
            self.segments[-1] = (version, self.segments[-1][1] + new)
        elif new > 0:
            self.segments.append((version, new))
        return max(new, 0)


@dataclass(slots=True)
class _Sums:
    steps: int = 0
    samples: int = 0
    generated: int = 0
    trained: int = 0
    wasted: int = 0
    carried: int = 0
    staleness: int = 0
    staleness_max: int = 0
    violations: int = 0
    versions: int = 0
    versions_max: int = 0
    short: int = 0
    long: int = 0


class ScheduleAccount:
    """Feed it a journal from its first entry; ask for ``figures`` when it ends, or before."""

    def __init__(self, *, devices_per_instance: float = 1.0, training_devices: float = 1.0) -> None:
        self.devices = DeviceTime(devices_per_instance=devices_per_instance, training_devices=training_devices)
        self._schedule: Schedule | None = None
        self._groups: dict[GroupId, dict[TrajectoryId, _Response]] = {}
        self._given_up: dict[TrajectoryId, _Response] = {}
        """Those that still run."""
        self._training: do.TrainStep | None = None
        self._sums = _Sums()

    def feed(self, entry: Entry) -> None:
        self.devices.feed(entry)
        self._event(entry.event)
        for command in entry.commands:
            self._command(command)

    def figures(self) -> ScheduleFigures:
        sums, time, schedule = self._sums, self.devices.at_step, self._schedule
        assert schedule is not None, "the journal has not begun"
        elapsed, samples = max(time.elapsed_s, 1e-9), max(sums.samples, 1)
        return ScheduleFigures(
            num_steps=sums.steps,
            wall_s=self.devices.wall_s,
            seconds_per_step=time.elapsed_s / max(sums.steps, 1),
            tokens_generated=sums.generated,
            tokens_trained=sums.trained,
            tokens_wasted=sums.wasted,
            bubble_share=1.0 - time.working_s / (elapsed * self.devices.num_devices),
            rollout_idle_share=1.0 - time.instance_s / (elapsed * self.devices.num_instances),
            trainer_idle_share=1.0 - time.training_s / elapsed,
            rollout_tokens_per_s=sums.generated / max(time.generating_s, 1e-9),
            staleness_mean=sums.staleness / samples,
            staleness_max=sums.staleness_max,
            staleness_violations=sums.violations,
            rounds_short=sums.short,
            rounds_long=sums.long,
            versions_mean=sums.versions / samples,
            versions_max=sums.versions_max,
            carried_share=sums.carried / max(sums.trained, 1),
        )

    @property
    def tokens_held(self) -> int:
        return sum(response.length for members in self._groups.values() for response in members.values())

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                self._schedule = schedule
            case ev.RolloutReported(version=version, progressed=progressed, finished=finished):
                for part in progressed:
                    self._grow(part.trajectory, part.length, version)
                for end in finished:
                    self._grow(end.trajectory, end.length, version)
                    self._end(end.trajectory)
            case ev.ResponsesAborted(aborted=aborted):
                for lost in aborted:
                    self._grow(lost.trajectory, lost.length, Version(0))  # nobody will ask which version wrote it
                    self._give_up(lost.trajectory)
                    self._end(lost.trajectory)
            case ev.InstanceLost(instance=instance):
                self._stop(lambda response: response.instance == instance)
            case ev.RunResumed():
                self._stop(lambda response: True)
            case ev.StepTrained():
                self._train()

    def _command(self, command: do.Command) -> None:
        match command:
            case do.Submit(instance=instance, dispatches=dispatches):
                for dispatch in dispatches:
                    self._open(dispatch.trajectory, instance)
            case do.Abort(trajectories=trajectories) | do.CancelScores(trajectories=trajectories):
                for trajectory in trajectories:
                    self._give_up(trajectory)
            case do.TrainStep():
                self._training = command
            case do.LeaveOut(filtered=filtered, dropped=dropped, restarted=restarted):
                self._waste((*filtered, *dropped, *restarted))
            case do.OpenRound(restarted=restarted):
                self._waste(restarted)
            case do.CloseRound(is_long=is_long, deferred=deferred, dropped=dropped):
                self._sums.long += is_long
                self._sums.short += not is_long
                self._waste(dropped)
                if self._schedule is not None and not self._schedule.keeps_deferred_tokens:
                    self._waste(deferred)

    def _open(self, trajectory: TrajectoryId, instance: InstanceId) -> None:
        if self._schedule is None or trajectory.group.source != self._schedule.train_source:
            return
        members = self._groups.setdefault(trajectory.group, {})
        members.setdefault(trajectory, _Response()).instance = instance
        for other in list(members) if trajectory.attempt else ():
            if other.member == trajectory.member and other.attempt < trajectory.attempt:
                self._give_up(other)

    def _grow(self, trajectory: TrajectoryId, length: int, version: Version) -> None:
        if (response := self._groups.get(trajectory.group, {}).get(trajectory)) is not None:
            self._sums.generated += response.grow(length, version)
        elif (response := self._given_up.get(trajectory)) is not None:
            new = response.grow(length, version)
            self._sums.generated += new
            self._sums.wasted += new

    def _end(self, trajectory: TrajectoryId) -> None:
        self._given_up.pop(trajectory, None)
        if (response := self._groups.get(trajectory.group, {}).get(trajectory)) is not None:
            response.instance = None

    def _stop(self, is_stopped: Callable[[_Response], bool]) -> None:
        """They run no more; what nobody gave up goes on from where it was."""
        self._given_up = {each: response for each, response in self._given_up.items() if not is_stopped(response)}
        for members in self._groups.values():
            for response in members.values():
                response.instance = None if is_stopped(response) else response.instance

    def _give_up(self, trajectory: TrajectoryId) -> None:
        members = self._groups.get(trajectory.group, {})
        if (response := members.pop(trajectory, None)) is None:
            return
        self._sums.wasted += response.length
        if response.instance is not None:
            self._given_up[trajectory] = response
        if not members:
            del self._groups[trajectory.group]

    def _waste(self, groups: Iterable[GroupId]) -> None:
        for group in groups:
            for trajectory in list(self._groups.get(group, {})):
                self._give_up(trajectory)
            self._groups.pop(group, None)  # where all its members were trained

    def _train(self) -> None:
        step, schedule, sums = self._training, self._schedule, self._sums
        assert step is not None
        assert schedule is not None
        for trajectory in step.trajectories:
            response = self._groups[trajectory.group].pop(trajectory)
            age = step.version - response.segments[0][0] if response.segments else 0
            sums.samples += 1
            sums.trained += response.length
            sums.carried += sum(count for version, count in response.segments if version < step.version)
            sums.staleness += age
            sums.staleness_max = max(sums.staleness_max, age)
            sums.violations += schedule.max_staleness is not None and age > schedule.max_staleness
            sums.versions += len(response.segments)
            sums.versions_max = max(sums.versions_max, len(response.segments))
        sums.steps += 1
        self._waste({trajectory.group: None for trajectory in step.trajectories})
        self._training = None
