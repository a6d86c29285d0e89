"""Which reward functions score which prompts.

A prompt asks, in this order, for: what the settings of its source name, what its own `reward` column names, what
`reward.functions` names, what came with it, `exact_match`. Rows can only name functions that the settings name or that
are built in: data never decides which code is run.

A function's parameters are checked against the columns of the prompts it will score, and of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from tailrace.config.data_settings import DataSourceSettings
from tailrace.config.reward_settings import RewardSettings
from tailrace.config.settings import EvalSetSettings, Settings
from tailrace.data.prompts import Prompt, PromptSet
from tailrace.rewards.sandbox.code_tests import code_tests_options
from tailrace.rewards.sandbox.weak import what_weak_does_not_stop
from tailrace.rewards.score_task import RewardUse
from tailrace.rewards.scoring import labels
from tailrace.rewards.verifiers import BUILT_IN

DEFAULT_REWARD = "exact_match"
CODE_TESTS = "code_tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAssignment:
    uses: tuple[RewardUse, ...]
    """Every function that at least one prompt asks for."""
    given: tuple[str, ...]
    """`reward.functions`."""
    specs: dict[str, str] = field(repr=False)
    """From each name a row may use to the function it means."""

    @classmethod
    def make(cls, settings: Settings, sets: Sequence[PromptSet]) -> Self:
        """For the prompts of a run; `ValueError` where a row names a function that it may not."""
        weights = {entry.function: entry.weight for entry in settings.reward.functions or ()}
        sources: tuple[DataSourceSettings | EvalSetSettings, ...] = (*settings.data.sources, *settings.eval)
        of_sources = [name for source in sources for name in source.reward]
        short = labels(list(weights))
        known = list(dict.fromkeys([*weights, *(name for name in of_sources if name not in short), *BUILT_IN]))
        specs = dict(zip(labels(known), known, strict=True)) | {spec: spec for spec in known}
        plan = cls(uses=(), given=tuple(weights), specs=specs)
        columns: dict[str, dict[str, None]] = {}
        for prompts in sets:
            for prompt in prompts.prompts.values():
                for name in plan.asked(prompt, prompts.name):
                    _narrow(columns, name, prompt)
        uses = tuple(
            reward_use(settings.reward, spec, tuple(columns[spec]), weights.get(spec, 1.0))
            for spec in known
            if spec in columns
        )
        return cls(uses=uses, given=plan.given, specs=specs)

    def asked(self, prompt: Prompt, set_name: str = "") -> tuple[str, ...]:
        """The functions that score responses to this prompt."""
        if not prompt.rewards:
            return self.given or (prompt.scorer or DEFAULT_REWARD,)
        for name in prompt.rewards:
            if name not in self.specs:
                raise ValueError(
                    f"a row of {prompt.source or set_name} names the reward {name!r}, which the settings do not; "
                    f"add it to reward.functions (known: {', '.join(self.specs)})"
                )
        return tuple(self.specs[name] for name in prompt.rewards)

    @property
    def note(self) -> str:
        shown = [use.function if use.weight == 1 else f"{use.weight:g} x {use.function}" for use in self.uses]
        is_weak = any(use.options.get("mode") == "weak" for use in self.uses)
        return f"rewards: {', '.join(shown)}" + (f"; {what_weak_does_not_stop()}" if is_weak else "")


def reward_use(settings: RewardSettings, function: str, columns: tuple[str, ...], weight: float = 1.0) -> RewardUse:
    """A function with the options that the settings give it."""
    options = code_tests_options(settings.code_tests, settings.timeout_s) if function == CODE_TESTS else {}
    return RewardUse(function=function, weight=weight, columns=columns, options=options)


def _narrow(columns: dict[str, dict[str, None]], spec: str, prompt: Prompt) -> None:
    """Keep, for this function, the columns that this prompt has as well."""
    if spec not in columns:
        columns[spec] = dict.fromkeys(prompt.row)
    else:
        for missing in [name for name in columns[spec] if name not in prompt.row]:
            del columns[spec][missing]
