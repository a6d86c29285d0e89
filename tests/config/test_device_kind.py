"""On what a run computed, whatever machine reads its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.config import device_kind
from tailrace.config.device_kind import recorded_device
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.other_presets import read_settings

JOURNALS = Path(__file__).parents[2] / "benchmarks" / "results" / "journals"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((JOURNALS / f"{name}.config.json").read_text())
    return found


@pytest.mark.parametrize("has_driver", [True, False])
@pytest.mark.parametrize(
    ("name", "kind"), [("gpu_schedules_h200_1_5b/sync", "cuda"), ("advice_cpu/sync", "cpu")], ids=["gpu", "cpu"]
)
def test_a_run_with_auto_is_read_as_one_that_names_its_device(
    name: str, kind: str, has_driver: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_kind, "DRIVER", tmp_path if has_driver else tmp_path / "none")
    named = recorded(name)
    assert named["model"]["device"] == kind
    auto = {**named, "model": {**named["model"], "device": "auto"}}
    assert recorded_device(auto) == recorded_device(named) == kind
    assert MachineFacts.of(auto, num_prompts=100) == MachineFacts.of(named, num_prompts=100)
    settings = read_settings({"model": auto["model"], "rollout": auto["rollout"]})
    assert settings is not None
    assert settings.model.device == kind
