"""Who may use a run directory, and when a checkpoint counts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tailrace.config.load import SettingsError
from tailrace.config.settings import EvalSetSettings, Settings
from tailrace.core.journal import FORMAT
from tailrace.observe.journal.run_files import RunFiles
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.runtime.record.stop_note import StopNote

SOURCES = {"model": "a", "prompts of 'train'": "b"}


def begin(settings: Settings) -> None:
    """Leave a run behind that has decided something."""
    directory = RunDirectory.open(settings)
    directory.begin(settings, SOURCES)
    directory.journal.write_text(f'{{"format":{FORMAT}}}\n')
    directory.close()


def test_the_same_settings_may_come_again(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path / "run")
    begin(settings)
    begin(settings)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["path"] == "tiny-arith"


def test_a_command_that_never_got_to_a_run_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path / "a" / "b" / "run")
    directory = RunDirectory.open(settings)
    assert not (tmp_path / "a").exists(), "looking made something"
    directory.add_inputs({directory.path / "inputs" / "prompts.jsonl": b"{}"})
    directory.begin(settings, SOURCES)
    assert (directory.path / "inputs" / "prompts.jsonl").exists()
    directory.close()
    assert not (tmp_path / "a").exists()


def test_what_others_put_into_the_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "inputs").mkdir()
    settings = Settings(output_dir=tmp_path)
    directory = RunDirectory.open(settings)
    directory.add_inputs({tmp_path / "inputs" / "prompts.jsonl": b"{}"})
    directory.begin(settings, SOURCES)
    (tmp_path / "logs" / "reward-0.log").write_text("")
    directory.close()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inputs", "notes.txt"]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path))
    with pytest.raises(SettingsError, match=r"other settings \(rollout.temperature, seed\)"):
        RunDirectory.open(Settings.model_validate({"output_dir": tmp_path, "seed": 1, "rollout": {"temperature": 0.5}}))


def test_a_run_may_be_continued_with_another_way_to_share_the_gpu(tmp_path: Path) -> None:
    for mps in ("auto", "never"):
        begin(Settings.model_validate({"output_dir": tmp_path, "schedule": {"mps": mps}}))
    with pytest.raises(SettingsError, match=r"other settings \(schedule\.placement\)"):
        begin(Settings.model_validate({"output_dir": tmp_path, "schedule": {"placement": "colocated"}}))


def test_a_run_may_be_continued_with_other_ranks_and_its_config_then_says_so(tmp_path: Path) -> None:
    two, one = (
        Settings.model_validate({"output_dir": tmp_path, "trainer": {"num_ranks": ranks}, "model": {"device": device}})
        for ranks, device in ((2, "cpu"), (1, "auto"))
    )
    begin(two)
    directory = RunDirectory.open(one)
    assert directory.changes(one) == ['model.device is "auto", before "cpu"', "trainer.num_ranks is 1, before 2"]
    directory.begin(one, SOURCES)
    assert RunFiles(path=tmp_path).config()["trainer"]["num_ranks"] == 2, "no event of this command has come yet"
    directory.keep_settings(one, SOURCES, next_step=1)
    assert RunFiles(path=tmp_path).config()["trainer"]["num_ranks"] == 1
    assert directory.changes(one) == []
    directory.close()


@pytest.mark.parametrize(("line", "which"), [("{}", "no format number"), ('{"format":1}', "format 1")])
def test_a_run_whose_journal_has_another_format_is_not_continued(tmp_path: Path, line: str, which: str) -> None:
    begin(Settings(output_dir=tmp_path))
    (tmp_path / "journal.jsonl").write_text(line + "\n")
    with pytest.raises(SettingsError, match=f"journal.jsonl: the journal has {which}, and this version"):
        RunDirectory.open(Settings(output_dir=tmp_path))


def changed(path: Path, resume: str, **values: object) -> Settings:
    settings = Settings(output_dir=path)
    return settings.model_copy(
        update={"resume": resume, **values, "schedule": settings.schedule.model_copy(update={"max_steps": 20})}
    )


def test_what_leaves_the_past_alone_may_change_if_that_is_asked_for(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path))
    with pytest.raises(SettingsError, match=r"\(schedule.max_steps\); to continue .* add --resume with-changes"):
        RunDirectory.open(changed(tmp_path, "auto"))
    directory = RunDirectory.open(settings := changed(tmp_path, "with-changes"))
    assert directory.changes(settings) == ["schedule.max_steps is 20, before null"]
    directory.begin(settings, SOURCES)
    directory.keep_settings(settings, SOURCES, next_step=7)
    directory.close()
    told = RunFiles(path=tmp_path).changes()
    change = {"setting": "schedule.max_steps", "value": 20, "before": None}
    assert told == [{"from_step": 7, "changed": [change]}]
    begin(changed(tmp_path, "auto"))


def test_what_would_change_the_past_may_not_change_even_if_asked_for(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path))
    with pytest.raises(SettingsError, match=r"other settings \(seed\); choose another output_dir, or remove"):
        RunDirectory.open(changed(tmp_path, "with-changes", seed=3))


def test_a_finished_run_goes_on_only_if_something_changed(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path))
    (tmp_path / "result.json").write_text('{"reason": "done"}')
    same = Settings(output_dir=tmp_path, resume="with-changes")
    directory = RunDirectory.open(same)
    assert directory.finished(same) == {"reason": "done"}
    directory.close()
    directory = RunDirectory.open(settings := changed(tmp_path, "with-changes"))
    assert directory.finished(settings) is None
    directory.begin(settings, SOURCES)
    assert (tmp_path / "result.json").exists(), "no event of this command has come yet"
    directory.keep_settings(settings, SOURCES, next_step=1)
    assert not (tmp_path / "result.json").exists()
    directory.close()


def test_a_setting_that_an_older_run_does_not_name_is_no_other_setting(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"output_dir": tmp_path, "eval_interval": 2, "eval": [{"name": "heldout", "path": "builtin:arith-heldout"}]}
    )
    begin(settings)
    stored = json.loads((tmp_path / "config.json").read_text())
    for section, name in (("trainer", "max_grad_norm"), ("data", "shuffle"), ("rollout", "costs")):
        del stored[section][name]
    del stored["eval"][0]["top_p"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    directory = RunDirectory.open(settings)
    assert directory.changes(settings) == []
    directory.close()
    with pytest.raises(SettingsError, match=r"other settings \(trainer.max_grad_norm\)"):
        RunDirectory.open(
            settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"max_grad_norm": 2.0})})
        )


REWARD = "file of reward function 'r.py:f'"


def test_an_edited_reward_function_is_refused_unless_that_is_asked_for(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path)
    begin(settings)
    directory = RunDirectory.open(settings)
    directory.begin(settings, SOURCES | {REWARD: "1"})  # an older run does not name it
    directory.keep_settings(settings, SOURCES | {REWARD: "1"}, next_step=1)
    with pytest.raises(
        SettingsError, match=r"'r.py:f' changed since .*; to continue with the edited file, .* --resume with-changes"
    ):
        directory.begin(settings, SOURCES | {REWARD: "2"})
    asked = Settings(output_dir=tmp_path, resume="with-changes")
    directory.begin(asked, SOURCES | {REWARD: "2"})
    directory.keep_settings(asked, SOURCES | {REWARD: "2"}, next_step=5)
    directory.close()
    told = RunFiles(path=tmp_path).changes()
    assert told == [{"from_step": 5, "changed": [{"source": REWARD}]}]


def test_a_function_edited_in_python_is_refused_unless_that_is_asked_for(tmp_path: Path) -> None:
    def given(mark: str, resume: str, name: str = "f") -> Settings:
        function = f"pickle:{tmp_path}/inputs/reward-{name}-{mark}.pickle"
        return Settings.model_validate({"output_dir": tmp_path, "resume": resume, "reward": {"functions": [function]}})

    begin(given("0a", "auto"))
    with pytest.raises(SettingsError, match=r"\(reward.functions\); to continue .* with-changes"):
        RunDirectory.open(given("0b", "auto"))
    with pytest.raises(SettingsError, match=r"\(reward.functions\); choose another output_dir"):
        RunDirectory.open(given("0b", "with-changes", name="g"))
    RunDirectory.open(given("0b", "with-changes")).close()


def test_an_evaluation_set_may_be_new_but_an_old_name_means_the_same_prompts(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path, resume="with-changes")
    begin(settings)
    more = SOURCES | {"prompts of 'hard'": "h"}
    directory = RunDirectory.open(settings)
    directory.begin(settings, more)
    directory.keep_settings(settings, more, next_step=3)
    directory.keep_settings(settings, SOURCES, next_step=5)  # the set is gone again
    hard = EvalSetSettings(name="hard", path="builtin:arith-heldout")
    with pytest.raises(
        SettingsError, match=r"the prompts of 'hard' changed since the run .* with other prompts another"
    ):
        directory.begin(settings.model_copy(update={"eval": (hard,)}), SOURCES | {"prompts of 'hard'": "i"})
    directory.close()


def test_a_used_directory_is_refused_when_resume_is_never(tmp_path: Path) -> None:
    begin(Settings(output_dir=tmp_path, resume="never"))
    with pytest.raises(SettingsError, match="already holds a run"):
        RunDirectory.open(Settings(output_dir=tmp_path, resume="never"))


def test_a_run_is_not_continued_with_other_prompts(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path)
    begin(settings)
    directory = RunDirectory.open(settings)
    with pytest.raises(SettingsError, match="the prompts of 'train' changed since the run"):
        directory.begin(settings, SOURCES | {"prompts of 'train'": "c"})
    directory.close()


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    settings = Settings(output_dir=tmp_path)
    first, second = RunDirectory.open(settings), RunDirectory.open(settings)
    first.begin(settings, SOURCES)
    with pytest.raises(SettingsError, match="another process is running"):
        RunDirectory.open(settings)
    with pytest.raises(SettingsError, match="another process is running"):
        second.begin(settings, SOURCES)
    second.close()
    assert (tmp_path / "config.json").exists(), "the second took away what is the first's"
    first.close()
    second.begin(settings, SOURCES)
    second.close()


@pytest.mark.parametrize("name", ["config.json", "sources.json"])
def test_a_directory_whose_files_are_damaged_is_refused_with_a_sentence(tmp_path: Path, name: str) -> None:
    settings = Settings(output_dir=tmp_path)
    begin(settings)
    (tmp_path / name).write_text("{")
    with pytest.raises(SettingsError, match=f"{name} cannot be read .*; choose another output_dir"):
        begin(settings)


def test_a_reason_fits_into_the_room_reserved_for_it(tmp_path: Path) -> None:
    note = StopNote(tmp_path / "stopped.json")
    note.reserve()
    size = (tmp_path / "stopped.json").stat().st_size
    files = RunFiles(path=tmp_path)
    assert files.stop_reason() == ""
    for reason in ("the disk is full", "\U0001f4be" * 5000, "short"):
        note.write(reason)
        assert (tmp_path / "stopped.json").stat().st_size == size
        assert files.stop_reason()
        assert reason.startswith(files.stop_reason())
    note.reserve()
    assert files.stop_reason() == ""


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"cannot use output_dir .*file/run: Not a directory"):
        RunDirectory.open(Settings(output_dir=tmp_path / "file" / "run"))


def test_a_checkpoint_counts_only_when_it_is_complete(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path, keep=2)
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


def test_only_its_owner_can_look_into_a_new_run_directory_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    for name, mode in (("parent/new", 0o700), ("old", 0o755)):
        begin(Settings(output_dir=tmp_path / name))
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
    assert (tmp_path / "parent").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
