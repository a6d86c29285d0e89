"""The fused kernel of log-probs and entropies, compiled, and in the precision of training."""

from __future__ import annotations

import pytest
import torch

pytest.register_assert_rewrite("trainer.scores_suite")

from tailrace.trainer.model import fused_scores  # noqa: E402
from trainer.scores_suite import *  # noqa: E402, F403
from trainer.scores_suite import plain  # noqa: E402


@pytest.fixture
def device() -> str:
    return "cuda"


def test_bfloat16_logits_of_a_large_vocabulary() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = (4 * torch.randn(300, 151_936, device="cuda", generator=generator)).bfloat16().requires_grad_()
    targets = torch.randint(0, 151_936, (300,), device="cuda", generator=generator)
    found, entropy = fused_scores.score(logits, targets, 0.9)
    expected, expected_entropy = plain(logits, targets, 0.9)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), expected_entropy.detach(), atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    (other,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(gradient, other, atol=1e-5, rtol=1e-2)
