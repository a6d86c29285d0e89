"""What is done to responses that come close to their token budget or are cut off by it, before they are judged.

The penalty changes a response's score for training only: rewards are logged as they were given. Filtering takes a
cut-off response out of the loss; its score still counts for its group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tailrace.algorithms.overlong import soft_penalty
from tailrace.config.algorithm_settings import OverlongSettings
from tailrace.trainer.batch import Sample


class Overlong:
    """The settings, bound to the token budget of a response."""

    def __init__(self, settings: OverlongSettings, *, max_response_length: int | None) -> None:
        if settings.buffer_length and max_response_length is None:
            raise ValueError(
                f"algorithm.overlong.buffer_length is {settings.buffer_length} but the trainer was not told"
                " the max_response_length that the buffer ends at"
            )
        self._settings, self._max_response_length = settings, max_response_length

    def apply(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with the scores and masks they are trained with."""
        return [
            self._filtered(dataclasses.replace(sample, score=sample.score + penalty) if penalty else sample)
            for sample, penalty in zip(samples, self._penalties(samples), strict=True)
        ]

    def drops(self, sample: Sample) -> bool:
        return self._settings.filter_truncated and sample.is_truncated

    def sums(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Counts behind the logged numbers; empty where nothing is asked for."""
        found: dict[str, Tensor] = {}
        if self._settings.buffer_length:
            found["overlong_penalty"] = torch.tensor(sum(self._penalties(samples)))
        if self._settings.filter_truncated:
            found["overlong_filtered"] = torch.tensor(sum(self.drops(sample) for sample in samples))
        return found | {"overlong_responses": torch.tensor(len(samples))} if found else found

    def _penalties(self, samples: Sequence[Sample]) -> list[float]:
        """What is added to each score: at most 0."""
        if not self._settings.buffer_length or self._max_response_length is None:
            return [0.0] * len(samples)
        penalty_B = self._settings.penalty_factor * soft_penalty(
            torch.tensor([len(sample.response) for sample in samples]),
            max_length=self._max_response_length,
            buffer_length=self._settings.buffer_length,
        )
        penalties: list[float] = penalty_B.tolist()
        return penalties

    def _filtered(self, sample: Sample) -> Sample:
        if not self.drops(sample):
            return sample
        response = dataclasses.replace(sample.response, mask=np.zeros_like(sample.response.mask))
        return dataclasses.replace(sample, response=response)
