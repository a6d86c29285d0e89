"""What the settings alone tell about the rewards of a run: which they name, and whether a judge may be among them.

A row of the data can name a built-in reward that the settings do not name. So a run whose settings describe a judge
counts as one that uses it: its devices and its memory are planned before the data is read.
"""

from __future__ import annotations

from tailrace.config.data_settings import DataSourceSettings
from tailrace.config.settings import EvalSetSettings, Settings

JUDGE = "judge"
"""The reward of which a model makes the score."""


def named_rewards(settings: Settings) -> tuple[str, ...]:
    """Every reward that the settings name, once."""
    sources: tuple[DataSourceSettings | EvalSetSettings, ...] = (*settings.data.sources, *settings.eval)
    given = [entry.function for entry in settings.reward.functions or ()]
    return tuple(dict.fromkeys([*given, *(name for source in sources for name in source.reward)]))


def may_use_judge(settings: Settings) -> bool:
    """Whether the run may ask a judge, wherever it computes."""
    judge = settings.reward.judge
    return judge.model is not None or judge.url is not None or JUDGE in named_rewards(settings)


def num_judge_models(settings: Settings) -> int:
    """Workers of the run that hold a judge's model; 0: there is no judge, or it is behind an address."""
    judge = settings.reward.judge
    return judge.workers if judge.url is None and may_use_judge(settings) else 0
