"""Which tokens of an earlier version train.

A response that was interrupted and resumed has tokens of several versions. ``mask-prefix``: the loss sees only what
was generated since the last resumption of its group, so a member that had ended before keeps its score for the
baseline and has no loss. ``mask-old``: the loss sees tokens up to a given age. Masked tokens leave the denominators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample


def mask_stale(groups: Sequence[Sequence[Sample]], version: Version, settings: AlgorithmSettings) -> list[list[Sample]]:
    """``version``: the weights about to be updated."""
    match settings.stale_tokens:
        case "mask-prefix":
            return [[_keep_from(sample, _newest(group)) for sample in group] for group in groups]
        case "mask-old":
            oldest = version - settings.max_token_age
            return [[_keep_from(sample, oldest) for sample in group] for group in groups]
        case _:
            return [list(group) for group in groups]


def _newest(group: Sequence[Sample]) -> int:
    versions = [version for sample in group for version, _ in sample.response.versions if version is not None]
    return max(versions, default=0)


def _keep_from(sample: Sample, oldest: int) -> Sample:
    """Tokens that were not generated are masked already, whatever their age."""
    fresh = np.repeat(
        np.array([version is not None and version >= oldest for version, _ in sample.response.versions], np.bool_),
        [count for _, count in sample.response.versions],
    )
    if fresh.all():
        return sample
    mask: NDArray[np.uint8] = np.where(fresh, sample.response.mask, 0).astype(np.uint8)
    return replace(sample, response=replace(sample.response, mask=mask))
