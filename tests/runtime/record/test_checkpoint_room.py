"""Whether there is room for another checkpoint, and how much the first one takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.checkpoint_size import expected_bytes
from tailrace.sizing.model_shape import ModelShape

TINY = resolve_model("tiny-arith")


def folder_on(path: Path, free: int) -> CheckpointFolder:
    return CheckpointFolder(path, keep=2, free=lambda folder: free)


def test_the_next_checkpoint_needs_the_room_of_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "step_3" / "rank").mkdir(parents=True)
    (tmp_path / "step_3" / "model.safetensors").write_bytes(bytes(700))
    (tmp_path / "step_3" / "rank" / "state").write_bytes(bytes(300))
    assert folder_on(tmp_path, free=1000).shortage(lambda: 5000) is None
    assert folder_on(tmp_path, free=999).shortage(lambda: 0) is not None


def test_the_first_checkpoint_needs_the_room_that_is_expected(tmp_path: Path) -> None:
    assert folder_on(tmp_path, free=6 * 2**20).shortage(lambda: 6 * 2**20) is None
    short = folder_on(tmp_path, free=2**20).shortage(lambda: 6 * 2**20)
    assert short == "it needs about 6.0 MiB, and the disk has 1.0 MiB free"
    short = folder_on(tmp_path, free=2**20).shortage(lambda: 6 * 2**30)
    assert short == "it needs about 6.0 GiB, and the disk has 1.0 MiB free"


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def test_weights_and_two_moments_of_every_parameter_are_expected_in_full_precision() -> None:
    count = ModelShape.read(TINY).num_parameters
    assert expected_bytes(settings(), TINY) == 12 * count
    assert expected_bytes(settings(algorithm={"advantage_estimator": "gae"}), TINY) == 2 * 12 * count


def test_with_an_adapter_only_its_parameters_are_expected() -> None:
    shape = ModelShape.read(TINY)
    expected = expected_bytes(settings(model={"lora_rank": 4}), TINY)
    assert expected == 12 * shape.lora_parameters(4)
    assert expected < 12 * shape.num_parameters / 4


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_model_of_unknown_shape_is_judged_by_its_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8}))
    (tmp_path / name).write_bytes(bytes(2000))
    assert expected_bytes(settings(), tmp_path) == 12 * 1000
    assert expected_bytes(settings(model={"lora_rank": 4}), tmp_path) == 0, "files do not tell the size of an adapter"


def test_a_model_of_known_shape_needs_no_files_of_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    assert expected_bytes(settings(), tmp_path) == expected_bytes(settings(), TINY) > 0
