"""Which tokens of earlier versions train."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.step.stale import mask_stale


def sample(member: int, *runs: tuple[int, int], mask: list[int] | None = None) -> Sample:
    """A response whose tokens were written by these versions: (version, number of tokens)."""
    name, count = ResponseId(GroupId("train", 0, 0), member), sum(n for _, n in runs)
    response = ResponsePayload(
        response_id=name,
        tokens=np.arange(count, dtype=np.int32),
        logprobs=np.zeros(count, np.float32),
        behaviour_logprobs=np.zeros(count, np.float32),
        mask=np.array(mask if mask is not None else [1] * count, np.uint8),
        versions=tuple((Version(v), n) for v, n in runs),
    )
    return Sample(response_id=name, prompt=np.ones(1, np.int32), response=response, score=0.0)


def masks(mode: str, *members: Sample, version: int = 5, age: int = 1) -> list[list[int]]:
    settings = AlgorithmSettings(stale_tokens=mode, max_token_age=age)
    (group,) = mask_stale([members], Version(version), settings)
    return [member.response.mask.tolist() for member in group]


def test_all_tokens_train_unless_asked_otherwise() -> None:
    assert masks("train", sample(0, (1, 2), (5, 1))) == [[1, 1, 1]]


def test_mask_prefix_keeps_the_newest_version_of_the_group_only() -> None:
    resumed, ended_before = sample(0, (3, 2), (4, 1), (5, 2)), sample(1, (3, 3))
    assert masks("mask-prefix", resumed, ended_before) == [[0, 0, 0, 1, 1], [0, 0, 0]]


def test_mask_prefix_leaves_a_group_that_was_never_resumed_alone() -> None:
    assert masks("mask-prefix", sample(0, (3, 2)), sample(1, (3, 1))) == [[1, 1], [1]]


@pytest.mark.parametrize(("age", "expected"), [(0, [0, 0, 0, 1]), (1, [0, 0, 1, 1]), (2, [1, 1, 1, 1])])
def test_mask_old_keeps_tokens_up_to_an_age(age: int, expected: list[int]) -> None:
    assert masks("mask-old", sample(0, (3, 2), (4, 1), (5, 1)), age=age) == [expected]


def test_tokens_that_were_masked_before_stay_masked() -> None:
    assert masks("mask-old", sample(0, (4, 1), (5, 2), mask=[1, 0, 1])) == [[1, 0, 1]]
