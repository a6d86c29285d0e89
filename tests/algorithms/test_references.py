"""Everything the trainer can be asked to compute equals its reference to 1e-6, called the way the trainer calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from algorithms import references as given
from algorithms.references import REFERENCES, Kind, Reference
from tailrace.algorithms import aggregation, corrections, kl, values
from tailrace.algorithms.aggregation import LossAggMode
from tailrace.algorithms.overlong import soft_penalty
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.trainer.step import dispatch
from tailrace.trainer.step.dispatch import Judged, PolicyTerms

TOLERANCE = 1e-6
TERMS = {"k3", "value loss", "overlong penalty", *get_args(LossAggMode)}
MASK = torch.tensor(given.MASK).bool()


def tensor(numbers: list[float] | list[list[float]]) -> Tensor:
    """Where a token is masked stands what must not matter."""
    found = torch.tensor(numbers, dtype=torch.float64)
    return torch.where(MASK, found, float("nan")) if found.dim() == 2 else found


def advantage(reference: Reference) -> Tensor:
    settings = AlgorithmSettings(advantage_estimator=reference.name, **reference.settings)
    scores = tensor(given.SCORES)
    if reference.name == "gae":  # the critic's, not the table's
        found = values.gae(scores, tensor(given.VALUES), MASK, gamma=settings.gamma, lam=settings.lam)
        return found.advantages_BT[MASK]
    judged = Judged(scores_B=scores, group_B=torch.tensor(given.GROUPS), num_tokens_B=MASK.sum(dim=1))
    return dispatch.judge(judged, settings)


def loss(reference: Reference) -> Tensor:
    settings = AlgorithmSettings(loss=reference.name, **reference.settings)
    advantages = tensor(given.ADVANTAGES)[:, None]
    terms = PolicyTerms(
        logprobs_BT=tensor(given.NEW), old_logprobs_BT=tensor(given.OLD), advantages_BT=advantages, mask_BT=MASK
    )
    return dispatch.policy_loss(terms, settings).loss_BT[MASK]


def correction(reference: Reference) -> Tensor:
    settings = AlgorithmSettings(importance_sampling={"type": reference.name, **reference.settings})
    found = corrections.ratios(tensor(given.OLD) - tensor(given.BEHAVIOUR), MASK)
    return dispatch.correction(found, settings).weights_BT[MASK]


def term(reference: Reference) -> Tensor:
    new, old = tensor(given.NEW), tensor(given.OLD)
    match reference.name:
        case "k3":
            return kl.k3(new, old)[MASK]
        case "value loss":
            return values.value_loss(tensor(given.VALUES), tensor(given.RETURNS))[MASK]
        case "overlong penalty":
            return soft_penalty(torch.tensor(given.LENGTHS), max_length=50, buffer_length=20)
        case mode:
            return (aggregation.loss_sum(new, MASK, mode) / aggregation.denominator(MASK, mode))[None]


COMPUTE: dict[Kind, Callable[[Reference], Tensor]] = {
    "advantage": advantage, "loss": loss, "correction": correction, "term": term
}  # fmt: skip


@pytest.mark.parametrize("reference", REFERENCES, ids=str)
def test_it_equals_its_reference(reference: Reference) -> None:
    found = COMPUTE[reference.kind](reference)
    expected = torch.tensor(list(reference.expected()), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "variants"),
    [
        ("advantage", dispatch.ESTIMATORS),
        ("loss", dispatch.LOSSES),
        ("correction", dispatch.CORRECTIONS),
        ("term", TERMS),
    ],
)
def test_everything_the_trainer_can_be_asked_for_is_in_the_table(kind: Kind, variants: dict[str, object]) -> None:
    assert {reference.name for reference in REFERENCES if reference.kind == kind} == set(variants)


@pytest.mark.parametrize("reference", [row for row in REFERENCES if row.kind in ("loss", "correction")], ids=str)
def test_the_inputs_put_every_limit_to_the_test(reference: Reference) -> None:
    """Other limits give other numbers, so agreement is not an agreement of values that no limit touched."""
    free = {
        "clip_ratio_low": 0.99, "clip_ratio_high": 9.0, "clip_ratio_c": 9.0, "clip_low": 0.0, "clip_high": 99.0,
        "sapo_temperature_pos": 3.0, "sapo_temperature_neg": 3.0,
    }  # fmt: skip
    expected = torch.tensor(list(reference.expected()), dtype=torch.float64)
    for name in reference.settings:
        changed = replace(reference, settings=reference.settings | {name: free[name]})
        assert (COMPUTE[reference.kind](changed) - expected).abs().max() > 1e-3, name
