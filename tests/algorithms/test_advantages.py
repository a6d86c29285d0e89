from __future__ import annotations

import math

import pytest
import torch

from tailrace.algorithms.advantages import (
    dr_grpo,
    grpo,
    has_spread,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    whiten,
)


def judge(scores: list[float], groups: list[int], *, normalize_by_std: bool) -> list[float]:
    return grpo(torch.tensor(scores), torch.tensor(groups), normalize_by_std=normalize_by_std).tolist()


def test_without_std_an_advantage_is_the_distance_from_the_groups_mean() -> None:
    assert judge([1.0, 0.0, 0.0, 3.0], [0, 0, 0, 0], normalize_by_std=False) == [0.0, -1.0, -1.0, 2.0]


def test_with_std_it_is_divided_by_the_sample_standard_deviation() -> None:
    # mean 1, squared distances 0, 1, 1, 4 over 3 degrees of freedom: the standard deviation is sqrt(2).
    expected = [0.0, -1 / math.sqrt(2), -1 / math.sqrt(2), 2 / math.sqrt(2)]
    assert judge([1.0, 0.0, 0.0, 3.0], [0, 0, 0, 0], normalize_by_std=True) == pytest.approx(expected, rel=1e-5)


def test_groups_of_unequal_sizes_do_not_touch_each_other() -> None:
    scores, groups = [0.0, 5.0, 1.0, 1.0, 10.0], [1, 0, 1, 1, 0]
    assert judge(scores, groups, normalize_by_std=False) == pytest.approx([-2 / 3, -2.5, 1 / 3, 1 / 3, 2.5])


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_equal_scores_and_lonely_members_have_exactly_no_advantage(normalize_by_std: bool) -> None:
    # The mean of three 0.1s is not 0.1 in floating point; the advantage must be zero all the same.
    assert judge([0.1, 0.1, 0.1, 7.0], [0, 0, 0, 1], normalize_by_std=normalize_by_std) == [0.0, 0.0, 0.0, 0.0]


def test_dr_grpo_is_grpo_without_the_division() -> None:
    scores, groups = torch.tensor([1.0, 0.0, 5.0, 2.0, 4.0]), torch.tensor([0, 0, 1, 1, 1])
    assert torch.equal(dr_grpo(scores, groups), grpo(scores, groups, normalize_by_std=False))


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    # 1 against (0 + 2) / 2; 0 against (1 + 2) / 2; 2 against (1 + 0) / 2. Then a pair: each against the other.
    found = rloo(torch.tensor([1.0, 0.0, 2.0, 5.0, 3.0]), torch.tensor([0, 0, 0, 1, 1]))
    assert found.tolist() == pytest.approx([0.0, -1.5, 1.5, 2.0, -2.0])


def test_rloo_gives_equal_scores_and_lonely_members_exactly_nothing() -> None:
    found = rloo(torch.tensor([0.1, 0.1, 0.1, 7.0]), torch.tensor([0, 0, 0, 1]))
    assert found.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_reinforce_plus_plus_whitens_scores_over_the_tokens_of_the_batch() -> None:
    # 1, 1, 1, 0: mean 3/4, squared distances 3/16 + 9/16 over 3 degrees of freedom: variance 1/4.
    found = reinforce_plus_plus(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0]))
    assert found.tolist() == pytest.approx([0.5, -1.5], rel=1e-6)


def test_the_baseline_form_whitens_distances_from_the_groups_means() -> None:
    # Distances 1, -1, 0, 0 with one token each: mean 0, variance 2 / 3. Raw scores would say 3, 1, 9, 9.
    found = reinforce_plus_plus_baseline(torch.tensor([3.0, 1.0, 9.0, 9.0]), torch.tensor([0, 0, 1, 1]), torch.ones(4))
    assert found.tolist() == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5), 0.0, 0.0], rel=1e-6)


def test_whitened_values_have_mean_0_and_variance_1_over_what_they_stand_for() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(9, generator=generator, dtype=torch.float64) * 3 + 2
    weights = torch.randint(0, 6, (9,), generator=generator)
    spread = whiten(values, weights).repeat_interleave(weights)
    assert spread.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert spread.var().item() == pytest.approx(1.0, rel=1e-6)


def test_equal_values_whiten_to_exactly_nothing_whatever_a_response_without_tokens_scored() -> None:
    assert whiten(torch.tensor([0.1, 0.1, 0.1, 5.0]), torch.tensor([1, 2, 3, 0])).tolist() == [0.0] * 4
    assert whiten(torch.tensor([1.0, 2.0]), torch.tensor([0, 0])).tolist() == [0.0, 0.0]


def test_a_group_has_spread_when_any_two_scores_differ() -> None:
    scores, groups = torch.tensor([1.0, 1.0, 2.0, -3.0, 2.0]), torch.tensor([0, 0, 1, 2, 1])
    assert has_spread(scores, groups).tolist() == [False, False, False]
    assert has_spread(torch.tensor([1.0, -1.0]), torch.tensor([0, 0])).tolist() == [True]


def test_a_score_without_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="one group number per score"):
        grpo(torch.zeros(3), torch.zeros(2, dtype=torch.int64), normalize_by_std=True)


def test_a_score_without_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="one weight per value"):
        reinforce_plus_plus(torch.zeros(3), torch.zeros(2))
