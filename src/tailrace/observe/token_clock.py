"""The token clock of an instance, read off its reports: how many steps its engine took, and over which load.

A clock is never reported, but a response that had ``a`` tokens at one report and has ``b`` at a later one has seen
``b - a`` steps in between, and so has everything that ran beside it. From the clock follows how many tokens the others
held, reported or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tailrace.core.commands import Dispatch
from tailrace.core.costs import PrefillChunk
from tailrace.core.events import RolloutReported
from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.core.length_classes import attended

_MIN_STEPS = 64
"""Samples of fewer steps are joined: what a report takes on its way is little beside so many."""
_LONG_S = 1.0
"""Beside such a sample it matters little that the end of a response is told some hundredths of a second late."""


@dataclass(slots=True)
class EngineSample:
    """Some engine steps in a row on one instance."""

    seconds: float = 0.0
    steps: int = 0
    prefilled: int = 0
    """Tokens of prompts that began to run meanwhile, and of responses that went on."""
    resumed: int = 0
    """The latter alone, with what they are padded to."""
    resumed_batches: int = 0
    """How many batches they are prefilled in."""
    prompts: int = 0
    """Prompts alone, each counted once for the members of a group that run at the same time."""
    parts: list[tuple[int, float, int]] = field(default_factory=list)
    """(steps, tokens held, responses running). With length classes: tokens attended to, padding included."""
    class_steps: int = 0
    """Length classes attended to, summed over the steps."""
    overlaps: list[tuple[float, float]] = field(default_factory=list)
    """Beside other work on the same devices: (seconds, part of the instances that were busy)."""
    is_first: bool = False
    """The instance had just started."""
    is_beside_start: bool = False
    """Another process started meanwhile, which takes time of the same devices that nobody measures."""


class TokenClock:
    """Of one instance, from its start; hands each sample over when it is complete.

    A response ends some steps before the report that tells of it, and the next one that waits has its place from that
    step on. How late a report is shows only where it tells how far the others are, or where none are left: samples end
    there, or anywhere once they are long.
    """

    def __init__(
        self,
        *,
        prompt_length: int,
        max_running: int,
        hand_over: Callable[[EngineSample], None],
        prefill_chunk: int | None = None,
        length_classes: Sequence[int] = (),
    ) -> None:
        """``prompt_length``: mean tokens of a prompt, which reports do not tell. ``prefill_chunk``: most tokens of
        resumed responses that are prefilled together, padding included; None: they are not padded.
        ``length_classes``: capacities of the rows of the KV cache; none: attention covers what is held."""
        self._prompt_length, self._max_running, self._hand_over = prompt_length, max_running, hand_over
        self._prefill_chunk, self._length_classes = prefill_chunk, length_classes
        self._time = 0.0
        """When the sample that is open began."""
        self._steps = 0
        self._points: dict[TrajectoryId, tuple[int, int]] = {}
        """Of each running response: (clock, length) when it was last heard of."""
        self._groups: Counter[GroupId] = Counter()
        """How many members of each group run."""
        self._waiting: dict[TrajectoryId, int] = {}
        """Length of each response beyond those that can run, in order."""
        self._open = EngineSample(is_first=True)

    @property
    def is_busy(self) -> bool:
        return bool(self._points)

    def overlap(self, seconds: float, share: float) -> None:
        """The instance worked beside others on the same devices."""
        self._open.overlaps.append((seconds, share))

    def note_start(self) -> None:
        """Another process starts."""
        self._open.is_beside_start = True

    def submit(self, dispatches: Iterable[Dispatch], now: float) -> None:
        if not self._points:
            self._time, self._open = now, EngineSample(is_first=self._open.is_first)
        self._waiting.update({dispatch.trajectory: dispatch.start for dispatch in dispatches})
        self._admit()

    def report(self, event: RolloutReported, now: float) -> None:
        ends = {end.trajectory: end.length for end in event.finished}
        for trajectory in [t for t, start in self._waiting.items() if ends.get(t) == start]:
            del self._waiting[trajectory]  # stopped before it ran
        while ended := [t for t in ends if t in self._points]:
            trajectory = min(ended, key=lambda t: self._when(t, ends[t]))
            self._advance(self._when(trajectory, ends[trajectory]))
            self._leave(trajectory)
            self._admit()
        for trajectory in ends:
            self._waiting.pop(trajectory, None)  # the engine ran more at once than it was said to
        progressed = {part.trajectory: part.length for part in event.progressed if part.trajectory in self._points}
        self._advance(max((self._when(t, length) for t, length in progressed.items()), default=self._steps))
        self._points.update({t: (self._steps, length) for t, length in progressed.items()})
        if event.progressed or not self._points or now - self._time >= _LONG_S:
            self._cut(now)

    def drop(self, trajectories: Iterable[TrajectoryId]) -> None:
        """They run no more."""
        for trajectory in trajectories:
            self._waiting.pop(trajectory, None)
            if trajectory in self._points:
                self._leave(trajectory)
        self._admit()

    def _when(self, trajectory: TrajectoryId, length: int) -> int:
        """The step after which it has so many tokens."""
        at, before = self._points[trajectory]
        return at + length - before

    def _advance(self, until: int) -> None:
        steps = until - self._steps
        if steps <= 0:
            return
        middle = self._steps + steps / 2
        lengths = [before + middle - at + self._prompt_length for at, before in self._points.values()]
        held = sum(lengths)
        if self._length_classes:
            load = attended(lengths, self._length_classes)
            held = load.num_tokens
            self._open.class_steps += steps * load.num_classes
        self._open.parts.append((steps, held, len(self._points)))
        self._open.steps += steps
        self._steps = until

    def _admit(self) -> None:
        chunks = [PrefillChunk(self._prefill_chunk)]
        while self._waiting and len(self._points) < self._max_running:
            trajectory = next(iter(self._waiting))
            start = self._waiting.pop(trajectory)
            self._open.prompts += trajectory.group not in self._groups
            self._groups[trajectory.group] += 1
            self._points[trajectory] = (self._steps, start)
            self._open.prefilled += self._prompt_length + start
            if not chunks[-1].take(start):
                chunks.append(PrefillChunk(self._prefill_chunk))
                chunks[-1].take(start)
        self._open.resumed += sum(chunk.num_tokens for chunk in chunks)
        self._open.resumed_batches += sum(chunk.num_tokens > 0 for chunk in chunks)

    def _leave(self, trajectory: TrajectoryId) -> None:
        del self._points[trajectory]
        self._groups[trajectory.group] -= 1
        if not self._groups[trajectory.group]:
            del self._groups[trajectory.group]

    def _cut(self, now: float) -> None:
        """The clock tells the steps up to this moment."""
        if self._open.steps >= _MIN_STEPS or not self._points:
            self._open.seconds = now - self._time
            if self._open.steps:
                self._hand_over(self._open)
            self._time, self._open = now, EngineSample()
