"""The engine model without its closed form: one step after the other, everything recomputed. The reference."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.sim.engine_costs import EngineCosts


@dataclass
class Row:
    id: int
    prompt: int
    length: int
    target: int
    group: int = 0


@dataclass
class NaiveEngine:
    costs: EngineCosts
    time: float = 0.0
    slowdown: float = 1.0
    running: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    ended: list[tuple[float, int, int]] = field(default_factory=list)
    num_preemptions: int = 0
    chunk: list[int] = field(default_factory=list)
    """Tokens of each sequence that is prefilled before the next step."""
    is_full: bool = False
    """There was room for one more, but not in the chunk."""

    @property
    def kv(self) -> int:
        return sum(row.prompt + row.length for row in self.running)

    def reach(self, now: float) -> None:
        """Take steps up to the first boundary at or after ``now``."""
        while self.time < now and self.running:
            self.step()
        self.time = max(self.time, now)

    def step(self) -> None:
        self.time += self.slowdown * self.step_s()
        self.chunk = []
        for row in self.running:
            row.length += 1
        for row in [row for row in self.running if row.length == row.target]:
            self.running.remove(row)
            self.ended.append((self.time, row.id, row.length))
        while self.kv + len(self.running) > self.costs.kv_capacity:
            self.waiting.insert(0, self.running.pop())
            self.num_preemptions += 1
        self.admit()

    def step_s(self) -> float:
        if not self.costs.length_classes:
            return self.costs.step(self.kv, len(self.running))
        rows = [*self.running, *(self.waiting[: self.costs.max_running - len(self.running)] if self.is_full else [])]
        kv, num_classes, above = 0, 0, 0
        for capacity in [*self.costs.length_classes[:-1], 10**9]:
            lengths = [n for n in (row.prompt + row.length for row in rows) if above < n <= capacity or n == above == 0]
            kv, num_classes, above = kv + len(lengths) * max(lengths, default=0), num_classes + bool(lengths), capacity
        return self.costs.step(kv, len(rows), num_classes)

    def admit(self) -> None:
        self.is_full = False
        if not self.running:
            self.chunk = []
        before, num_prompts = self.computed(self.chunk), 0
        while self.waiting and len(self.running) < self.costs.max_running:
            held = self.waiting[0].prompt + self.waiting[0].length
            if self.kv + held + len(self.running) + 1 > self.costs.kv_capacity:
                break
            tokens = held if self.costs.prompt_s is None else self.waiting[0].length
            limit, is_first = self.costs.prefill_chunk, not any(self.chunk)
            if tokens and limit is not None and not is_first and self.computed([*self.chunk, tokens]) > limit:
                self.is_full = True
                break
            row = self.waiting.pop(0)
            self.chunk.append(tokens)
            if self.costs.prompt_s is not None:
                num_prompts += row.group not in {other.group for other in self.running}
            self.running.append(row)
        prefilled = self.computed(self.chunk) - before
        seconds = self.costs.prefill_s * prefilled + (self.costs.prompt_s or 0.0) * num_prompts
        batch_s = self.costs.prefill_batch_s if prefilled and not before else 0.0
        self.time += self.slowdown * (seconds + batch_s)

    def computed(self, chunk: list[int]) -> int:
        """Tokens, with what they are padded to."""
        parts = [tokens for tokens in chunk if tokens]
        return sum(parts) if self.costs.prefill_chunk is None else len(parts) * max(parts, default=0)

    def submit(self, row: Row, now: float) -> None:
        self.reach(now)
        self.waiting.append(row)
        self.admit()

    def remove(self, ids: set[int], now: float) -> tuple[float, dict[int, int]]:
        self.reach(now)
        gone = {row.id: row.length for row in [*self.running, *self.waiting] if row.id in ids}
        self.running = [row for row in self.running if row.id not in ids]
        self.waiting = [row for row in self.waiting if row.id not in ids]
        done = self.time
        self.admit()
        return done, gone
