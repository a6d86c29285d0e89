"""Which samples this rank computes together: its share of a batch, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from transformers import PreTrainedModel

from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.model import tree_attention, varlen
from tailrace.trainer.model.collate import MicroBatch, collate, cut, idle
from tailrace.trainer.ranks.ranks import Ranks

OVERHEAD_TOKENS = {"cpu": 128, "cuda": 16384}
"""What a micro-batch costs besides its tokens: a small model's forward and backward pass, measured, in tokens."""


class MicroBatches:
    def __init__(
        self,
        model: PreTrainedModel,
        *,
        device: torch.device,
        autocast: torch.dtype | None,
        settings: TrainerSettings,
        ranks: Ranks,
    ) -> None:
        self._device, self._ranks, self._max_tokens = device, ranks, settings.token_limit
        self._overhead_tokens = OVERHEAD_TOKENS[device.type]
        self._sees_trees = tree_attention.sees_trees(model)
        if ranks.size > 1 and not self._sees_trees:
            # Such a model is called once for each block of rows, and ranks must call it equally often.
            raise ValueError(
                f"{type(model).__name__} cannot be trained by {ranks.size} ranks, because its attention cannot be"
                " replaced; set trainer.num_ranks = 1"
            )
        self._is_packed = self._sees_trees and varlen.is_available(device, autocast, tree_attention.head_dim(model))

    def of(
        self,
        samples: Sequence[Sample],
        advantage_of: Sequence[float],
        chosen: Iterable[int],
        version: Version,
        replicas: Sequence[int] | None = None,
    ) -> Iterator[tuple[MicroBatch, list[int]]]:
        """This rank's share of the chosen samples that have tokens, and which of them each micro-batch holds. Ranks of
        a replica compute together, so each has as many micro-batches as the others; some may be idle."""
        chosen = [index for index in chosen if len(samples[index].response)]
        costs = [len(samples[index].prompt) + len(samples[index].response) for index in chosen]
        start, end = self._ranks.share(costs, range(self._ranks.num_replicas) if replicas is None else replicas)
        mine = chosen[start:end]
        pieces = self._cut([samples[index] for index in mine])
        num_idle = self._ranks.most(len(pieces)) - len(pieces)
        for places in pieces:
            members = [mine[place] for place in places]
            taken, advantages = [samples[index] for index in members], [advantage_of[index] for index in members]
            yield collate(taken, advantages, version, self._device, is_packed=self._is_packed), members
        for _ in range(num_idle):
            yield self.idle(samples[chosen[0]]), []

    def idle(self, sample: Sample) -> MicroBatch:
        return idle(sample, self._device, is_packed=self._is_packed)

    def _cut(self, samples: Sequence[Sample]) -> list[list[int]]:
        return cut(
            samples,
            sees_trees=self._sees_trees,
            max_tokens=self._max_tokens,
            overhead_tokens=self._overhead_tokens,
        )
