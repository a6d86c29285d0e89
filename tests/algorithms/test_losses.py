from __future__ import annotations

import math

import pytest
import torch

from tailrace.algorithms.losses import LOG_RATIO_LIMIT, PolicyLoss, cispo, gspo, ppo, sapo


def at(ratio: float) -> torch.Tensor:
    """The log-prob of one token whose old log-prob is 0."""
    return torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)


def ppo_at(ratio: float, advantage: float, clip_ratio_c: float | None = None) -> tuple[float, bool, float]:
    """Loss, clip flag and gradient of one token with clip range [0.8, 1.28]."""
    logprobs = at(ratio)
    found = ppo(
        logprobs,
        torch.zeros(1, 1),
        torch.tensor([[advantage]]),
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=clip_ratio_c,
    )
    return numbers(found, logprobs)


def numbers(found: PolicyLoss, logprobs: torch.Tensor) -> tuple[float, bool, float]:
    found.loss_BT.sum().backward()
    assert logprobs.grad is not None
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


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [(2.9, -2.0, 5.8, False), (3.5, -2.0, 6.0, True), (0.5, -2.0, 1.6, True), (3.5, 2.0, -2.56, True)],
)
def test_dual_clip_limits_only_what_a_negative_advantage_costs(
    ratio: float, advantage: float, loss: float, is_clipped: bool
) -> None:
    found, flag, gradient = ppo_at(ratio, advantage, clip_ratio_c=3.0)
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


def test_gspo_has_one_ratio_per_sequence_the_geometric_mean_over_its_loss_tokens() -> None:
    # Ratios 2 and 8 and a masked one: geometric mean 4. The second sequence: 1/2 and 2 make 1.
    ratios = torch.tensor([[2.0, 8.0, 100.0], [0.5, 2.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, False]])
    logprobs = ratios.log().requires_grad_()
    advantages = torch.tensor([[-1.0], [3.0]], dtype=torch.float64)
    found = gspo(logprobs, torch.zeros(2, 3), advantages, mask, clip_ratio_low=0.1, clip_ratio_high=0.1)
    assert found.loss_BT[mask].tolist() == pytest.approx([4.0, 4.0, -3.0, -3.0])
    # Each of the two tokens carries the loss 4; a log-prob moves both by half of it: 4 * (1/2 + 1/2).
    torch.where(mask, found.loss_BT, 0.0).sum().backward()
    assert logprobs.grad.tolist() == [pytest.approx([4.0, 4.0, 0.0]), pytest.approx([-3.0, -3.0, 0.0])]


def test_gspo_clips_whole_sequences() -> None:
    logprobs = torch.tensor([[2.0, 8.0]]).log().requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = gspo(logprobs, torch.zeros(1, 2), torch.ones(1, 1), mask, clip_ratio_low=0.1, clip_ratio_high=0.1)
    found.loss_BT.sum().backward()
    assert found.loss_BT[0].tolist() == pytest.approx([-1.1, -1.1])
    assert found.is_clipped_BT.all()
    assert logprobs.grad.tolist() == [[0.0, 0.0]]


def test_what_stands_at_masked_tokens_does_not_matter_to_gspo() -> None:
    logprobs = torch.tensor([[0.5, float("nan")]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    found = gspo(logprobs, torch.zeros(1, 2), -torch.ones(1, 1), mask, clip_ratio_low=0.1, clip_ratio_high=0.1)
    found.loss_BT[mask].sum().backward()
    assert found.loss_BT[0, 0].item() == pytest.approx(math.exp(0.5))
    assert logprobs.grad.tolist() == [pytest.approx([math.exp(0.5), 0.0])]


@pytest.mark.parametrize(
    ("ratio", "weight", "is_clipped"), [(1.0, 1.0, False), (0.2, 0.5, True), (3.0, 3.0, False), (9.0, 5.0, True)]
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_weighs_the_policy_gradient_by_the_clipped_ratio(
    ratio: float, weight: float, is_clipped: bool, advantage: float
) -> None:
    logprobs = at(ratio)
    found = cispo(logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), clip_ratio_low=0.5, clip_ratio_high=4.0)
    loss, flag, gradient = numbers(found, logprobs)
    assert loss == pytest.approx(-advantage * weight * math.log(ratio))
    assert flag is is_clipped
    assert gradient == pytest.approx(-advantage * weight)


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.5), (-2.0, 3.0)])
def test_sapo_gates_softly_with_a_temperature_of_the_advantages_sign(advantage: float, tau: float) -> None:
    logprobs = at(2.0)
    found = sapo(
        logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), temperature_positive=1.5, temperature_negative=3.0
    )
    loss, flag, gradient = numbers(found, logprobs)
    gate = 1 / (1 + math.exp(-tau))
    assert loss == pytest.approx(-advantage * gate * 4 / tau)
    assert gradient == pytest.approx(-advantage * 4 * gate * (1 - gate) * 2.0)
    assert flag is False


@pytest.mark.parametrize("tau", [0.5, 1.0, 5.0])
def test_at_ratio_1_sapo_has_the_plain_policy_gradient_at_any_temperature(tau: float) -> None:
    logprobs = at(1.0)
    found = sapo(logprobs, torch.zeros(1, 1), torch.tensor([[3.0]]), temperature_positive=tau, temperature_negative=9.0)
    assert numbers(found, logprobs)[2] == pytest.approx(-3.0)
