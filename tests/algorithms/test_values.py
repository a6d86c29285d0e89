from __future__ import annotations

import pytest
import torch

from tailrace.algorithms.values import gae, value_loss


def test_gae_by_hand() -> None:
    # gamma 1/2, lam 1/2, values 1, 2, 4, score 8 at the end.
    # delta: 0 + 1 - 1 = 0;  0 + 2 - 2 = 0;  8 + 0 - 4 = 4.  A_t = delta_t + A_(t+1) / 4.
    found = gae(torch.tensor([8.0]), torch.tensor([[1.0, 2.0, 4.0]]), torch.ones(1, 3).bool(), gamma=0.5, lam=0.5)
    assert found.advantages_BT.tolist() == [[0.25, 1.0, 4.0]]
    assert found.returns_BT.tolist() == [[1.25, 3.0, 8.0]]


def test_without_discount_and_with_lam_1_it_is_score_minus_value() -> None:
    values = torch.tensor([[0.5, -1.0, 3.0]], dtype=torch.float64)
    found = gae(torch.tensor([2.0]), values, torch.ones(1, 3).bool(), gamma=1.0, lam=1.0)
    torch.testing.assert_close(found.advantages_BT, 2.0 - values)
    torch.testing.assert_close(found.returns_BT, torch.full_like(values, 2.0))


def test_it_is_the_discounted_sum_of_deltas() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    scores, gamma, lam = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 0.9, 0.8
    found = gae(scores, values, torch.ones(3, 6).bool(), gamma=gamma, lam=lam)
    for row in range(3):
        after = [*values[row, 1:].tolist(), 0.0]
        reward = [0.0] * 5 + [float(scores[row])]
        delta = [reward[t] + gamma * after[t] - float(values[row, t]) for t in range(6)]
        expected = [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, 6)) for t in range(6)]
        assert found.advantages_BT[row].tolist() == pytest.approx(expected, rel=1e-9)


def test_masked_tokens_are_no_states_and_padding_no_end() -> None:
    plain = gae(torch.tensor([8.0]), torch.tensor([[1.0, 2.0, 4.0]]), torch.ones(1, 3).bool(), gamma=0.5, lam=0.5)
    nan = float("nan")
    values = torch.tensor([[1.0, nan, 2.0, 4.0, nan, nan]])
    mask = torch.tensor([[True, False, True, True, False, False]])
    found = gae(torch.tensor([8.0]), values, mask, gamma=0.5, lam=0.5)
    assert found.advantages_BT[mask].tolist() == plain.advantages_BT[0].tolist()
    assert found.returns_BT[mask].tolist() == plain.returns_BT[0].tolist()
    assert found.advantages_BT[~mask].tolist() == [0.0, 0.0, 0.0]


def test_no_gradient_flows_from_advantages_into_values() -> None:
    values = torch.zeros(1, 2, requires_grad=True)
    found = gae(torch.tensor([1.0]), values, torch.ones(1, 2).bool(), gamma=1.0, lam=0.9)
    assert not found.advantages_BT.requires_grad
    assert not found.returns_BT.requires_grad


@pytest.mark.parametrize(("value", "target", "loss", "gradient"), [(0.3, 1.0, 0.245, -0.7), (0.9, -1.0, 1.805, 1.9)])
def test_the_value_loss_by_hand(value: float, target: float, loss: float, gradient: float) -> None:
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    found = value_loss(values, torch.tensor([[target]]))
    found.sum().backward()
    assert found.item() == pytest.approx(loss)
    assert values.grad.item() == pytest.approx(gradient)
