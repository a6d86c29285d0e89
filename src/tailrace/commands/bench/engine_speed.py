"""Measures the rollout engine in this process: decode by batch size, and prefill."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from tailrace.commands.bench.machine_speed import settle
from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.contract import Engine, Request, Sampling
from tailrace.engines.load_points import LoadBench
from tailrace.observe.costs.engine_profile import LoadPoint, Measurement

_MOST_S = 60.0
"""Seconds after which no larger batch is tried."""


def decode(
    engine: Engine, batches: tuple[int, ...], *, length: int, vocab_size: int, repeats: int
) -> Iterator[Measurement]:
    """Decode with responses of ``length`` tokens. Ends early if the engine has no room, or if it takes too long."""
    bench, start = LoadBench(engine, vocab_size=vocab_size, sampling=Sampling(), seed=0), time.perf_counter()
    for batch in batches:
        found = bench.measure([LoadPoint(batch, length)], repeats=repeats)
        yield from found
        if not found or time.perf_counter() - start > _MOST_S:
            return


def prefill(engine: Engine, *, num_prompts: int, length: int, vocab_size: int, device: torch.device) -> float:
    """Tokens per second, from submit to the first token of every response. The fastest of several runs counts."""
    random = np.random.default_rng(0)
    seconds = [_prefill_once(engine, random, number, num_prompts, length, vocab_size, device) for number in range(4)]
    return num_prompts * length / min(seconds[1:])


def _prefill_once(
    engine: Engine,
    random: np.random.Generator,
    number: int,
    num_prompts: int,
    length: int,
    vocab_size: int,
    device: torch.device,
) -> float:
    prompts = random.integers(0, vocab_size, (num_prompts, length)).astype(np.int32)
    requests = [
        Request(
            response_id=ResponseId(GroupId("prefill", number, index), 0),
            prompt=prompt,
            prefix=prompt[:0],
            budget=1,
            sampling=Sampling(),
            forced_length=1,
        )
        for index, prompt in enumerate(prompts)
    ]
    settle(device)
    start = time.perf_counter()
    engine.submit(requests)
    num_left = num_prompts
    while num_left:
        num_left -= len(engine.step())
    settle(device)
    return time.perf_counter() - start
