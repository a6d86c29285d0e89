"""The token clock of an instance: how many steps its engine took, and under which load. It is derived from the reports.

The number of steps is never reported. But if a response had ``a`` tokens in one report and has ``b`` in a later one,
the engine took ``b - a`` steps in between, and so did every other response that was running. The clock therefore also
tells how many tokens the other responses held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tailrace.core.commands import Dispatch
from tailrace.core.costs import PrefillChunk
from tailrace.core.events import Progressed, RolloutReported
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.length_classes import attended

_MIN_STEPS = 64
"""Samples with fewer steps are joined, so that the delay of a report is small compared with the sample."""
_LONG_S = 1.0
"""For a sample this long it does not matter that the end of a response is reported a few hundredths late."""


@dataclass(slots=True)
class EngineSample:
    """Consecutive engine steps on one instance: how long they took, and under which load."""

    seconds: float = 0.0
    steps: int = 0
    prefilled: int = 0
    """Tokens of prompts that started to run, and of responses that were resumed."""
    resumed: int = 0
    """Tokens of resumed responses alone, padding included."""
    resumed_batches: int = 0
    """Batches in which the resumed responses were prefilled."""
    prompts: int = 0
    """Prompts that started to run. A prompt counts once for all members of its group that run at the same time."""
    parts: list[tuple[int, float, int]] = field(default_factory=list)
    """(steps, tokens held, responses running). With length classes: tokens attended to, padding included."""
    class_steps: int = 0
    """Length classes attended to, summed over the steps."""
    overlaps: list[tuple[float, float]] = field(default_factory=list)
    """Time with other work on the same devices: (seconds, share of the instances that were busy)."""
    is_first: bool = False
    """The instance had just started."""
    is_beside_start: bool = False
    """Another process started during the sample and used the same devices."""


class TokenClock:
    """The clock of one instance, from its start. It calls ``hand_over`` with each complete sample.

    A response ends some steps before it is reported, and the next waiting response takes its place from that step on.
    How late a report is can be seen only if it also tells the progress of other responses, or if none are left. So a
    sample ends at such a report, or at any report once the sample is long.
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
        """``prompt_length``: mean tokens of a prompt, which reports do not contain. ``prefill_chunk``: most tokens of
        resumed responses that are prefilled together, padding included; None: they are not padded.
        ``length_classes``: capacities of the rows of the KV cache; none: attention covers what is held."""
        self._prompt_length, self._max_running, self._hand_over = prompt_length, max_running, hand_over
        self._prefill_chunk, self._length_classes = prefill_chunk, length_classes
        self._time = 0.0
        """When the current sample began."""
        self._steps = 0
        self._points: dict[ResponseId, tuple[int, int]] = {}
        """For each running response: (clock, length) at the last report about it."""
        self._groups: Counter[GroupId] = Counter()
        """How many members of each group run."""
        self._waiting: dict[ResponseId, int] = {}
        """Length of each response that waits for a place, in order."""
        self._open = EngineSample(is_first=True)

    @property
    def is_busy(self) -> bool:
        return bool(self._points)

    def overlap(self, seconds: float, share: float) -> None:
        """Note that other work used this share of the same devices for these seconds."""
        self._open.overlaps.append((seconds, share))

    def note_start(self) -> None:
        """Note that another process started during the current sample, which slows the engine down."""
        self._open.is_beside_start = True

    def submit(self, dispatches: Iterable[Dispatch], now: float) -> None:
        if not self._points:
            self._time, self._open = now, EngineSample(is_first=self._open.is_first)
        self._waiting.update({dispatch.response: dispatch.start for dispatch in dispatches})
        self._admit()

    def report(self, event: RolloutReported, now: float) -> None:
        ends = {end.response: end.length for end in event.finished}
        for response in [r for r, start in self._waiting.items() if ends.get(r) == start]:
            del self._waiting[response]  # stopped before it ran
        while ended := [r for r in ends if r in self._points]:
            response = min(ended, key=lambda r: self._when(r, ends[r]))
            self._advance(self._when(response, ends[response]))
            self._leave(response)
            self._admit()
        for response in ends:
            self._waiting.pop(response, None)  # the engine ran more at once than it was said to
        progressed = {part.response: part.length for part in event.progressed if self._is_newer(part)}
        self._advance(max((self._when(r, length) for r, length in progressed.items()), default=self._steps))
        self._points.update({r: (self._steps, length) for r, length in progressed.items()})
        if event.progressed or not self._points or now - self._time >= _LONG_S:
            self._cut(now)

    def _is_newer(self, part: Progressed) -> bool:
        """Whether the response runs, and the report is not older than the last one about it."""
        return part.response in self._points and part.length >= self._points[part.response][1]

    def drop(self, responses: Iterable[ResponseId]) -> None:
        """Remove responses that no longer run on the instance."""
        for response in responses:
            self._waiting.pop(response, None)
            if response in self._points:
                self._leave(response)
        self._admit()

    def _when(self, response: ResponseId, length: int) -> int:
        """Return the number of the step after which the response has ``length`` tokens."""
        at, before = self._points[response]
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
            response = next(iter(self._waiting))
            start = self._waiting.pop(response)
            self._open.prompts += response.group not in self._groups
            self._groups[response.group] += 1
            self._points[response] = (self._steps, start)
            self._open.prefilled += self._prompt_length + start
            if not chunks[-1].take(start):
                chunks.append(PrefillChunk(self._prefill_chunk))
                chunks[-1].take(start)
        self._open.resumed += sum(chunk.num_tokens for chunk in chunks)
        self._open.resumed_batches += sum(chunk.num_tokens > 0 for chunk in chunks)

    def _leave(self, response: ResponseId) -> None:
        del self._points[response]
        self._groups[response.group] -= 1
        if not self._groups[response.group]:
            del self._groups[response.group]

    def _cut(self, now: float) -> None:
        """End the current sample, if it is long enough or nothing runs."""
        if self._open.steps >= _MIN_STEPS or not self._points:
            self._open.seconds = now - self._time
            if self._open.steps:
                self._hand_over(self._open)
            self._time, self._open = now, EngineSample()
