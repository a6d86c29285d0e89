from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample, in_groups
from tailrace.trainer.model.collate import collate

MakeGroups = Callable[..., list[list[Sample]]]


def test_samples_in_any_order_come_back_in_groups_by_id(make_groups: MakeGroups) -> None:
    groups = make_groups(num_groups=12)
    samples = [sample for group in groups for sample in group]
    random.Random(0).shuffle(samples)
    assert [[s.response_id for s in group] for group in in_groups(samples)] == [
        [s.response_id for s in group] for group in groups
    ]


def test_a_score_that_is_not_finite_is_refused_with_its_owner(make_groups: MakeGroups) -> None:
    with pytest.raises(ValueError, match="train:0:0:0:0 has the score nan"):
        dataclasses.replace(make_groups()[0][0], score=float("nan"))


def test_an_empty_prompt_is_refused(make_groups: MakeGroups) -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        dataclasses.replace(make_groups()[0][0], prompt=np.empty(0, np.int32))


def test_the_response_of_another_response_is_refused(make_groups: MakeGroups) -> None:
    first, second = make_groups()[0][:2]
    with pytest.raises(ValueError, match="train:0:0:0:0 was given the response of train:0:0:1:0"):
        dataclasses.replace(first, response=second.response)


def test_logprobs_must_be_finite_only_where_they_count(make_groups: MakeGroups) -> None:
    sample = make_groups()[0][0]
    response = sample.response
    logprobs = np.full_like(response.behaviour_logprobs, np.nan)
    masked = dataclasses.replace(response, behaviour_logprobs=logprobs, mask=np.zeros_like(response.mask))
    dataclasses.replace(sample, response=masked)
    with pytest.raises(ValueError, match="not finite"):
        dataclasses.replace(sample, response=dataclasses.replace(masked, mask=np.ones_like(response.mask)))


def test_a_micro_batch_by_hand(make_groups: MakeGroups) -> None:
    template = make_groups()[0][0]

    def sample(prompt: list[int], tokens: list[int], mask: list[int], old: int) -> Sample:
        length = len(tokens)
        logprobs = np.arange(length, dtype=np.float32)
        response = dataclasses.replace(
            template.response,
            tokens=np.array(tokens, np.int32),
            logprobs=logprobs,
            behaviour_logprobs=logprobs,
            mask=np.array(mask, np.uint8),
            versions=((Version(1), old), (Version(2), length - old)),
        )
        return dataclasses.replace(template, prompt=np.array(prompt, np.int32), response=response)

    samples = [sample([5, 6, 7], [8], [1], 0), sample([5], [10, 11, 12], [1, 0, 1], 2)]
    micro = collate(samples, [0.5, -0.5], Version(2), torch.device("cpu"))
    assert micro.tree.tokens_U.tolist() == [5, 6, 7, 10, 11]
    assert micro.tree.positions_U.tolist() == [0, 1, 2, 1, 2]
    assert micro.tree.keys.tolist() == micro.tree.queries.tolist() == [0, 1, 2, 0, 3, 4]
    assert micro.tree.place_U.tolist() == [0, 1, 2, 4, 5]
    assert micro.targets_N.tolist() == [8, 10, 11, 12]
    assert micro.source_N.tolist() == [2, 0, 3, 4]
    assert micro.mask_BT.tolist() == [[True, False, False], [True, False, True]]
    assert micro.is_current_BT.tolist() == [[True, False, False], [False, False, True]]
    assert micro.behaviour_logprobs_BT.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]]
    assert micro.advantages_B.tolist() == [0.5, -0.5]
    assert micro.spread(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [[1.0, 0.0, 0.0], [2.0, 3.0, 4.0]]
