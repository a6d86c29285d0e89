"""A rollout instance as the coordinator meets it: an engine model behind an ordered link that may lose a message.

Ends of responses are reported at once, or gathered until the next multiple of ``report_s`` while others go on. Progress
of unfinished responses is left out except where it matters: where somebody plans by it, often enough that nobody takes
the instance for dead, and, when it is lost, as of its last report. What was generated after that report is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, TrajectoryId, Version
from tailrace.core.trajectory import Finish
from tailrace.sim.driver import Action, Agenda
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.engine_model import EngineModel, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTimes:
    start_s: float = 0.0
    pull_s: float = 0.0
    release_s: float = 0.0
    report_s: float = 0.0
    """Seconds between two reports of a busy instance; 0: whenever something ends. The last end is reported at once."""
    progress_s: float = 1.0
    """Seconds between two notes of how far unfinished responses are."""
    load_s: float = 10.0
    """Seconds between two reports of that, where somebody plans by it."""


class Instance:
    """One incarnation: after a loss the world makes a new one, and nothing this one still had to say is delivered."""

    def __init__(
        self,
        number: InstanceId,
        *,
        costs: EngineCosts,
        times: InstanceTimes,
        keepalive_s: float,
        load_s: float = math.inf,
        agenda: Agenda,
        on_busy: Callable[[], None],
    ) -> None:
        """``on_busy`` is told when it has work, and when it has none any more. Progress is reported every ``load_s``,
        and whenever nothing else was for ``keepalive_s``."""
        self.id, self.version = number, Version(0)
        self._engine: EngineModel[TrajectoryId] = EngineModel(costs)
        self._times, self._agenda = times, agenda
        self._keepalive_s, self._load_s = keepalive_s, load_s
        self._on_busy, self._was_busy = on_busy, False
        self._full_length: dict[TrajectoryId, bool] = {}
        """Requests, and whether their budget ends them."""
        self._unreported: list[ev.Finished] = []
        self._noted: dict[TrajectoryId, int] = {}
        """Lengths the coordinator knows."""
        self._wake_at: float | None = None
        self._spoke_at = self._told_at = agenda.now
        self._blocked_until = 0.0
        self._repeat_s: float | None = None
        self._has_weights = True
        self._is_gone = False

    @property
    def is_busy(self) -> bool:
        return self._engine.num_requests > 0

    def held(self) -> Iterable[TrajectoryId]:
        """Responses it has not ended."""
        return self._noted

    def start(self, at: float) -> None:
        self._at(at, lambda: self._say(ev.InstanceStarted(instance=self.id, version=self.version)))

    def submit(self, requests: Sequence[tuple[Request[TrajectoryId], bool]]) -> None:
        assert self._has_weights, f"instance {self.id} is given work while it holds no weights"
        if not self._engine.num_requests:
            self._spoke_at = self._told_at = self._agenda.now
        for request, is_cut in requests:
            self._full_length[request.id] = is_cut
            self._noted[request.id] = request.length
        self._engine.submit((request for request, _ in requests), self._agenda.now)
        self._wake()

    def interrupt(self, trajectories: Iterable[TrajectoryId]) -> None:
        done, lengths = self._engine.remove(trajectories, self._agenda.now)
        cut = [ev.Finished(trajectory=t, length=n, finish=Finish.INTERRUPTED) for t, n in lengths.items()]
        self._forget(lengths)
        if cut:
            self._at(done, lambda: self._report(cut))
        self._wake()

    def abort(self, trajectories: Sequence[TrajectoryId]) -> None:
        done, lengths = self._engine.remove(trajectories, self._agenda.now)
        self._forget(lengths)
        gone = tuple(ev.Aborted(trajectory=t, length=lengths.get(t, 0)) for t in trajectories)

        def answer() -> None:
            self._report([])  # what had ended before comes first
            self._say(ev.ResponsesAborted(instance=self.id, aborted=gone))

        self._at(done, answer)
        self._wake()

    def pull(self, version: Version) -> None:
        assert not self._engine.num_requests, f"instance {self.id} pulls with live requests"
        self._has_weights = False
        self._at(self._agenda.now + self._times.pull_s, lambda: self._pulled(version))

    def release(self) -> None:
        assert not self._engine.num_requests, f"instance {self.id} releases its memory with live requests"
        self._has_weights, seconds = False, self._times.release_s
        self._at(self._agenda.now + seconds, lambda: self._say(ev.MemoryReleased(instance=self.id, seconds=seconds)))

    def slow_down(self, factor: float) -> None:
        self._engine.slow_down(factor, self._agenda.now)
        self._wake()

    def lose_next_message(self, repeat_s: float) -> None:
        """The next message is lost and arrives only when it is repeated; later ones queue behind it."""
        self._repeat_s = repeat_s

    def vanish(self) -> list[ev.Event]:
        """The instance is gone; returned is the last report that was made before, if it says anything."""
        now, every = self._agenda.now, self._times.progress_s
        self._is_gone = True
        at = max(self._spoke_at, math.floor(now / every) * every)
        progressed = self._progress(at)
        if not (progressed or self._unreported) or now < self._blocked_until:
            return []
        return [self._reported(self._unreported, progressed)]

    def _pulled(self, version: Version) -> None:
        self.version, self._has_weights = version, True
        self._say(ev.WeightsPulled(instance=self.id, version=version, seconds=self._times.pull_s))

    def _wake(self) -> None:
        """Be there when the next response ends, or when it is time for a sign of life."""
        if self.is_busy != self._was_busy:
            self._was_busy = self.is_busy
            self._on_busy()
        time = self._engine.next_time()
        if time is None:
            self._wake_at = None
            return
        time = min(time, self._tells_at)
        if time != self._wake_at:
            self._wake_at = time
            self._at(time, lambda: self._woken(time))

    @property
    def _tells_at(self) -> float:
        return min(self._spoke_at + self._keepalive_s, self._told_at + self._load_s)

    def _woken(self, time: float) -> None:
        if self._wake_at != time:
            return
        self._wake_at = None
        ended = self._collect()
        if self._unreported and not self.is_busy:
            self._report([])
        elif ended and self._times.report_s:
            self._at(_next_multiple(time, self._times.report_s), lambda: self._report([]))
        elif ended:
            self._report([])
        if time >= self._tells_at:
            self._spoke_at = self._told_at = time
            if progressed := self._progress(time):
                self._say(self._reported([], progressed))
        self._wake()

    def _collect(self) -> bool:
        """Take note of responses that have ended; whether it is time to think of a report."""
        had_none = not self._unreported
        for end in self._engine.ended(self._agenda.now):
            finish = Finish.LENGTH if self._full_length.pop(end.id) else Finish.STOP
            self._noted.pop(end.id)
            self._unreported.append(ev.Finished(trajectory=end.id, length=end.length, finish=finish))
        return had_none and bool(self._unreported)

    def _report(self, cut: list[ev.Finished]) -> None:
        self._collect()
        finished, self._unreported = [*self._unreported, *cut], []
        if finished:
            self._spoke_at = self._agenda.now
            self._say(self._reported(finished, ()))

    def _progress(self, at: float) -> tuple[ev.Progressed, ...]:
        news = []
        for trajectory, length in self._engine.lengths(at).items():
            if length > self._noted[trajectory]:
                self._noted[trajectory] = length
                news.append(ev.Progressed(trajectory=trajectory, length=length))
        return tuple(news)

    def _reported(self, finished: list[ev.Finished], progressed: tuple[ev.Progressed, ...]) -> ev.RolloutReported:
        return ev.RolloutReported(
            instance=self.id,
            version=self.version,
            progressed=progressed,
            finished=tuple(finished),
            num_preemptions=self._engine.num_preemptions,
        )

    def _forget(self, trajectories: Iterable[TrajectoryId]) -> None:
        for trajectory in trajectories:
            del self._full_length[trajectory], self._noted[trajectory]

    def _say(self, event: ev.Event) -> None:
        if self._repeat_s is not None:
            self._blocked_until = self._agenda.now + self._repeat_s
            self._repeat_s = None
        if self._agenda.now >= self._blocked_until:
            self._agenda.post(event)
        else:
            self._at(self._blocked_until, lambda: self._agenda.post(event))

    def _at(self, time: float, action: Action) -> None:
        def act() -> None:
            if not self._is_gone:
                action()

        self._agenda.at(time, act)


def _next_multiple(time: float, interval: float) -> float:
    return math.ceil(time / interval) * interval
