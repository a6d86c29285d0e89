from __future__ import annotations

import math

import pytest
import torch

from tailrace.algorithms.advantages import grpo, has_spread


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


def test_a_group_has_spread_when_any_two_scores_differ() -> None:
    scores, groups = torch.tensor([1.0, 1.0, 2.0, -3.0, 2.0]), torch.tensor([0, 0, 1, 2, 1])
    assert has_spread(scores, groups).tolist() == [False, False, False]
    assert has_spread(torch.tensor([1.0, -1.0]), torch.tensor([0, 0])).tolist() == [True]


def test_a_score_without_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="one group number per score"):
        grpo(torch.zeros(3), torch.zeros(2, dtype=torch.int64), normalize_by_std=True)
