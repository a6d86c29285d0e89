"""Who may use a run directory, and when a checkpoint counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.runtime.run_directory import Checkpoints, RunDirectory


def test_the_same_settings_may_come_again(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path / "run")
    RunDirectory.open(settings).close()
    RunDirectory.open(settings).close()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["path"] == "tiny-arith"


def begin(settings: Settings) -> None:
    """Leave a run behind that has decided something."""
    directory = RunDirectory.open(settings)
    directory.journal.write_text("{}\n")
    directory.close()


def test_settings_that_never_got_to_a_run_bind_nobody(tmp_path: Path) -> None:
    RunDirectory.open(Settings(output_dir=tmp_path)).close()
    RunDirectory.open(Settings(output_dir=tmp_path, seed=1)).close()
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 1


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path))
    with pytest.raises(SettingsError, match=r"other settings \(rollout.temperature, seed\)"):
        RunDirectory.open(Settings.model_validate({"output_dir": tmp_path, "seed": 1, "rollout": {"temperature": 0.5}}))


def test_a_used_directory_is_refused_when_resume_is_never(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path, resume="never"))
    with pytest.raises(SettingsError, match="already holds a run"):
        RunDirectory.open(Settings(output_dir=tmp_path, resume="never"))


def test_a_run_is_not_continued_with_other_prompts(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path))
    directory = RunDirectory.open(Settings(output_dir=tmp_path))
    directory.claim_sources({"model": "a", "prompts of 'train'": "b"})
    directory.claim_sources({"model": "a", "prompts of 'train'": "b"})
    with pytest.raises(SettingsError, match="the prompts of 'train' changed since the run"):
        directory.claim_sources({"model": "a", "prompts of 'train'": "c"})
    directory.close()


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    first = RunDirectory.open(Settings(output_dir=tmp_path))
    with pytest.raises(SettingsError, match="another process is running"):
        RunDirectory.open(Settings(output_dir=tmp_path))
    first.close()
    RunDirectory.open(Settings(output_dir=tmp_path)).close()


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"cannot use output_dir .*file/run: Not a directory"):
        RunDirectory.open(Settings(output_dir=tmp_path / "file" / "run"))


def test_a_checkpoint_counts_only_when_it_is_complete(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for version in (1, 2):
        checkpoints.begin(version)
        checkpoints.complete(version, {"version": version})
    checkpoints.begin(3)
    assert checkpoints.latest() == tmp_path / "step_2"
    assert (tmp_path / "latest").resolve() == tmp_path / "step_2"
    checkpoints.begin(10)
    assert not (tmp_path / "step_3.partial").exists(), "an abandoned draft stays behind"
    checkpoints.complete(10, {})
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_10", "step_2"]
    assert checkpoints.latest() == tmp_path / "step_10"
