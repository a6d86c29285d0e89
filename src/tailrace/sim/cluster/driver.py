"""Run a cluster scheduler in virtual time. Nothing but the agenda moves the clock (``sim/driver.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tailrace.cluster.commands import Command, Wake
from tailrace.cluster.events import ClusterStarted, Event, TimePassed
from tailrace.core import events as core_events
from tailrace.sim.cluster.faults import Fault
from tailrace.sim.cluster.group_memory import Bandwidths
from tailrace.sim.cluster.job_model import JobPlan
from tailrace.sim.cluster.world import World
from tailrace.sim.driver import Agenda, Deadlock

_MOST_WAKES = 1_000
"""A scheduler that wakes so often, and once for each job, while nothing else happens will never do anything."""


class ClusterScheduler(Protocol):
    def handle(self, event: Event, *, now: float) -> list[Command]: ...


Record = Callable[[float, Event, Sequence[Command]], None]


class Driver:
    """Owns the agenda, the world and the scheduler of one simulation."""

    def __init__(
        self,
        first: ClusterStarted,
        make_scheduler: Callable[[ClusterStarted], ClusterScheduler],
        plans: Sequence[JobPlan],
        *,
        bandwidths: Bandwidths,
        faults: Iterable[Fault] = (),
        record: Record | None = None,
    ) -> None:
        self.agenda = Agenda()
        self.num_events = 0
        self._record = record
        self._timer: float | None = None
        self._most_wakes = _MOST_WAKES + len(plans)
        self._wakes_in_a_row = 0
        self._scheduler = make_scheduler(first)
        self.world = World(
            first.groups,
            plans,
            self.agenda,
            self._deliver,
            bandwidths=bandwidths,
            rollout_devices=first.rollout_devices,
            faults=faults,
        )

    def run(self) -> None:
        """Handle events until every job is over."""
        while not self.world.is_over:
            if not self.agenda or self._wakes_in_a_row > self._most_wakes:
                raise Deadlock(f"at {self.agenda.now:.1f} s nothing happens any more, but {self._unfinished()}")
            action = self.agenda.next()
            assert not isinstance(action, core_events.Event)
            action()
        self.world.close()

    def _deliver(self, event: Event) -> None:
        now = self.agenda.now
        self.num_events += 1
        self._wakes_in_a_row = self._wakes_in_a_row + 1 if isinstance(event, TimePassed) else 0
        commands = self._scheduler.handle(event, now=now)
        if self._record is not None:
            self._record(now, event, commands)
        for command in commands:
            if isinstance(command, Wake):
                self._set_timer(command.at)
            else:
                self.world.perform(command)

    def _set_timer(self, at: float) -> None:
        self._timer = at
        self.agenda.at(at, lambda: self._fire(at))

    def _fire(self, at: float) -> None:
        if self._timer == at:  # not replaced since
            self._timer = None
            self._deliver(TimePassed())

    def _unfinished(self) -> str:
        names = [job.id for job in self.world.jobs.values() if not job.is_over]
        return f"{len(names)} jobs are not over: {', '.join(names[:5])}"
