"""Which settings may change when a run is continued. The run directory and the trainer's checkpoints both ask here.

Some settings may always differ: they leave what is computed as it is, prompts, tokens, rewards and gradients. Other
ranks or devices add numbers up in another order, so results differ by rounding. Others change the rest of the run and
leave its past alone: they may differ if `resume = "with-changes"` asks for it, and hold from the next step on. The core
repeats its decisions from the journal with the schedule they were made with, and gets the new one with the event that
continues the run.

A setting that an older run does not name had the value that older releases used. A setting that is gone since then is
ignored if it had its default, and may not have had another value (``gone.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tailrace.config.aliases import put
from tailrace.config.gone import GONE, without_gone
from tailrace.config.settings import Settings

HOW_COMPUTED = (
    "model.device",
    "rollout.tensor_parallel_size",
    "rollout.threads",
    "rollout.park",
    "reward.workers",
    "reward.judge.workers",
    "reward.judge.placement",
    "reward.judge.memory_gb",
    "reward.judge.profile",
    "reward.judge.max_pass_tokens",
    "reward.judge.deterministic",
    "reward.judge.max_requests",
    "reward.judge.threads",
    "reward.judge.api_key_variable",
    "reward.code_tests.workers",
    "trainer.num_ranks",
    "trainer.num_replicas",
    "trainer.tensor_parallel_size",
    "trainer.reduce_gradients",
    "trainer.optimizer_device",
    "trainer.gradients_device",
    "trainer.reference_device",
    "trainer.max_tokens_per_gpu",
    "trainer.gradient_checkpointing",
    "trainer.torch_compile",
    "trainer.weight_channel",
    "trainer.threads",
)
"""Settings that say where the run computes and in which pieces."""

_INITIAL_SIZE = "rollout.tensor_parallel_size"
_AROUND = (
    "output_dir", "resume", "limits", "keep_checkpoints", "keep_rollouts", "logger", "report", "project_name",
    "experiment_name", "schedule.mps", "runtime", "ray",
)  # fmt: skip
"""Settings and sections that say what is kept, shown and waited for, and what kind of workers a run has."""

ON_REQUEST = (
    "schedule.max_steps",
    "schedule.num_epochs",
    "trainer.learning_rate",
    "trainer.lr_schedule",
    "algorithm.critic_learning_rate",
    "save_interval",
    "eval_interval",
    "eval",
    "reward.timeout_s",
    "reward.judge.timeout_s",
    "reward.judge.url",
    "reward.code_tests.case_timeout_s",
    "reward.code_tests.min_case_timeout_s",
    "reward.code_tests.timeout_s",
    "reward.code_tests.timeout_factor",
    "reward.code_tests.timeout_probe_share",
)
"""Settings that change the rest of the run and leave its past alone."""

_FUNCTION_FILE = re.compile(r"^pickle:.*/reward-(.*)-[0-9a-f]+\.pickle$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting that is not as the run has had it."""

    name: str
    value: Any
    before: Any

    def __str__(self) -> str:
        if self.name in GONE:
            return f"{self.name} was {json.dumps(self.before)}, and there is no such setting any more"
        if not isinstance(self.value, dict) and not isinstance(self.before, dict):
            return f"{self.name} is {json.dumps(self.value)}, before {json.dumps(self.before)}"
        name = f"evaluation set '{self.name.removeprefix('eval:')}'"  # no other setting is a table
        if self.before is None or self.value is None:
            return f"{name} is new" if self.before is None else f"{name} is gone"
        keys = [key for key in self.value if self.value[key] != self.before.get(key)]
        parts = [Difference(name=f"{k} of {name}", value=self.value[k], before=self.before.get(k)) for k in keys]
        return "; ".join(map(str, parts))

    @property
    def label(self) -> str:
        """How a refusal names it: a setting that is gone with the value that it had."""
        return str(self) if self.name in GONE else self.name

    @property
    def is_told(self) -> bool:
        """Whether the user should read of it: settings of what is kept and shown go without saying."""
        return self.name in HOW_COMPUTED or not may_change(self.name)

    @property
    def is_on_request(self) -> bool:
        """Whether it may be changed if that is asked for."""
        is_edited = self.name == "reward.functions" and _bare(self.value) == _bare(self.before)
        return self.name.partition(":")[0] in ON_REQUEST or is_edited


def may_change(name: str) -> bool:
    """Whether a setting, such as ``trainer.num_ranks``, may differ when a run is continued, without being asked for."""
    return name not in GONE and any(name == free or name.startswith(f"{free}.") for free in (*HOW_COMPUTED, *_AROUND))


def fixed(settings: Settings, found: Sequence[Difference]) -> list[Difference]:
    """Return those of these differences that the run may not have without being asked for.

    With several parallel sizes, the one with which it starts says which instance has which number."""
    has_sizes = bool(settings.rollout.parallel_sizes)
    return [each for each in found if not may_change(each.name) or (has_sizes and each.name == _INITIAL_SIZE)]


def differences(settings: Settings, stored: Mapping[str, Any]) -> list[Difference]:
    """Return the settings that differ from those that are stored with a run, by name."""
    mine, theirs = dict(_flat(as_json(with_kept(settings, stored)))), dict(_flat(with_old_values(stored)))
    return [
        Difference(name=name, value=mine.get(name), before=theirs.get(name))
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name) or name in GONE
    ]


def changed_evaluation(settings: Settings, found: Sequence[Difference]) -> set[str]:
    """Return the names of evaluation sets that are new or changed; all of them if evaluation was switched on or off.

    ``found``: the settings that differ.
    """
    if any(each.name == "eval_interval" and None in (each.value, each.before) for each in found):
        return {each.name for each in settings.eval}
    names = {each.name.removeprefix("eval:") for each in found if each.name.startswith("eval:")}
    return names & {each.name for each in settings.eval}


def with_kept(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """Return settings in which a default that older releases had otherwise is as the run has had it."""
    if "save_interval" in settings.model_fields_set or stored.get("save_interval", "") is not None:
        return settings
    return settings.model_copy(update={"save_interval": None})


def as_json(settings: Settings) -> dict[str, Any]:
    return dict(json.loads(settings.model_dump_json()))


def with_old_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings with those that they do not name, at the values that older releases used."""
    data, gone = without_gone(json.loads(json.dumps(stored)), GONE)
    with suppress(ValidationError):  # it has a value that is not possible any more: the comparison shows which
        data = as_json(Settings.model_validate(data))  # today's defaults are what older releases did
    for name, value in gone.items():
        put(data, name, value)
    return data


def value_in(stored: Mapping[str, Any], name: str) -> Any:
    """Return a setting that a checkpoint may name; what it does not name has the value that older releases used."""
    section, _, key = name.partition(".")
    if not key:
        return stored.get(name)
    named = {key: stored[name]} if name in stored else {}
    return with_old_values({section: named})[section].get(key)


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return settings of all sections by their whole names, such as ``trainer.num_ranks``, and evaluation sets by
    theirs, such as ``eval:heldout``."""
    for key, value in section.items():
        if key == "eval" and not prefix:
            yield from ((f"eval:{eval_set['name']}", eval_set) for eval_set in value)
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _bare(functions: Any) -> list[Any]:
    """Return reward functions without their time limits, and without the mark of their code in the names of files that
    Python wrote."""
    return [
        entry | {"function": _FUNCTION_FILE.sub(r"\1", entry["function"]), "timeout_s": None}
        for entry in functions or ()
    ]
