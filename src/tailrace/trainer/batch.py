"""What the trainer is given: finished, scored responses, in groups.

A group is the unit of training, because advantages compare its members. Training order is by id, never by arrival,
so that the order in which responses finished cannot change a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tailrace.core.ids import GroupId, ResponseId
from tailrace.store.segment import ResponsePayload, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response with its prompt and its score."""

    response_id: ResponseId
    prompt: Tokens
    response: ResponsePayload
    score: float
    is_truncated: bool = False
    """Whether its token budget ended it."""

    def __post_init__(self) -> None:
        if self.response.response_id != self.response_id:
            raise ValueError(f"{self.response_id} was given the response of {self.response.response_id}")
        if len(self.prompt) == 0:
            raise ValueError(f"{self.response_id} has an empty prompt; the first response token needs one before it")
        if not math.isfinite(self.score):
            raise ValueError(f"{self.response_id} has the score {self.score}; scores must be finite")
        if not np.isfinite(self.response.behaviour_logprobs[self.response.mask != 0]).all():
            raise ValueError(f"{self.response_id} has behaviour log-probs that are not finite")

    @property
    def num_loss_tokens(self) -> int:
        return int(np.count_nonzero(self.response.mask))

    @property
    def inputs(self) -> Tokens:
        """Tokens the network reads: all but the last, which nothing is predicted from."""
        return np.concatenate([self.prompt, self.response.tokens[:-1]])


def in_groups(samples: Iterable[Sample]) -> list[list[Sample]]:
    """Samples by group, groups and members in order of id."""
    groups: dict[GroupId, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.response_id):
        groups.setdefault(sample.response_id.group, []).append(sample)
    return list(groups.values())
