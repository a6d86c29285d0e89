"""Which reward functions score which prompts, and which part of the score each of them makes.

A prompt asks, in this order, for: what the settings of its source name, what its own `reward` column names, what
`reward.functions` names, what came with it, `exact_match`. Rows can only name functions that the settings name or that
are built in: data never decides which code is run.

A function's parameters are checked against the columns of the prompts it will score, and of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tailrace.config import judge_use
from tailrace.config.data_settings import DataSourceSettings
from tailrace.config.reward_settings import RewardFunctionSettings, RewardSettings
from tailrace.config.settings import EvalSetSettings, Settings
from tailrace.core.outcomes import Part
from tailrace.data.prompts import Prompt, PromptSet
from tailrace.rewards.sandbox.code_tests import code_tests_options
from tailrace.rewards.sandbox.weak import what_weak_does_not_stop
from tailrace.rewards.score_task import RewardUse
from tailrace.rewards.scoring import labels
from tailrace.rewards.verifiers import BUILT_IN

DEFAULT_REWARD = "exact_match"
CODE_TESTS = "code_tests"
JUDGE = judge_use.JUDGE
"""The reward of which a model makes the score. No reward process loads it."""
_PARTS = {CODE_TESTS: Part.TESTS, JUDGE: Part.JUDGE}


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
        given = {entry.function: entry for entry in settings.reward.functions or ()}
        sources: tuple[DataSourceSettings | EvalSetSettings, ...] = (*settings.data.sources, *settings.eval)
        of_sources = [name for source in sources for name in source.reward]
        short = labels(list(given))
        built_in = (*BUILT_IN, JUDGE)
        known = list(dict.fromkeys([*given, *(name for name in of_sources if name not in short), *built_in]))
        specs = dict(zip(labels(known), known, strict=True)) | {spec: spec for spec in known}
        plan = cls(uses=(), given=tuple(given), specs=specs)
        columns: dict[str, dict[str, None]] = {}
        for prompts in sets:
            for prompt in prompts.prompts.values():
                for name in plan.asked(prompt, prompts.name):
                    _narrow(columns, name, prompt)
        uses = [
            reward_use(settings.reward, given.get(spec, RewardFunctionSettings(function=spec)), tuple(columns[spec]))
            for spec in known
            if spec in columns
        ]
        return cls(uses=_with_labels(uses), given=plan.given, specs=specs)

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
    def parts(self) -> tuple[Part, ...]:
        """Parts that the scores of the run have."""
        return tuple(part for part in Part if self.uses_of(part)) or (Part.FUNCTION,)

    def uses_of(self, part: Part) -> tuple[RewardUse, ...]:
        return tuple(use for use in self.uses if part_of(use.function) is part)

    def has_part(self, prompt: Prompt, part: Part) -> bool:
        """Whether the score of a response to this prompt has this part."""
        return any(part_of(function) is part for function in self.asked(prompt))

    @property
    def note(self) -> str:
        shown = [use.function if use.weight == 1 else f"{use.weight:g} x {use.function}" for use in self.uses]
        is_weak = any(use.options.get("mode") == "weak" for use in self.uses)
        return f"rewards: {', '.join(shown)}" + (f"; {what_weak_does_not_stop()}" if is_weak else "")


def expected_parts(settings: Settings) -> tuple[Part, ...]:
    """Parts that scores have as far as the settings tell. A row of the data may name a built-in reward of another."""
    sources: tuple[DataSourceSettings | EvalSetSettings, ...] = (*settings.data.sources, *settings.eval)
    names = list(judge_use.named_rewards(settings))
    has_default = not settings.data.sources or not all(source.reward for source in sources)
    if has_default and settings.reward.functions is None:
        names.append(DEFAULT_REWARD)
    found = {part_of(name) for name in names} | ({Part.JUDGE} if judge_use.may_use_judge(settings) else set())
    return tuple(part for part in Part if part in found)


def part_of(function: str) -> Part:
    """The part of the score that this function makes."""
    return _PARTS.get(function, Part.FUNCTION)


def reward_use(settings: RewardSettings, function: RewardFunctionSettings, columns: tuple[str, ...]) -> RewardUse:
    """A function with the options that the settings give it."""
    name = function.function
    return RewardUse(
        function=name,
        weight=function.weight,
        timeout_s=settings.timeout_s if function.timeout_s is None else function.timeout_s,
        columns=columns,
        options=code_tests_options(settings.code_tests) if name == CODE_TESTS else {},
    )


def default_uses(settings: RewardSettings, columns: tuple[str, ...]) -> tuple[RewardUse, ...]:
    """The functions that the settings name, for prompts that all have these columns."""
    given = settings.functions or (RewardFunctionSettings(function=DEFAULT_REWARD),)
    return _with_labels([reward_use(settings, function, columns) for function in given])


def _with_labels(uses: Sequence[RewardUse]) -> tuple[RewardUse, ...]:
    if len(uses) < 2:
        return tuple(uses)
    short = labels([use.function for use in uses])
    return tuple(replace(use, label=label) for use, label in zip(uses, short, strict=True))


def _narrow(columns: dict[str, dict[str, None]], spec: str, prompt: Prompt) -> None:
    """Keep, for this function, the columns that this prompt has as well."""
    if spec not in columns:
        columns[spec] = dict.fromkeys(prompt.row)
    else:
        for missing in [name for name in columns[spec] if name not in prompt.row]:
            del columns[spec][missing]
