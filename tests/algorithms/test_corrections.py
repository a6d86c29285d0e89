from __future__ import annotations

import pytest
import torch

from tailrace.algorithms.corrections import (
    Correction,
    Ratios,
    decoupled,
    geo_mask,
    icepop,
    none,
    ratios,
    seq_tis,
    tis,
)

RATIOS = torch.tensor([[1.5, 4.0, 0.5, 7.0], [0.25, 1.0, 1.0, 7.0]])
MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])
"""Products 3 and 1/4; geometric means 3 ** (1/3) = 1.44 and 1/2."""


@pytest.fixture
def found() -> Ratios:
    return ratios(RATIOS.log(), MASK)


def weights(correction: Correction) -> list[float]:
    return correction.weights_BT[MASK].tolist()


def test_ratios_at_three_levels(found: Ratios) -> None:
    assert found.token_BT[MASK].tolist() == pytest.approx([1.5, 4.0, 0.5, 0.25, 1.0])
    assert found.sequence_B.tolist() == pytest.approx([3.0, 0.25])
    assert found.geometric_B.tolist() == pytest.approx([3 ** (1 / 3), 0.5])


def test_none_weighs_every_token_alike(found: Ratios) -> None:
    assert weights(none(found)) == [1.0] * 5
    assert not none(found).is_clipped_BT.any()
    assert not none(found).is_masked_BT.any()


def test_tis_limits_each_tokens_ratio(found: Ratios) -> None:
    correction = tis(found, clip_low=0.4, clip_high=2.0)
    assert weights(correction) == pytest.approx([1.5, 2.0, 0.5, 0.4, 1.0])
    assert correction.is_clipped_BT[MASK].tolist() == [False, True, False, True, False]
    assert not correction.is_masked_BT.any()


def test_seq_tis_gives_every_token_its_responses_limited_ratio(found: Ratios) -> None:
    correction = seq_tis(found, clip_low=0.0, clip_high=2.0)
    assert weights(correction) == pytest.approx([2.0, 2.0, 2.0, 0.25, 0.25])
    assert correction.is_clipped_BT[MASK].tolist() == [True, True, True, False, False]


def test_icepop_drops_tokens_out_of_range_and_weighs_the_rest(found: Ratios) -> None:
    correction = icepop(found, clip_low=0.5, clip_high=2.0)
    assert weights(correction) == pytest.approx([1.5, 0.0, 0.5, 0.0, 1.0])
    assert correction.is_masked_BT[MASK].tolist() == [False, True, False, True, False]
    assert not correction.is_clipped_BT.any()


def test_geo_mask_drops_responses_out_of_range_and_weighs_none(found: Ratios) -> None:
    correction = geo_mask(found, clip_low=0.9, clip_high=1.5)
    assert weights(correction) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert correction.is_masked_BT[MASK].tolist() == [False, False, False, True, True]


def test_decoupled_drops_outliers_and_weighs_the_rest(found: Ratios) -> None:
    assert weights(decoupled(found, clip_low=0.0, clip_high=3.0)) == pytest.approx([1.5, 0.0, 0.5, 0.25, 1.0])


def test_masked_tokens_reach_no_ratio_whatever_stands_there() -> None:
    spoiled = ratios(torch.where(MASK, RATIOS.log(), float("nan")), MASK)
    clean = ratios(RATIOS.log(), MASK)
    assert torch.equal(spoiled.token_BT, clean.token_BT)
    assert torch.equal(spoiled.sequence_B, clean.sequence_B)
    assert torch.equal(spoiled.geometric_B, clean.geometric_B)


def test_a_response_without_loss_tokens_has_ratio_1() -> None:
    found = ratios(torch.full((1, 3), 2.0), torch.zeros(1, 3, dtype=torch.bool))
    assert (found.sequence_B.item(), found.geometric_B.item()) == (1.0, 1.0)


@pytest.mark.parametrize("correct", [tis, seq_tis, icepop, geo_mask, decoupled])
def test_no_gradient_flows_through_a_correction(correct: object) -> None:
    log_ratio = RATIOS.log().requires_grad_()
    assert callable(correct)
    assert not correct(ratios(log_ratio, MASK), clip_low=0.1, clip_high=2.0).weights_BT.requires_grad


def test_a_product_beyond_all_measure_does_not_overflow() -> None:
    found = ratios(torch.full((1, 1000), 1.0), torch.ones(1, 1000, dtype=torch.bool))
    assert found.sequence_B.isfinite().all()
