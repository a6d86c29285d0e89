"""Settings that may change when a run is continued: they exist, and the core knows none of them."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config.continuation import HOW_COMPUTED, as_json, differences, may_change, with_kept
from tailrace.config.schedule_builder import schedule
from tailrace.config.settings import Settings

OTHER: dict[str, Any] = {
    "model.device": "cuda:1",
    "rollout.park": "never",
    "reward.judge.placement": "own",
    "reward.judge.deterministic": True,
    "reward.judge.profile": "judge.json",
    "reward.judge.api_key_variable": "KEY",
    "trainer.optimizer_device": "cpu",
    "trainer.gradients_device": "cpu",
    "trainer.reference_device": "cpu",
    "trainer.reduce_gradients": "last",
    "trainer.gradient_checkpointing": True,
    "trainer.torch_compile": True,
    "trainer.weight_channel": "collective",
}
"""A value that is not the default. Settings that are not here are numbers."""


def with_setting(name: str, value: object) -> Settings:
    for key in reversed(name.split(".")):
        value = {key: value}
    return Settings.model_validate(value)


def schedule_of(settings: Settings) -> object:
    return schedule(settings, {"train": 500}, prompt_length=8)


@pytest.mark.parametrize("name", HOW_COMPUTED)
def test_the_core_does_not_know_a_setting_that_may_change(name: str) -> None:
    changed = with_setting(name, OTHER.get(name, 3))
    assert changed != Settings()
    assert schedule_of(changed) == schedule_of(Settings())


@pytest.mark.parametrize(
    "name", ["rollout.num_instances", "rollout.max_running", "rollout.kv_tokens", "save_interval", "schedule.max_steps"]
)
def test_what_the_core_decides_by_may_not_change(name: str) -> None:
    section, _, key = name.rpartition(".")
    changed = Settings.model_validate({section: {key: 3000}} if section else {key: 3000})
    assert schedule_of(changed) != schedule_of(Settings())
    assert not may_change(name)


def test_a_section_that_may_change_does_so_with_all_of_its_settings() -> None:
    assert may_change("limits.train_s")
    assert may_change("ray.training.cpus")
    assert not may_change("limitsome")
    assert not may_change("trainer.learning_rate")
    assert not may_change("reward.timeout_s")


def test_a_run_of_the_release_before_keeps_that_it_saves_at_the_end() -> None:
    """`save_interval` was null by default, and `config.json` names every setting."""
    stored = as_json(Settings()) | {"save_interval": None}
    assert differences(Settings(), stored) == []
    assert with_kept(Settings(), stored).save_interval is None
    [asked] = differences(Settings(save_interval="auto"), stored)
    assert (asked.name, asked.is_on_request) == ("save_interval", True)
    assert with_kept(Settings(), as_json(Settings())).save_interval == "auto"
