"""Engines are measured through their contract: every load is the one asked for, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from engines.rollouts import VOCAB_SIZE
from tailrace.engines.contract import Sampling
from tailrace.engines.load_points import TOKENS, LoadBench, room
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import Decoding, EngineLimits
from tailrace.observe.costs.engine_profile import LoadPoint

MAX_LENGTH = 128 + 2 * TOKENS


@pytest.mark.parametrize("deterministic", [False, True])
def test_each_point_is_visited_as_often_as_asked(
    checkpoint: Path, reference_model: PreTrainedModel, deterministic: bool
) -> None:
    limits = EngineLimits(max_running=4, max_length=MAX_LENGTH)
    engine = NativeEngine(checkpoint, seed=0, limits=limits, deterministic=deterministic)
    bench = LoadBench(engine, vocab_size=VOCAB_SIZE, sampling=Sampling(), seed=0)
    points = [LoadPoint(1, 128), LoadPoint(4, 16), LoadPoint(3, 40)]
    measured = bench.measure(points, repeats=2)
    assert [m.point for m in measured] == points
    for m in measured:
        n, length = m.point.num_running, m.point.length
        assert m.held == n * (length + 1 + TOKENS / 2), "all begin in the same step, and have a token when it ends"
        assert m.kv_tokens >= m.held
        assert len(m.step_s) == len(m.fill_s) == 2
        assert min(m.step_s) > 0
        assert min(m.fill_s) > 0
    assert engine.stats().num_running == engine.stats().num_waiting == engine.stats().kv_tokens_used == 0


def test_a_load_that_the_engine_cannot_hold_is_left_out(checkpoint: Path, reference_model: PreTrainedModel) -> None:
    """Too many to run at the same time; too long for the cache at once; fitting at first and outgrowing it."""
    limits = EngineLimits(max_running=4, max_length=MAX_LENGTH, kv_tokens=256)
    engine = NativeEngine(checkpoint, seed=0, limits=limits)
    bench = LoadBench(engine, vocab_size=VOCAB_SIZE, sampling=Sampling(), seed=0)
    points = [LoadPoint(5, 16), LoadPoint(3, 100), LoadPoint(4, 60), LoadPoint(4, 20)]
    assert [m.point for m in bench.measure(points, repeats=1)] == [LoadPoint(4, 20)]
    assert engine.stats().num_running == engine.stats().num_waiting == 0


def test_an_engine_with_several_tokens_per_step_is_measured_per_token(
    checkpoint: Path, reference_model: PreTrainedModel
) -> None:
    limits = EngineLimits(max_running=4, max_length=160)
    engine = NativeEngine(checkpoint, seed=0, limits=limits, decoding=Decoding.PAGED)
    ticks = iter(range(10**6))
    bench = LoadBench(engine, vocab_size=VOCAB_SIZE, sampling=Sampling(), seed=0, clock=lambda: next(ticks))
    longest = 160 - room(engine.capabilities)
    points = [LoadPoint(1, longest), LoadPoint(4, 16), LoadPoint(5, 16)]
    measured = bench.measure(points, repeats=1)
    assert [m.point for m in measured] == points[:2]
    assert all(m.kv_tokens >= m.held for m in measured), "no memory is shared while it is measured"
    assert {m.step_s for m in measured} == {(1 / engine.capabilities.tokens_per_step,)}
    assert engine.stats().kv_tokens_used == 0
