"""How samples reach a training worker: by address where it sees the payload store's files, else as bytes.

A runtime may add a kind of its own (`runtime/ray/samples.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailrace.store.address import AddressReader
from tailrace.store.place import ResponseAddress
from tailrace.store.segment import Tokens
from tailrace.trainer.batch import Sample


class Batch(Protocol):
    """Samples of one message."""

    def read(self) -> tuple[Sample, ...]:
        """The samples; `OSError` or `DamagedStore` if they cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSamples:
    """Samples that are sent in the message."""

    samples: tuple[Sample, ...]

    def read(self) -> tuple[Sample, ...]:
        return self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSample:
    """One sample whose response is in the payload store."""

    response: ResponseAddress
    prompt: Tokens
    score: float
    is_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSamples:
    """Samples whose responses the worker reads from the payload store, so that they do not pass through the
    controller."""

    directory: Path
    """Directory of the payload store."""
    samples: tuple[StoredSample, ...]

    def read(self) -> tuple[Sample, ...]:
        with AddressReader(self.directory) as store:
            return tuple(
                Sample(
                    response_id=sample.response.response_id,
                    prompt=sample.prompt,
                    response=store.read(sample.response),
                    score=sample.score,
                    is_truncated=sample.is_truncated,
                )
                for sample in self.samples
            )
