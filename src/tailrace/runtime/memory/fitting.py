"""Divides a card's memory: how many responses run, how large the KV cache is, how many tokens a micro-batch has.

Weights, optimizer and processes come first. Of what is left, the KV cache and the micro-batch get what they can use; if
both want more than there is, half each. Numbers that the settings give are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailrace.config import presets
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.core.schedule import Leftovers
from tailrace.runtime.memory.plan import max_length, plan, rollout_load
from tailrace.store.model_shape import ModelShape

RESERVE = 0.1
"""Share of the memory that is left free: torch's allocator keeps more than is in use, and the arithmetic is rough."""
MOST_RUNNING = 1024
EVALUATION_RUNNING = 512
"""Responses at the same time, if an evaluation or a run without training has more of them than a batch."""
MICRO_BATCHES = (32768, 16384, 8192, 4096, 2048, 1024)
"""Sizes of a micro-batch to try, in tokens. Larger ones take memory and make training hardly faster."""
PREFILL_CHUNK = 8192
_PAGE = 16
_LOOKAHEAD = 16
"""Tokens for which an engine keeps room behind a response (two steps of eight tokens)."""
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


def fit(memory_bytes: int, shape: ModelShape, settings: Settings) -> Fitted:
    """Numbers for a card with this much free memory. If even the smallest ones do not fit, they are given all the same:
    ``plan`` says so then."""
    rollout, longest = settings.rollout, max_length(settings)
    budget = int(memory_bytes * (1 - RESERVE))
    max_running = rollout.max_running or _wanted_running(settings)
    found = Fitted(
        max_running=max_running,
        kv_tokens=rollout.kv_tokens or _whole_pages(max_running * (longest + _LOOKAHEAD)),
        max_tokens_per_gpu=settings.trainer.max_tokens_per_gpu or MICRO_BATCHES[0],
        prefill_chunk=rollout.prefill_chunk or PREFILL_CHUNK,
    )
    found = _with_micro_batch(found, budget, shape, settings)
    if rollout.kv_tokens is None:
        found = _with_kv_cache(found, budget, shape, settings)
    if rollout.max_running is None:
        at_once = int(found.kv_tokens / (_LEAST_KV_SHARE * longest))
        found = replace(found, max_running=max(1, min(max_running, at_once)))
    return found


def in_flight(settings: Settings) -> int:
    """Most responses that the schedule generates for training at the same time."""
    asked = settings.schedule
    preset = presets.resolved(asked)
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


def _with_micro_batch(found: Fitted, budget: int, shape: ModelShape, settings: Settings) -> Fitted:
    """The largest micro-batch that leaves the KV cache what it can use, or half of what is left."""
    if settings.trainer.max_tokens_per_gpu is not None:
        return found
    least = replace(found, kv_tokens=_PAGE, max_tokens_per_gpu=1)
    free = budget - _total(least, shape, settings)
    kv = min(_kv_bytes(found, shape, settings), free // 2)
    if settings.schedule.placement in ("colocated", "disaggregated"):
        kv = 0  # the KV cache is not there while training works, or lies on other GPUs
    for tokens in MICRO_BATCHES:
        tried = replace(least, max_tokens_per_gpu=tokens)
        if _total(tried, shape, settings) + kv <= budget:
            break
    return replace(found, max_tokens_per_gpu=tokens)


def _with_kv_cache(found: Fitted, budget: int, shape: ModelShape, settings: Settings) -> Fitted:
    """A KV cache for all that may run, or as large as memory allows, but large enough for one response."""
    if _total(found, shape, settings) <= budget:
        return found
    without = replace(found, kv_tokens=_PAGE)
    memory = plan(shape, without.applied(settings), is_cuda=True)
    free = budget - memory.num_bytes
    if memory.is_colocated:
        free = budget - memory.rollout.count * memory.rollout.num_bytes - memory.training.resting_bytes
    elif memory.is_apart:
        free = budget - memory.rollout.num_bytes
    per_token = shape.kv_bytes(rollout_load(settings, is_cuda=True).itemsize) * memory.rollout.count
    least = _whole_pages(max_length(settings) + _LOOKAHEAD)
    return replace(found, kv_tokens=min(found.kv_tokens, max(least, free // per_token // _PAGE * _PAGE)))


def _kv_bytes(found: Fitted, shape: ModelShape, settings: Settings) -> int:
    per_token = shape.kv_bytes(rollout_load(settings, is_cuda=True).itemsize)
    return per_token * found.kv_tokens * settings.rollout.num_instances


def _total(found: Fitted, shape: ModelShape, settings: Settings) -> int:
    return plan(shape, found.applied(settings), is_cuda=True).num_bytes


def _whole_pages(num_tokens: int) -> int:
    return -(-num_tokens // _PAGE) * _PAGE
