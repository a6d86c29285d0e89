"""How long devices worked and how long they had nothing to do: a pure fold over the journal that keeps only sums.

Counted from the first ``Submit`` to the last optimizer step, except while the trainer starts: neither the start of
processes nor what follows the last step is part of it. Of a run that was resumed, neither is the pause: from the
interruption until processes have started again, steps after the checkpoint are taken again and there is work.

A device of an instance works while the instance generates, loads weights, releases its memory or starts again; a
training device works while the trainer trains, publishes or saves. Where rollout and training share their devices, the
trainer's work is work of all of them. The rest is the bubble.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, TrajectoryId, Version
from tailrace.core.journal import Entry
from tailrace.core.schedule import Placement, Schedule


@dataclass(slots=True, kw_only=True)
class DeviceSums:
    """Seconds since the first ``Submit`` in which the run was not paused and the trainer not starting."""

    elapsed_s: float = 0.0
    generating_s: float = 0.0
    """At least one instance generated, also while the trainer started."""
    instance_s: float = 0.0
    """Instance-seconds of generating."""
    training_s: float = 0.0
    """The trainer took optimizer steps."""
    working_s: float = 0.0
    """Device-seconds of any work."""


class DeviceTime:
    """Feed it a journal from its first entry. ``at_step`` holds the sums as of the last optimizer step."""

    def __init__(self, *, devices_per_instance: float = 1.0, training_devices: float = 1.0) -> None:
        """``training_devices`` counts only where rollout and training do not share their devices."""
        self._per_instance, self._training = devices_per_instance, training_devices
        self._schedule: Schedule | None = None
        self._running: dict[InstanceId, set[TrajectoryId]] = {}
        """Of instances that generate; never an empty set."""
        self._occupied: dict[InstanceId, None] = {}
        """Instances that start, load weights or release memory."""
        self._orders: list[type[do.Command]] = []
        """What the trainer was asked to do, one after the other, and has not done."""
        self._is_publishing = False
        self._is_trainer_starting = False
        self._version = Version(0)
        self._is_paused = False
        self._has_begun = False
        """Since the first ``Submit``."""
        self._began = self._now = 0.0
        self._paused_s = 0.0
        self._sums = DeviceSums()
        self.at_step = DeviceSums()

    @property
    def num_devices(self) -> float:
        assert self._schedule is not None, "the journal has not begun"
        shared = self._schedule.num_instances * self._per_instance
        return shared + (self._training if self._schedule.placement is Placement.DISAGGREGATED else 0.0)

    @property
    def num_instances(self) -> int:
        return self._schedule.num_instances if self._schedule is not None else 0

    @property
    def wall_s(self) -> float:
        """Since the start of the run, without pauses: one start of the processes is part of it, however many were."""
        return self._now - self._began - self._paused_s

    def feed(self, entry: Entry) -> None:
        if isinstance(entry.event, ev.RunStarted):
            self._began = self._now = entry.now
        elif isinstance(entry.event, ev.RunResumed):
            self._resume(entry.now)
        self._add(entry.now - self._now)
        self._now = entry.now
        self._event(entry.event)
        for command in entry.commands:
            self._command(command)
        if (self._running or self._orders) and not self._is_trainer_starting:
            self._is_paused = False

    def _resume(self, now: float) -> None:
        self._running, self._occupied, self._orders, self._is_publishing = {}, {}, [], False
        has_started = self._has_begun and not self._is_trainer_starting
        if has_started or self._is_paused:
            self._is_paused = True
        else:  # the start that follows is the one that counts
            self._began, self._now = now, now

    def _add(self, seconds: float) -> None:
        sums = self._sums
        self._paused_s += seconds * self._is_paused
        if not self._has_begun:
            return
        num_generating = len(self._running)
        num_working = num_generating + sum(instance not in self._running for instance in self._occupied)
        sums.generating_s += seconds * bool(num_generating)
        if self._is_trainer_starting or self._is_paused:
            return
        sums.elapsed_s += seconds
        sums.instance_s += seconds * num_generating
        sums.training_s += seconds * (do.TrainStep in self._orders[:1])
        assert self._schedule is not None
        is_trainer_working = bool(self._orders) or self._is_publishing
        if self._schedule.placement is Placement.DISAGGREGATED:
            sums.working_s += seconds * (num_working * self._per_instance + self._training * is_trainer_working)
        else:
            num_working = self._schedule.num_instances if is_trainer_working else num_working
            sums.working_s += seconds * num_working * self._per_instance

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                self._schedule = schedule
            case ev.RolloutReported(instance=instance, finished=finished) if finished:
                self._end(instance, {part.trajectory for part in finished})
            case ev.ResponsesAborted(instance=instance, aborted=aborted):
                self._end(instance, {part.trajectory for part in aborted})
            case ev.InstanceLost(instance=instance):
                self._running.pop(instance, None)
                self._occupied.pop(instance, None)
            case (
                ev.InstanceStarted(instance=instance)
                | ev.WeightsPulled(instance=instance)
                | ev.MemoryReleased(instance=instance)
            ):
                self._occupied.pop(instance, None)
            case ev.StepTrained(version=version):
                self._version = version
                self._orders.remove(do.TrainStep)
                self.at_step = replace(self._sums)
            case ev.TrainerReached(version=version) if version == self._version:
                self._is_trainer_starting = False
            case ev.WeightsPublished():
                self._is_publishing = False
            case ev.CheckpointSaved() | ev.CheckpointFailed():
                self._orders.remove(do.SaveCheckpoint)
            case ev.TrainingFailed():
                self._orders.clear()
                self._is_publishing = False

    def _end(self, instance: InstanceId, trajectories: set[TrajectoryId]) -> None:
        running = self._running.get(instance, set())
        running -= trajectories
        if not running:
            self._running.pop(instance, None)

    def _command(self, command: do.Command) -> None:
        match command:
            case do.Submit(instance=instance, dispatches=dispatches):
                self._has_begun = True
                self._running.setdefault(instance, set()).update(part.trajectory for part in dispatches)
            case (
                do.StartInstance(instance=instance)
                | do.PullWeights(instance=instance)
                | do.ReleaseMemory(instance=instance)
            ):
                self._occupied[instance] = None
            case do.StartTrainer():
                self._is_trainer_starting = True
            case do.PublishWeights():
                self._is_publishing = True
            case do.TrainStep() | do.SaveCheckpoint():
                self._orders.append(type(command))
