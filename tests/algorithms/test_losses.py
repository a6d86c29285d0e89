from __future__ import annotations

import math

import pytest
import torch

from tailrace.algorithms.losses import LOG_RATIO_LIMIT, ppo


def ppo_at(ratio: float, advantage: float) -> tuple[float, bool, float]:
    """Loss, clip flag and gradient of one token with clip range [0.8, 1.28]."""
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    found = ppo(logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), clip_ratio_low=0.2, clip_ratio_high=0.28)
    found.loss_BT.sum().backward()
    return found.loss_BT.item(), bool(found.is_clipped_BT.item()), logprobs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.2, 2.0, -2.4, False),
        (1.5, 2.0, -2.56, True),
        (0.5, 2.0, -1.0, False),
        (0.5, -2.0, 1.6, True),
        (1.5, -2.0, 3.0, False),
        (1.5, 0.0, 0.0, False),
    ],
)
def test_the_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float, is_clipped: bool) -> None:
    found, flag, gradient = ppo_at(ratio, advantage)
    assert found == pytest.approx(loss)
    assert flag is is_clipped
    assert gradient == pytest.approx(0.0 if is_clipped else -advantage * ratio)


def test_one_advantage_per_sequence_spreads_over_its_tokens() -> None:
    advantages = torch.tensor([[1.0], [-1.0]])
    found = ppo(torch.zeros(2, 3), torch.zeros(2, 3), advantages, clip_ratio_low=0.2, clip_ratio_high=0.2)
    assert found.loss_BT.tolist() == [[-1.0] * 3, [1.0] * 3]


def test_a_ratio_beyond_all_measure_neither_overflows_nor_pulls() -> None:
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    found = ppo(logprobs, torch.tensor([[-500.0]]), torch.tensor([[-1.0]]), clip_ratio_low=0.2, clip_ratio_high=0.2)
    found.loss_BT.sum().backward()
    assert found.loss_BT.item() == pytest.approx(math.exp(LOG_RATIO_LIMIT), rel=1e-5)
    assert logprobs.grad.item() == 0.0
