"""Bounds that follow from a machine's bandwidth and arithmetic, by hand."""

from __future__ import annotations

import pytest

from tailrace.sizing import speed_bounds
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.speed_bounds import Figure, MachineSpeed

SHAPE = ModelShape(
    vocab_size=1000, hidden_size=100, intermediate_size=200, num_layers=2, num_heads=5, num_kv_heads=1, head_dim=20
)
LAYER = 100 * (2 * 100 + 2 * 20) + 3 * 100 * 200
WEIGHTS = 2 * LAYER + 100_000
SPEED = MachineSpeed(bytes_per_s=1e9, flops=1e10)


def test_a_small_batch_is_bound_by_reading_and_a_large_one_by_arithmetic() -> None:
    reading = 2 * WEIGHTS + 2 * 2 * 20 * 2 * 50
    assert speed_bounds.decode_bound(SHAPE, SPEED, batch=1, kv_tokens=50, itemsize=2) == pytest.approx(1e9 / reading)
    assert speed_bounds.decode_bound(SHAPE, SPEED, batch=64, kv_tokens=0, itemsize=2) == pytest.approx(
        1e10 / (2 * WEIGHTS)
    )


def test_prefill_and_training_count_operations_per_weight() -> None:
    assert speed_bounds.prefill_bound(SHAPE, SPEED) == pytest.approx(1e10 / (2 * 2 * LAYER))
    assert speed_bounds.training_bound(SHAPE, SPEED) == pytest.approx(1e10 / (6 * WEIGHTS))


def test_weights_are_read_and_written_once() -> None:
    count = SHAPE.num_parameters
    assert speed_bounds.publish_bound(SHAPE, SPEED, itemsize=2) == pytest.approx(6 * count / 1e9)
    assert speed_bounds.pull_bound(SHAPE, SPEED, itemsize=2) == pytest.approx(4 * count / 1e9)


def test_a_share_of_one_is_the_bound_for_rates_and_for_seconds() -> None:
    assert Figure(name="a", unit="tokens/s", measured=50.0, allowed=200.0).share == 0.25
    assert Figure(name="a", unit="s", measured=2.0, allowed=0.5).share == 0.25
