"""Which loss settings a trainer can follow, and which of them may meet in one step; all else is a `ValueError`."""

from __future__ import annotations

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.variants import CORRECTIONS, ESTIMATORS
from tailrace.core.ids import Version


def refuse_contradictions(settings: AlgorithmSettings) -> None:
    if CORRECTIONS[settings.importance_sampling.type].is_active and settings.old_logprobs == "behaviour":
        raise ValueError(
            "importance_sampling needs old_logprobs = 'recompute': with 'behaviour' the ratio itself "
            "starts from the rollout's log-probs and there is nothing left to correct"
        )


def refuse_unfit(asked: AlgorithmSettings, made_with: AlgorithmSettings) -> None:
    """A trainer has loaded what its own settings need, and nothing else."""
    refuse_contradictions(asked)
    if ESTIMATORS[made_with.advantage_estimator].needs_critic:
        raise ValueError("a trainer with a critic takes only the loss settings that it was made with")
    if ESTIMATORS[asked.advantage_estimator].needs_critic:
        raise ValueError(f"{asked.advantage_estimator} needs a critic, and this trainer was made without one")
    if asked.kl_loss_coef > 0 and not made_with.kl_loss_coef:
        raise ValueError("kl_loss_coef needs the starting model, and this trainer was made without it")


def refuse_mixture(asked: AlgorithmSettings, before: AlgorithmSettings, version: Version) -> None:
    """``before``: what the step was given first. The pieces of a step must add up to the step on the whole batch."""
    for settings in (before, asked):
        if ESTIMATORS[settings.advantage_estimator].whitens_batch:
            raise ValueError(
                f"{settings.advantage_estimator} whitens advantages over the batch, so step {version}"
                " cannot be trained in pieces; give its groups at once"
            )
    if asked.loss_agg_mode != before.loss_agg_mode:
        raise ValueError(
            f"step {version} averages its losses by {before.loss_agg_mode};"
            f" {asked.loss_agg_mode} has another denominator"
        )
