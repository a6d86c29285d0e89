"""Settings of the training prompts."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from tailrace.config.section import Common, Names, Section

DEFAULT_TRAIN = "builtin:arith-train"


class DataSourceSettings(Section):
    """One source of training prompts."""

    name: Common[str] = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the source in metrics: `reward/source/<name>/mean`."""
    path: Common[str]
    """Where to read the prompts; the same forms as in `data.train`."""
    weight: Common[PositiveFloat | None] = None
    """Share of this source in a batch, relative to the weights of the other sources; default: its number of prompts.
    Give every source a weight, or none."""
    reward: Common[Names] = ()
    """Reward functions for prompts of this source; default: `reward.functions`."""
    prompt_column: str | None = None
    """Column that holds the prompt; default: `data.prompt_column`."""
    answer_column: str | None = None
    """Column that holds the answer; default: `data.answer_column`."""


class DataSettings(Section):
    """The training prompts."""

    train: Common[str] = DEFAULT_TRAIN
    """Training prompts: a jsonl or parquet file, a directory saved by Hugging Face datasets, `hf:owner/name[:split]`,
    `reasoning-gym:TASK[?size=500&seed=0]`, or `builtin:NAME`."""
    sources: Common[tuple[DataSourceSettings, ...]] = ()
    """Several sources, instead of `train`. Each has a name and a path, and may have a weight and a reward."""
    prompt_column: Common[str | None] = None
    """Column that holds the prompt; `a.b` is column `b` inside column `a`. Default: found by its usual names."""
    answer_column: Common[str | None] = None
    """Column that holds the answer; `a.b` is column `b` inside column `a`. Default: found by its usual names."""
    max_prompt_length: Common[PositiveInt] = 256
    """Prompts with more tokens than this are dropped. The number of dropped prompts is printed."""
    apply_chat_template: Common[bool | None] = None
    """Render prompts with the tokenizer's chat template; default: only prompts that are lists of messages."""
    shuffle: Common[bool] = True
    """Shuffle the prompts in each epoch; the order follows from `seed`."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        names = [source.name for source in self.sources]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources are called '{doubled[0]}'; give each a name of its own")
        if names and self.train != DEFAULT_TRAIN:
            raise ValueError(f"give either train ('{self.train}') or sources ({', '.join(names)}), not both")
        if len({source.weight is None for source in self.sources}) > 1:
            lacking = [source.name for source in self.sources if source.weight is None]
            raise ValueError(f"give every source a weight, or none: {', '.join(lacking)} has none")
        return self
