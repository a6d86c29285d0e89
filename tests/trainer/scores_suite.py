"""The fused kernel gives what plain torch gives. A test module imports the tests and says for which ``device``."""

from __future__ import annotations

import pytest
import torch

from tailrace.trainer.model import fused_scores


def plain(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), torch.special.entr(logprobs.exp()).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocabulary", [7, 4096, 4097, 9000])
def test_scores_and_gradients_are_those_of_a_log_softmax(device: str, vocabulary: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (8 * torch.randn(5, vocabulary, generator=generator)).to(device).requires_grad_()
    targets = torch.tensor([0, vocabulary - 1, 3, 2, 3], device=device)
    weights = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0], device=device)
    found, entropy = fused_scores.score(logits, targets, temperature)
    expected, expected_entropy = plain(logits, targets, temperature)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), expected_entropy.detach(), atol=2e-5, rtol=1e-4)
    (gradient,) = torch.autograd.grad((found * weights).sum(), logits)
    (other,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(gradient, other, atol=1e-6, rtol=1e-4)


def test_logits_far_apart_and_masked_ones_give_finite_scores(device: str) -> None:
    logits = torch.zeros(2, 5000, device=device)
    logits[0, 4999], logits[1, :4000] = 1e4, float("-inf")
    found, entropy = fused_scores.score(logits, torch.tensor([4999, 4500], device=device), 1.0)
    torch.testing.assert_close(found.cpu(), torch.tensor([0.0, -6.907755]), atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy.cpu(), torch.tensor([0.0, 6.907755]), atol=1e-5, rtol=0)


def test_a_logit_that_is_not_a_number_makes_its_own_score_not_finite(device: str) -> None:
    logits = torch.randn(3, 5000, device=device)
    logits[1, 4321] = float("nan")
    found, _ = fused_scores.score(logits, torch.tensor([1, 1, 1], device=device), 1.0)
    assert found.isfinite().tolist() == [True, False, True]


def test_no_tokens_have_no_scores(device: str) -> None:
    logits = torch.empty(0, 50, device=device, requires_grad=True)
    found, entropy = fused_scores.score(logits, torch.empty(0, dtype=torch.int64, device=device), 1.0)
    found.sum().backward()
    assert found.shape == entropy.shape == (0,)
