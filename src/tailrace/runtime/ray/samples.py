"""How samples reach a training worker that is an actor: as an object of Ray's store, by reference.

The controller puts the samples of a batch into the object store of its node. The message carries the reference, and
the worker's node fetches the object when the worker reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from tailrace.trainer.batch import Sample
from tailrace.workers.sample_transfer import Batch, SentSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferredSamples:
    reference: Any

    def read(self) -> tuple[Sample, ...]:
        try:
            samples: tuple[Sample, ...] = ray.get(self.reference)
        except ray.exceptions.RayError as error:
            raise OSError(f"a batch is not in Ray's object store any more: {error}") from error
        return samples


def put_samples(samples: SentSamples) -> Batch:
    return ReferredSamples(reference=ray.put(samples.samples))
