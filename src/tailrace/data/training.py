"""The training prompts of a run: one source, or a weighted mixture of several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tailrace.config.data_settings import DataSettings
from tailrace.data.mixture import MixedOrder, Share
from tailrace.data.order import PromptOrder, SourceOrder
from tailrace.data.prompts import PromptSet, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrompts:
    prompts: PromptSet
    order: PromptOrder

    @classmethod
    def load(cls, name: str, settings: DataSettings, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Read `data.sources`, or `data.train` if there are none. `name`: name of the set in the run."""
        if not settings.sources:
            prompts = PromptSet.load(name, settings.train, tokenizer, settings)
            plain_order = SourceOrder(prompts.indices, source=name, seed=seed, shuffle=settings.shuffle)
            return cls(prompts=prompts, order=plain_order)
        parts = [
            PromptSet.load(
                source.name,
                source.path,
                tokenizer,
                settings,
                prompt_column=source.prompt_column,
                answer_column=source.answer_column,
                rewards=source.reward,
            )
            for source in settings.sources
        ]
        joined = PromptSet.join(name, parts)
        shares = {
            source.name: Share(
                indices=tuple(index for index in joined.indices if joined[index].source == source.name),
                weight=source.weight,
            )
            for source in settings.sources
        }
        order = MixedOrder(shares, seed=seed, shuffle=settings.shuffle)
        lines = [f"{part.name}: {len(part)} prompts from {part.path}, {order.shares[part.name]:.1%}" for part in parts]
        return cls(prompts=replace(joined, notes=(*lines, *joined.notes)), order=order)
