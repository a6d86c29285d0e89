"""How long devices worked and how long they had nothing to do: a pure fold over the journal that keeps only sums.

Time counts from the first ``Submit`` to the last optimizer step, except while the trainer starts and while only
responses of evaluations run. If a run was resumed,
its pause does not count: from the interruption until the processes have started again, the steps after the checkpoint
are repeated and there is new work.

A device of an instance works while the instance generates, loads weights, releases its memory or starts again; a
training device works while the trainer trains, publishes or saves. Where rollout and training share their devices, the
trainer's work is work of all of them. The rest is the bubble.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.schedule import Placement, Schedule
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.records import Work
from tailrace.observe.shared_fold.run_fold import RunFold


@dataclass(slots=True, kw_only=True)
class DeviceSums:
    """Seconds since the first ``Submit`` in which the run was not paused, the trainer not starting, and not only
    responses of evaluations ran."""

    elapsed_s: float = 0.0
    generating_s: float = 0.0
    """Seconds in which at least one instance generated, also while the trainer started."""
    instance_s: float = 0.0
    """Instance-seconds of generating."""
    fleet_s: float = 0.0
    """Instance-seconds in which instances were in the fleet."""
    training_s: float = 0.0
    """Seconds in which the trainer took optimizer steps."""
    working_s: float = 0.0
    """Device-seconds of any work."""
    evaluation_s: float = 0.0
    """Seconds in which only responses of evaluations ran. No other sum contains them."""


class DeviceTime:
    """Feed it a journal from its first entry. ``at_step`` holds the sums as of the last optimizer step."""

    def __init__(
        self, run: RunFold | None = None, *, devices_per_instance: float = 1.0, training_devices: float = 1.0
    ) -> None:
        """``run``: a fold that several accounts share; whoever shares it calls ``hear`` and not ``feed``.
        ``training_devices`` counts only where rollout and training do not share their devices."""
        self._run = run or RunFold()
        self._per_instance, self._training = devices_per_instance, training_devices
        self._is_paused = False
        self._has_begun = False
        """Whether there was a ``Submit``."""
        self._began = 0.0
        self._paused_s = 0.0
        self._sums = DeviceSums()
        self.at_step = DeviceSums()

    def device_s(self, sums: DeviceSums) -> float:
        """Return the device-seconds of all devices, working or not."""
        is_apart = self._schedule.placement is Placement.DISAGGREGATED
        return sums.fleet_s * self._per_instance + sums.elapsed_s * self._training * is_apart

    @property
    def wall_s(self) -> float:
        """Seconds since the start of the run without pauses. It contains one start of the processes."""
        return self._run.state.now - self._began - self._paused_s

    def feed(self, entry: Entry) -> None:
        for news in self._run.feed(entry):
            self.hear(news)

    def hear(self, news: News) -> None:
        match news.message:
            case TimeSinceLast(since=since, is_outage=is_outage):
                self._elapse(since, news.now, is_outage=is_outage)
            case ev.RunStarted():
                self._began = news.now
            case ev.StepTrained():
                self.at_step = replace(self._sums)
            case do.Submit():
                self._has_begun = True

    def _elapse(self, since: float, now: float, *, is_outage: bool) -> None:
        state = self._run.state
        if (self._run.generating or state.orders) and not state.is_trainer_starting:
            self._is_paused = False
        if not is_outage:
            self._add(now - since)
        elif self._is_paused or (self._has_begun and not state.is_trainer_starting):
            self._is_paused = True
            self._paused_s += now - since
        else:  # the start that follows is the one that counts
            self._began = now

    def _add(self, seconds: float) -> None:
        sums, state = self._sums, self._run.state
        self._paused_s += seconds * self._is_paused
        if not self._has_begun:
            return
        if self._run.is_evaluating:
            sums.evaluation_s += seconds
            return
        generating, occupied = self._run.generating, self._run.occupied
        num_generating = len(generating)
        num_working = num_generating + (len(occupied.keys() - generating.keys()) if occupied else 0)
        sums.generating_s += seconds * bool(num_generating)
        if state.is_trainer_starting or self._is_paused:
            return
        sums.elapsed_s += seconds
        sums.instance_s += seconds * num_generating
        sums.fleet_s += seconds * (num_there := self._run.num_in_fleet(self._schedule))
        sums.training_s += seconds * (bool(state.orders) and state.orders[0].work is Work.TRAIN)
        is_trainer_working = bool(state.orders) or state.publishing is not None
        if self._schedule.placement is Placement.DISAGGREGATED:
            sums.working_s += seconds * (num_working * self._per_instance + self._training * is_trainer_working)
        else:
            num_working = num_there if is_trainer_working else num_working
            sums.working_s += seconds * num_working * self._per_instance

    @property
    def _schedule(self) -> Schedule:
        assert self._run.state.schedule is not None, "the journal has not begun"
        return self._run.state.schedule
