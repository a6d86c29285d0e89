"""Divides a card's memory: how many responses run, how large the KV cache is, how many tokens a micro-batch has.

Weights, optimizer and processes come first. Of what is left, the KV cache and the micro-batch get what they can use; if
both want more than there is, half each. Numbers that the settings give are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailrace.config import presets
from tailrace.config.parallel_layouts import settings_by_size
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.core.schedule import Leftovers
from tailrace.sizing.device_plan import OWN
from tailrace.sizing.judge_memory import JudgeLoad
from tailrace.sizing.memory_plan import MemoryPlan, max_length, parts_per_device, plan, rollout_load
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import kv_bytes

FROM_CARD = ("rollout.max_running", "rollout.kv_tokens", "rollout.prefill_chunk", "trainer.max_tokens_per_gpu")
"""Settings whose default is fitted to the card."""
RESERVE = 0.1
"""Share of the memory that is left free: torch's allocator keeps more than is in use, and the arithmetic is rough."""
MOST_RUNNING = 1024
EVALUATION_RUNNING = 512
"""Responses at the same time, if an evaluation or a run without training has more of them than a batch."""
MICRO_BATCHES = (32768, 16384, 8192, 4096, 2048, 1024)
"""Sizes of a micro-batch to try, in tokens. Larger ones take memory and make training hardly faster."""
PREFILL_CHUNK = 8192
PAGE_SIZE = 16
"""Positions of one page of the KV cache (``engines/native/runner_choice.py``)."""
LOOKAHEAD = 16
"""Tokens for which an engine keeps room behind a response: two replays (``engines/native/runner_choice.py``)."""
_LEAST_KV_SHARE = 0.25
"""Room that every running response should have, as a share of the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    max_running: int
    kv_tokens: int
    max_tokens_per_gpu: int
    prefill_chunk: int

    def applied(self, settings: Settings) -> Settings:
        rollout = {"max_running": self.max_running, "kv_tokens": self.kv_tokens, "prefill_chunk": self.prefill_chunk}
        trainer = {"max_tokens_per_gpu": self.max_tokens_per_gpu}
        return settings.model_copy(
            update={
                "rollout": settings.rollout.model_copy(update=rollout),
                "trainer": settings.trainer.model_copy(update=trainer),
            }
        )


def fit(
    memory_bytes: int,
    shape: ModelShape,
    settings: Settings,
    *,
    num_devices: int = 1,
    judge: JudgeLoad | None = None,
) -> Fitted:
    """Numbers for cards with this much free memory each. If even the smallest numbers do not fit, they are returned
    anyway, and ``plan`` shows that they need more than there is."""
    rollout, longest = settings.rollout, max_length(settings)
    budget = int(memory_bytes * (1 - RESERVE))
    max_running = rollout.max_running or _wanted_running(settings)
    found = Fitted(
        max_running=max_running,
        kv_tokens=rollout.kv_tokens or _whole_pages(max_running * (longest + LOOKAHEAD)),
        max_tokens_per_gpu=settings.trainer.max_tokens_per_gpu or MICRO_BATCHES[0],
        prefill_chunk=rollout.prefill_chunk or PREFILL_CHUNK,
    )
    if settings.reward.judge.placement == OWN:
        judge = None  # it takes nothing of the devices that are filled here
    room = _Room(budget=budget, shape=shape, settings=settings, num_devices=num_devices, judge=judge)
    found = room.with_micro_batch(found)
    if rollout.kv_tokens is None:
        found = room.with_kv_cache(found)
    if rollout.max_running is None:
        at_once = int(found.kv_tokens / (_LEAST_KV_SHARE * longest))
        found = replace(found, max_running=max(1, min(max_running, at_once)))
    return found


def in_flight(settings: Settings) -> int:
    """Most responses that the schedule generates for training at the same time."""
    asked = settings.schedule
    preset = asked.resolved()
    prompts, responses = presets.launch_sizes(
        preset, batch_size=asked.rollout_batch_size, group_size=settings.rollout.n_samples_per_prompt
    )
    is_continuous = preset.leftovers is Leftovers.KEEP
    ahead = max(preset.rounds_ahead, preset.max_staleness or 0) if is_continuous else preset.rounds_ahead
    return prompts * responses * (1 + ahead)


def _wanted_running(settings: Settings) -> int:
    wanted = in_flight(settings)
    if settings.eval or settings.schedule.preset == ROLLOUT_ONLY:
        wanted = max(wanted, EVALUATION_RUNNING)
    return min(MOST_RUNNING, math.ceil(wanted / settings.rollout.num_instances))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """A device to be filled."""

    budget: int
    shape: ModelShape
    settings: Settings
    num_devices: int
    judge: JudgeLoad | None

    def with_micro_batch(self, found: Fitted) -> Fitted:
        """The largest micro-batch that leaves the KV cache what it can use, or half of what is left."""
        if self.settings.trainer.max_tokens_per_gpu is not None:
            return found
        least = replace(found, kv_tokens=PAGE_SIZE, max_tokens_per_gpu=1)
        free = self.budget - self._total(least)
        kv = min(self._kv_bytes() * found.kv_tokens, free // 2)
        if self.settings.schedule.placement in ("colocated", "disaggregated"):
            kv = 0  # the KV cache is not there while training works, or lies on other GPUs
        for tokens in MICRO_BATCHES:
            if self._total(replace(least, max_tokens_per_gpu=tokens)) + kv <= self.budget:
                break
        return replace(found, max_tokens_per_gpu=tokens)

    def with_kv_cache(self, found: Fitted) -> Fitted:
        """A KV cache for all that may run, or as large as memory allows, but large enough for one response."""
        if self._total(found) <= self.budget:
            return found
        memory = self._plan(replace(found, kv_tokens=PAGE_SIZE))
        free = self.budget - memory.num_bytes
        if memory.is_colocated:
            free = self.budget - memory.rollout.count * memory.rollout.num_bytes - memory.training.resting_bytes
            free -= memory.beside_rollout
        elif memory.is_apart:
            free = self.budget - memory.rollout.num_bytes - memory.beside_rollout
        rollout = self.settings.rollout
        smallest = min(rollout.parallel_sizes, default=rollout.tensor_parallel_size)
        least = _whole_pages(max_length(self.settings) + LOOKAHEAD) * rollout.tensor_parallel_size // smallest
        most = free // self._kv_bytes() // PAGE_SIZE * PAGE_SIZE
        return replace(found, kv_tokens=min(found.kv_tokens, max(least, most)))

    def _kv_bytes(self) -> int:
        """Bytes on the device for one token in the KV cache of every instance, with the parallel size that takes most.
        One of another size has as many tokens more or fewer as it has devices."""
        return max(self._kv_bytes_of(each) for each in settings_by_size(self.settings))

    def _kv_bytes_of(self, settings: Settings) -> int:
        load = rollout_load(settings, is_cuda=True, num_devices=self.num_devices)
        num_bytes = kv_bytes(self.shape, load) * parts_per_device(settings, self.num_devices)
        return num_bytes * settings.rollout.tensor_parallel_size // self.settings.rollout.tensor_parallel_size

    def _total(self, found: Fitted) -> int:
        return self._plan(found).num_bytes

    def _plan(self, found: Fitted) -> MemoryPlan:
        settings = found.applied(self.settings)
        return plan(self.shape, settings, is_cuda=True, num_devices=self.num_devices, judge=self.judge)


def _whole_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE) * PAGE_SIZE
