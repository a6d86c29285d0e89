"""Whether there is room for another checkpoint."""

from __future__ import annotations

from pathlib import Path

from tailrace.runtime.record.checkpoint_folder import CheckpointFolder


def folder_on(path: Path, free: int) -> CheckpointFolder:
    return CheckpointFolder(path, keep=2, free=lambda folder: free)


def test_the_next_checkpoint_needs_the_room_of_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "step_3" / "rank").mkdir(parents=True)
    (tmp_path / "step_3" / "model.safetensors").write_bytes(bytes(700))
    (tmp_path / "step_3" / "rank" / "state").write_bytes(bytes(300))
    assert folder_on(tmp_path, free=1000).shortage(tmp_path / "model") is None
    assert folder_on(tmp_path, free=999).shortage(tmp_path / "model") is not None


def test_the_first_checkpoint_needs_weights_and_optimizer_of_the_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(2**20))
    assert folder_on(tmp_path, free=8 * 2**20).shortage(model) is None
    short = folder_on(tmp_path, free=2**20).shortage(model)
    assert short == "it needs about 0.01 GiB, and the disk has 0.00 GiB free"
