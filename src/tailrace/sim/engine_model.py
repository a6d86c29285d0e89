"""One rollout instance in virtual time: continuous batching, a KV budget, preemption. Closed form between changes.

Every running response advances one token per engine step. A step over ``n`` responses that hold ``kv`` tokens takes

    T = k1 * kv + max(k2, k3 * n) + k4          and afterwards  kv grows by n,

so the time of ``s`` steps is quadratic in ``s``, and nothing is computed between two changes of the running set: a
heap holds at which step each response ends. What happens at the boundary between two steps, in this order:

1. responses that have all their tokens end;
2. if the next step would overflow the KV budget, the youngest is preempted until it does not; it goes to the front of
   the queue and is computed again (its tokens are prefilled) when there is room;
3. waiting responses are admitted in order while they fit; their tokens are prefilled before the next step, which waits
   for it (prefill is separate from decoding). With ``prompt_s``, a prompt is computed for the first member of a group
   and shared with those that join while one of them runs. ``prefill_chunk`` limits the tokens that are prefilled before
   one step; responses beyond it wait for the next step.

With ``length_classes`` (``core/length_classes.py``), ``kv`` is what attention covers, padding included, each class that
has rows adds ``class_s`` to a step, and the closed form ends where a response outgrows its class. Responses that wait
for their prefill already have rows, and steps compute these rows without effect.

A request that arrives during a step or a prefill takes effect at the next boundary, as in a real engine. So lengths
are whole tokens, and the answer to an interrupt comes up to one step later.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from tailrace.core.costs import PrefillChunk
from tailrace.core.length_classes import attended
from tailrace.sim.engine_costs import EngineCosts, StepLoad

Id = TypeVar("Id")


@dataclass(slots=True)
class SimRequest(Generic[Id]):
    id: Id
    prompt: int
    """Tokens of the prompt."""
    length: int
    """Tokens generated when it joined the running set."""
    target: int
    """Tokens at which it ends."""
    group: object = None
    """Responses with the same group have the same prompt."""
    joined: int = -1
    """Step at which it joined the running set; -1: it is queued."""


@dataclass(frozen=True, slots=True)
class EndedRequest(Generic[Id]):
    at: float
    id: Id
    length: int


class EngineModel(Generic[Id]):
    """Owns the requests of one instance. Times never go back; ``boundary`` may be ahead of the time last asked for."""

    def __init__(self, costs: EngineCosts) -> None:
        self._costs = costs
        self._running: dict[Id, SimRequest[Id]] = {}
        """Running requests in the order of admission: the youngest is last."""
        self._waiting: deque[SimRequest[Id]] = deque()
        self._ends: list[tuple[int, int, int, SimRequest[Id]]] = []
        """(step, tie break, step of joining, request); void when the request has left or joined again since."""
        self._ended: deque[EndedRequest[Id]] = deque()
        self._step = 0
        self._boundary = 0.0
        """When step ``_step`` begins or began."""
        self._groups: Counter[object] = Counter()
        """Running members of each group, where they share their prompt."""
        self._kv = 0
        self._chunk = PrefillChunk(costs.prefill_chunk)
        """Sequences that are prefilled before the next step."""
        self._is_held_up = False
        """Whether the next queued request has room in the KV cache but not in the prefill chunk."""
        self._load = StepLoad()
        self._slowdown = 1.0
        self._planned: tuple[int, float] | None = None
        """The next change, if it has been computed since the last one."""
        self._num_pushed = 0
        self.num_preemptions = 0

    @property
    def num_requests(self) -> int:
        return len(self._running) + len(self._waiting)

    def next_time(self) -> float | None:
        """Return when the next response ends or is preempted; None: nothing runs."""
        if self._ended:
            return self._ended[0].at
        return self._next_change()[1] if self._running else None

    def ended(self, now: float) -> list[EndedRequest[Id]]:
        """Return the responses that ended up to ``now``. Each is returned once."""
        self._advance(now)
        found = []
        while self._ended and self._ended[0].at <= now:
            found.append(self._ended.popleft())
        return found

    def submit(self, requests: Iterable[SimRequest[Id]], now: float) -> None:
        self._settle(now)
        for request in requests:
            if request.prompt + request.target > self._costs.kv_capacity:
                raise ValueError(f"{request.target} tokens never fit into a KV cache of {self._costs.kv_capacity}")
            assert request.length < request.target, f"{request.id} has nothing left to generate"
            self._waiting.append(request)
        self._admit()

    def remove(self, ids: Iterable[Id], now: float) -> tuple[float, dict[Id, int]]:
        """Stop these; return when that is done and the tokens of each that had not ended by itself."""
        self._settle(now)
        wanted = dict.fromkeys(ids)
        lengths = {request.id: request.length for request in self._waiting if request.id in wanted}
        self._waiting = deque(request for request in self._waiting if request.id not in wanted)
        for each in wanted:
            if each in self._running:
                lengths[each] = self._leave(each).length
        done = self._boundary
        self._admit()
        return done, lengths

    def lengths(self, at: float) -> dict[Id, int]:
        """Return the tokens of every unfinished response after the last step that ended by ``at``.

        For a time before the last change the result is exact to within two tokens.
        """
        self._advance(at)
        found = {request.id: request.length for request in self._waiting}
        if not self._running:
            return found
        if self._boundary <= at:
            steps = self._steps_by(at)
        else:
            kv, n = self._load.kv - self._load.num_rows, self._load.num_rows
            step_s = self._slowdown * self._costs.step(kv, n, self._load.num_classes)
            steps = -math.ceil((self._boundary - at) / step_s)
        running = self._running.items()
        return found | {each: max(request.length, self._length(request) + steps) for each, request in running}

    def slow_down(self, factor: float, now: float) -> None:
        """Make everything take ``factor`` times as long as on a healthy instance, from the next boundary on."""
        self._settle(now)
        self._slowdown, self._planned = factor, None

    def _length(self, request: SimRequest[Id]) -> int:
        return request.length + self._step - request.joined

    def _seconds(self, count: int) -> float:
        return self._slowdown * self._costs.steps(self._load, count)

    def _advance(self, now: float) -> None:
        """Pass every change up to ``now``."""
        while self._running:
            count, at = self._next_change()
            if at > now:
                return
            self._take(count)

    def _settle(self, now: float) -> None:
        """Go to the first boundary at or after ``now``."""
        self._advance(now)
        if not self._running:
            self._boundary = max(self._boundary, now)
        elif self._boundary < now:
            count = self._steps_by(now)
            self._take(count if self._boundary + self._seconds(count) >= now else count + 1)

    def _steps_by(self, now: float) -> int:
        """Return the largest number of steps that end by ``now``."""
        seconds = now - self._boundary
        slope = self._slowdown * self._costs.k1 * self._load.num_rows / 2
        flat = self._seconds(1) - slope  # seconds(s) == slope * s * s + (flat) * s
        root = math.sqrt(flat * flat + 4 * slope * seconds)
        count = int(2 * seconds / (flat + root)) if flat + root > 0 else 0
        while self._seconds(count + 1) <= seconds:
            count += 1
        while count > 0 and self._seconds(count) > seconds:
            count -= 1
        return count

    def _next_change(self) -> tuple[int, float]:
        """Return the steps until the next response ends or is preempted, and the time of it."""
        if self._planned is None:
            count = self._steps_to_change()
            self._planned = (count, self._boundary + self._seconds(count))
        return self._planned

    def _steps_to_change(self) -> int:
        while self._ends[0][3].joined != self._ends[0][2]:
            heapq.heappop(self._ends)
        until_full = (self._costs.kv_capacity - self._kv) // len(self._running)
        until_end = self._ends[0][0] - self._step
        return 1 if self._is_held_up else int(min(until_end, until_full, self._load.num_steps))

    def _weigh(self) -> StepLoad:
        """Return the load of the next step."""
        if not self._costs.length_classes:
            return StepLoad(self._kv, len(self._running))
        lengths = [request.prompt + self._length(request) for request in self._running.values()]
        if self._is_held_up:
            seated = islice(self._waiting, self._costs.max_running - len(lengths))
            lengths += [request.prompt + request.length for request in seated]
        found = attended(lengths, self._costs.length_classes)
        return StepLoad(found.num_tokens, len(lengths), found.num_classes, found.num_steps)

    def _take(self, count: int) -> None:
        """Take steps, none of which but the last leads to a change; then do what is due at the boundary."""
        self._boundary += self._seconds(count)
        self._step += count
        self._chunk = PrefillChunk(self._costs.prefill_chunk)
        self._kv += count * len(self._running)
        while self._ends and self._ends[0][0] <= self._step:
            _, _, joined, request = heapq.heappop(self._ends)
            if request.joined == joined:
                self._leave(request.id)
                self._ended.append(EndedRequest(self._boundary, request.id, request.length))
        while self._running and self._kv + len(self._running) > self._costs.kv_capacity:
            self._waiting.appendleft(self._leave(next(reversed(self._running))))
            self.num_preemptions += 1
        self._admit()

    def _leave(self, each: Id) -> SimRequest[Id]:
        request = self._running.pop(each)
        request.length = self._length(request)
        request.joined = -1
        self._kv -= request.prompt + request.length
        if self._costs.prompt_s is not None:
            self._groups[request.group] -= 1
            if not self._groups[request.group]:
                del self._groups[request.group]
        return request

    def _admit(self) -> None:
        """Admit queued requests while they fit. Every change of the running set ends with this."""
        if not self._running:
            self._chunk = PrefillChunk(self._costs.prefill_chunk)
        already, num_prompts = self._chunk.num_tokens, 0
        self._planned, self._is_held_up = None, False
        while self._waiting and len(self._running) < self._costs.max_running:
            request = self._waiting[0]
            held = request.prompt + request.length
            if self._kv + held + len(self._running) + 1 > self._costs.kv_capacity:
                break
            self._is_held_up = not self._chunk.take(held if self._costs.prompt_s is None else request.length)
            if self._is_held_up:
                break
            self._waiting.popleft()
            num_prompts += self._join(request)
        prefilled = self._chunk.num_tokens - already
        seconds = self._costs.prefill_s * prefilled + (self._costs.prompt_s or 0.0) * num_prompts
        if prefilled and not already:
            seconds += self._costs.prefill_batch_s
        self._boundary += self._slowdown * seconds
        self._load = self._weigh()

    def _join(self, request: SimRequest[Id]) -> bool:
        """Add a request to the running set. Return whether its prompt must be computed, if groups share prompts."""
        request.joined = self._step
        self._running[request.id] = request
        self._num_pushed += 1
        end = self._step + request.target - request.length
        heapq.heappush(self._ends, (end, self._num_pushed, self._step, request))
        self._kv += request.prompt + request.length
        if self._costs.prompt_s is None:
            return False
        self._groups[request.group] += 1
        return self._groups[request.group] == 1
