"""A simulated rollout instance: an engine model behind an ordered link that may lose a message.

Finished responses are reported at once, or together at the next multiple of ``report_s``. The progress of unfinished
responses is reported only where it matters: if the schedule plans by it; often enough that the instance is not
considered dead; and, when the instance is lost, as of its last progress note. Tokens generated after that are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.sim.driver import Action, Agenda
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.engine_model import EngineModel, SimRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTimes:
    start_s: float = 0.0
    pull_s: float = 0.0
    wake_s: float = 0.0
    """Further seconds of a pull after the memory was released."""
    release_s: float = 0.0
    report_s: float = 0.0
    """Seconds between two reports of finished responses; 0: report each at once. When the instance becomes idle, it
    reports at once."""
    progress_s: float = 1.0
    """Seconds between two progress notes. When the instance is lost, its responses keep the tokens of the last note."""
    load_s: float = 10.0
    """Seconds between two reports of progress, if the schedule plans by the load of instances."""


class SimInstance:
    """One process of an instance. After a loss the world makes a new one, and nothing more of this one is delivered."""

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
        num_devices: int = 1,
    ) -> None:
        """``on_busy`` is called with True when the instance gets work, and with False when it becomes idle. Progress is
        reported every ``load_s``, and whenever nothing else was reported for ``keepalive_s``."""
        self.id, self.version, self.num_devices = number, Version(0), num_devices
        self._engine: EngineModel[ResponseId] = EngineModel(costs)
        self._times, self._agenda = times, agenda
        self._keepalive_s, self._load_s = keepalive_s, load_s
        self._on_busy, self._was_busy = on_busy, False
        self._full_length: dict[ResponseId, bool] = {}
        """Each unfinished request, and whether its token budget will end it."""
        self._unreported: list[ev.Finished] = []
        self._noted: dict[ResponseId, int] = {}
        """Reported length of each unfinished response."""
        self._wake_at: float | None = None
        self._spoke_at = self._told_at = agenda.now
        self._blocked_until = 0.0
        self._repeat_s: float | None = None
        self._has_weights, self._has_memory = True, True
        self._is_gone = False

    @property
    def is_busy(self) -> bool:
        return self._engine.num_requests > 0

    def held(self) -> Iterable[ResponseId]:
        """Return its unfinished responses."""
        return self._noted

    def start(self, at: float) -> None:
        self._at(at, lambda: self._say(ev.InstanceStarted(instance=self.id, version=self.version)))

    def submit(self, requests: Sequence[tuple[SimRequest[ResponseId], bool]]) -> None:
        assert self._has_weights, f"instance {self.id} is given work while it holds no weights"
        if not self._engine.num_requests:
            self._spoke_at = self._told_at = self._agenda.now
        for request, is_cut in requests:
            self._full_length[request.id] = is_cut
            self._noted[request.id] = request.length
        self._engine.submit((request for request, _ in requests), self._agenda.now)
        self._wake()

    def interrupt(self, responses: Iterable[ResponseId]) -> None:
        done, lengths = self._engine.remove(responses, self._agenda.now)
        cut = [ev.Finished(response=r, length=n, finish=Finish.INTERRUPTED) for r, n in lengths.items()]
        self._remove(lengths)
        if cut:
            self._at(done, lambda: self._report(cut))
        self._wake()

    def abort(self, responses: Sequence[ResponseId]) -> None:
        done, lengths = self._engine.remove(responses, self._agenda.now)
        self._remove(lengths)
        gone = tuple(ev.Aborted(response=r, length=lengths.get(r, 0)) for r in responses)

        def answer() -> None:
            self._report([])  # responses that had ended are reported first
            self._say(ev.ResponsesAborted(instance=self.id, aborted=gone))

        self._at(done, answer)
        self._wake()

    def pull(self, version: Version) -> None:
        assert not self._engine.num_requests, f"instance {self.id} pulls with live requests"
        seconds = self._times.pull_s + (0.0 if self._has_memory else self._times.wake_s)
        self._has_weights = False
        self._at(self._agenda.now + seconds, lambda: self._pulled(version, seconds))

    def release(self) -> None:
        assert not self._engine.num_requests, f"instance {self.id} releases its memory with live requests"
        self._has_weights, self._has_memory, seconds = False, False, self._times.release_s
        self._at(self._agenda.now + seconds, lambda: self._say(ev.MemoryReleased(instance=self.id, seconds=seconds)))

    def stop(self) -> None:
        assert not self._engine.num_requests, f"instance {self.id} ends with live requests"
        self._at(self._agenda.now + self._times.release_s, self._stopped)

    def slow_down(self, factor: float) -> None:
        self._engine.slow_down(factor, self._agenda.now)
        self._wake()

    def lose_next_message(self, repeat_s: float) -> None:
        """Delay the next message: it is lost and arrives only when it is repeated. Later messages queue behind it."""
        self._repeat_s = repeat_s

    def vanish(self) -> list[ev.Event]:
        """End the instance. Return its last progress note as a report, if it contains anything new."""
        now, every = self._agenda.now, self._times.progress_s
        self._is_gone = True
        at = max(self._spoke_at, math.floor(now / every) * every)
        progressed = self._progress(at)
        if not (progressed or self._unreported) or now < self._blocked_until:
            return []
        return [self._reported(self._unreported, progressed)]

    def _pulled(self, version: Version, seconds: float) -> None:
        self.version, self._has_weights, self._has_memory = version, True, True
        self._say(ev.WeightsPulled(instance=self.id, version=version, seconds=seconds))

    def _stopped(self) -> None:
        self._say(ev.InstanceStopped(instance=self.id))
        self._is_gone = True

    def _wake(self) -> None:
        """Schedule the next report: when a response ends, or when a keep-alive is due."""
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
        """Collect responses that have ended. Return whether a report may be due."""
        had_none = not self._unreported
        for end in self._engine.ended(self._agenda.now):
            finish = Finish.LENGTH if self._full_length.pop(end.id) else Finish.STOP
            self._noted.pop(end.id)
            self._unreported.append(ev.Finished(response=end.id, length=end.length, finish=finish))
        return had_none and bool(self._unreported)

    def _report(self, cut: list[ev.Finished]) -> None:
        self._collect()
        finished, self._unreported = [*self._unreported, *cut], []
        if finished:
            self._spoke_at = self._agenda.now
            self._say(self._reported(finished, ()))

    def _progress(self, at: float) -> tuple[ev.Progressed, ...]:
        news = []
        for response, length in self._engine.lengths(at).items():
            if length > self._noted[response]:
                self._noted[response] = length
                news.append(ev.Progressed(response=response, length=length))
        return tuple(news)

    def _reported(self, finished: list[ev.Finished], progressed: tuple[ev.Progressed, ...]) -> ev.RolloutReported:
        return ev.RolloutReported(
            instance=self.id,
            version=self.version,
            progressed=progressed,
            finished=tuple(finished),
            num_preemptions=self._engine.num_preemptions,
        )

    def _remove(self, responses: Iterable[ResponseId]) -> None:
        for response in responses:
            del self._full_length[response], self._noted[response]

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
