"""Where TRL has an advantage, a loss or a correction, the values are TRL's to 1e-6. The table: ``references.py``."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tailrace.algorithms import advantages, aggregation, corrections, kl, losses
from tailrace.algorithms.aggregation import LossAggMode
from tailrace.algorithms.losses import PolicyLoss
from tailrace.algorithms.overlong import soft_penalty

TOLERANCE = 1e-6
needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed")
ignores_its_warnings = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def trl() -> ModuleType:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from algorithms import trl_references
    return trl_references


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=TOLERANCE)


@needs_trl
@ignores_its_warnings
@pytest.mark.parametrize("scale_rewards", ["group", "none"])
def test_grpo_advantages_are_trls(trl: ModuleType, tmp_path: Path, scale_rewards: str) -> None:
    expected = trl.rollouts(trl.grpo_trainer(tmp_path, scale_rewards=scale_rewards), noise=0.1).inputs["advantages"]
    scores, group = torch.tensor(trl.SCORES), torch.arange(8) // trl.GROUP_SIZE
    by_name = {
        "group": advantages.grpo(scores, group, normalize_by_std=True, epsilon=1e-4),
        "none": advantages.dr_grpo(scores, group),
    }
    assert_equal(by_name[scale_rewards], expected)


@needs_trl
@ignores_its_warnings
def test_rloo_advantages_are_trls(trl: ModuleType, tmp_path: Path) -> None:
    found = advantages.rloo(torch.tensor(trl.SCORES), torch.arange(8) // trl.GROUP_SIZE)
    assert_equal(found, trl.rloo_advantages(tmp_path))


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], PolicyLoss]
LOSSES: dict[str, tuple[Loss, LossAggMode, dict[str, object]]] = {
    "ppo, mean over responses": (
        lambda new, old, A, mask: losses.ppo(new, old, A, clip_ratio_low=0.2, clip_ratio_high=0.28),
        "seq-mean-token-mean",
        {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.28},
    ),
    "ppo, mean over the batch's tokens": (
        lambda new, old, A, mask: losses.ppo(new, old, A, clip_ratio_low=0.3, clip_ratio_high=0.1),
        "token-mean",
        {"loss_type": "bnpo", "epsilon": 0.3, "epsilon_high": 0.1},
    ),
    "ppo with dual clip": (
        lambda new, old, A, mask: losses.ppo(new, old, A, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=1.5),
        "token-mean",
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.2, "delta": 1.5},
    ),
    "gspo": (
        lambda new, old, A, mask: losses.gspo(new, old, A, mask, clip_ratio_low=0.03, clip_ratio_high=0.04),
        "seq-mean-token-mean",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
    ),
    "cispo": (
        lambda new, old, A, mask: losses.cispo(new, old, A, clip_ratio_low=1.0, clip_ratio_high=0.5),
        "token-mean",
        {"loss_type": "cispo", "epsilon_high": 1.5},
    ),
    "sapo": (
        lambda new, old, A, mask: losses.sapo(new, old, A, temperature_positive=1.0, temperature_negative=1.4),
        "seq-mean-token-mean",
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.4},
    ),
}


@needs_trl
@ignores_its_warnings
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_trls(trl: ModuleType, tmp_path: Path, name: str) -> None:
    loss_of, mode, settings = LOSSES[name]
    trainer = trl.grpo_trainer(tmp_path, **settings)
    given = trl.rollouts(trainer, noise=0.5)
    # The log-probs of the generating policy stand for the old ones, so that ratios are not 1.
    inputs = given.inputs | {"old_per_token_logps": given.behaviour_logprobs_BT}
    expected = trainer._compute_loss(trainer.model, inputs)
    new_BT = trl.logprobs(trainer, given)
    found = loss_of(new_BT, given.behaviour_logprobs_BT, inputs["advantages"][:, None], given.mask_BT)
    mine = aggregation.loss_sum(found.loss_BT, given.mask_BT, mode) / aggregation.denominator(given.mask_BT, mode)
    assert abs(expected.item()) > 1e-3
    assert_equal(mine, expected)
    assert name == "sapo" or (found.is_clipped_BT & given.mask_BT).any(), "the clip must be put to the test"
    parameters = list(trainer.model.parameters())
    gradients = [torch.autograd.grad(loss, parameters) for loss in (mine, expected)]
    scale = max(gradient.abs().max() for gradient in gradients[1])
    for one, other in zip(*gradients, strict=True):
        assert_equal(one / scale, other / scale)


@needs_trl
@ignores_its_warnings
def test_the_kl_term_is_trls(trl: ModuleType, tmp_path: Path) -> None:
    trainer = trl.grpo_trainer(tmp_path, beta=0.3, loss_type="bnpo", epsilon=0.2)
    given = trl.rollouts(trainer, noise=0.1)
    generator = torch.Generator().manual_seed(2)
    reference_BT = given.old_logprobs_BT + torch.randn(given.old_logprobs_BT.shape, generator=generator)
    advantages_B = torch.zeros(len(trl.SCORES))
    expected = trainer._compute_loss(
        trainer.model, given.inputs | {"ref_per_token_logps": reference_BT, "advantages": advantages_B}
    )
    found = kl.k3(trl.logprobs(trainer, given), reference_BT)
    assert expected.item() > 1e-3
    assert_equal(0.3 * aggregation.loss_sum(found, given.mask_BT, "token-mean") / given.mask_BT.sum(), expected)


@needs_trl
@ignores_its_warnings
@pytest.mark.parametrize(
    ("name", "mode", "low", "high"),
    [
        ("tis", "token_truncate", 0.6, 1.4),
        ("seq_tis", "sequence_truncate", 0.6, 1.4),
        ("icepop", "token_mask", 0.6, 1.4),
        ("decoupled", "token_mask", None, 1.4),
    ],
)
def test_corrections_are_trls(
    trl: ModuleType, tmp_path: Path, name: str, mode: str, low: float | None, high: float
) -> None:
    trainer = trl.grpo_trainer(
        tmp_path,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
    )
    given = trl.rollouts(trainer, noise=0.5)
    expected_BT = given.inputs["importance_sampling_ratio"].expand_as(given.old_logprobs_BT)
    found = corrections.ratios(given.old_logprobs_BT - given.behaviour_logprobs_BT, given.mask_BT)
    correction = getattr(corrections, name)(found, clip_low=low or 0.0, clip_high=high)
    assert (correction.is_clipped_BT | correction.is_masked_BT)[given.mask_BT].any()
    assert_equal(correction.weights_BT[given.mask_BT], expected_BT[given.mask_BT])


@needs_trl
@ignores_its_warnings
def test_the_overlong_penalty_is_trls(trl: ModuleType) -> None:
    from trl.rewards import get_soft_overlong_punishment

    lengths = list(range(1, 60))
    expected = get_soft_overlong_punishment(max_completion_len=50, soft_punish_cache=20)([[1] * n for n in lengths])
    assert_equal(soft_penalty(torch.tensor(lengths), max_length=50, buffer_length=20), torch.tensor(expected))
