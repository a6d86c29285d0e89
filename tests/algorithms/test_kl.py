from __future__ import annotations

import math

import pytest
import torch

from tailrace.algorithms.kl import k3


def test_k3_by_hand() -> None:
    # Twice as likely under the reference: 2 - ln 2 - 1. Half as likely: 1/2 + ln 2 - 1.
    reference = torch.tensor([[math.log(2.0), math.log(0.5), 0.0]])
    expected = [1 - math.log(2.0), math.log(2.0) - 0.5, 0.0]
    assert k3(torch.zeros(1, 3), reference)[0].tolist() == pytest.approx(expected)


def test_k3_is_never_negative_even_for_tiny_gaps() -> None:
    gaps = torch.linspace(-1e-4, 1e-4, 1001)
    found = k3(torch.zeros_like(gaps), gaps)
    assert (found >= 0).all()
    assert found.max() > 0


def test_the_mean_of_k3_over_the_policys_samples_is_the_divergence() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    exact = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * k3(policy, reference)).sum() == pytest.approx(exact.item(), rel=1e-6)
