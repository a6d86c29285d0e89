from __future__ import annotations

import pytest

from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.optimizer.learning_rate import learning_rate


def rates(schedule: str, *, warmup_steps: int, max_steps: int) -> list[float]:
    settings = TrainerSettings(learning_rate=1.0, warmup_steps=warmup_steps, lr_schedule=schedule)
    return [learning_rate(step, settings, max_steps=max_steps) for step in range(max_steps + 1)]


def test_warm_up_rises_to_the_peak_and_a_constant_rate_stays_there() -> None:
    assert rates("constant", warmup_steps=3, max_steps=5) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_linear_schedule_reaches_zero_at_the_end() -> None:
    assert rates("linear", warmup_steps=1, max_steps=5) == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_cosine_schedule_is_half_way_at_half_time() -> None:
    assert rates("cosine", warmup_steps=0, max_steps=4) == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466, 0.0])


def test_a_run_of_nothing_but_warm_up_is_allowed() -> None:
    assert rates("cosine", warmup_steps=4, max_steps=2) == [0.2, 0.4, 0.6]
