"""A dry run as a preflight: it tries what a run would use, says what would happen, and leaves no trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from judge.openai_server import openai_server
from tailrace.cli.main import main
from tailrace.commands.preflight.dry_run import dry_run, dry_run_on
from tailrace.commands.preflight.prompt_view import prompt_lines
from tailrace.commands.train import prepare
from tailrace.config.load import SettingsError, load
from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.journal import Entry
from tailrace.observe.journal.journal_file import JournalFile
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.sizing.card import parse_card
from tailrace.sizing.offload_profile_file import Measured, write_profile
from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile

REWARDS = """
import json, time
import beside

def good(response, answer):
    return 0.25

def wrong(response, answer):
    raise KeyError("no such thing")

def odd(response, answer):
    return None

def stuck(response, answer):
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with reward functions in two files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "beside.py").write_text("")
    return tmp_path


def settings(**changes: Any) -> Settings:
    given = {
        "model.device": "cpu",
        "output_dir": "runs/deep/run",
        "schedule.max_steps": 4,
        "schedule.rollout_batch_size": 4,
        "eval": [],
        "eval_interval": None,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return load("quickstart", {name: json.dumps(value) for name, value in given.items()})


def said(given: Settings) -> str:
    lines: list[str] = []
    dry_run(given, lines.append)
    return "\n".join(lines)


def tree(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Every file and folder, with size and time of its last change."""
    found = {str(path.relative_to(folder)): path.lstat() for path in sorted(folder.rglob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()} | {
        ".": (0, folder.stat().st_mtime_ns)
    }


def begin(given: Settings, *events: ev.Event) -> Path:
    """A run directory whose journal holds these events."""
    sources = prepare(given)
    directory = RunDirectory.open(given)
    directory.begin(given, sources.fingerprints)
    with_start = (ev.RunStarted(schedule=sources.schedule), *events)
    journal = JournalFile.open(directory.journal)
    journal.append(*(Entry(now=float(now), event=event, commands=()) for now, event in enumerate(with_start)))
    journal.close()
    directory.close()
    return directory.path


def trained(version: int) -> ev.StepTrained:
    return ev.StepTrained(version=Version(version), seconds=1.0, metrics=())


# The reward functions


def test_reward_functions_are_loaded_and_score_a_made_up_response(place: Path) -> None:
    text = said(settings(reward__functions=["rewards.py:good", "exact_match"]))
    assert "reward rewards.py:good: loaded; a made-up response to a prompt of 'train' scores 0.25 (" in text
    assert "reward exact_match: loaded; a made-up response to a prompt of 'train' scores 0 (" in text


def test_a_reward_function_that_cannot_be_loaded_refuses(place: Path) -> None:
    (place / "beside.py").write_text("import a_package_that_is_not_there")
    with pytest.raises(SettingsError, match=r"'rewards.py:good': importing it raised .*'a_package_that_is_not_there'"):
        said(settings(reward__functions=["rewards.py:good"]))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("wrong", "note: a made-up response has no score: reward function 'rewards.py:wrong' raised KeyError"),
        ("odd", "returned None (NoneType), expected a number or a dict with 'score'"),
        ("stuck", "no score within 0.3 s, so reward-0 was killed; in a run such a response gets score 0"),
    ],
)
def test_what_a_reward_function_makes_of_the_made_up_response_is_only_a_note(
    function: str, words: str, place: Path
) -> None:
    text = said(settings(reward__functions=[f"rewards.py:{function}"], reward__timeout_s=0.3))
    assert f"reward rewards.py:{function}: loaded; note: " in text
    assert words in text


def test_functions_of_sources_and_evaluation_sets_are_tried_too(place: Path) -> None:
    heldout = {"name": "heldout", "path": "builtin:arith-heldout", "max_prompts": 2, "reward": "rewards.py:good"}
    text = said(settings(eval=[heldout], eval_interval=2))
    assert "reward rewards.py:good: loaded; a made-up response to a prompt of 'heldout' scores 0.25" in text


JUDGE: dict[str, Any] = {
    "reward__functions": ["exact_match", "judge"],
    "reward__judge__model": "tiny-arith",
    "reward__judge__prompt": "{prompt}{response}=",
    "reward__judge__chat": False,
    "reward__judge__answers": {"1": 1.0, "2": 0.0},
}


def test_a_judge_is_checked_without_its_weights(place: Path) -> None:
    text = said(settings(**JUDGE))
    assert "judge: tiny-arith, with answer words '1' = 1, '2' = 0" in text
    assert "reward judge: its files, tokenizer, template and answer words fit; the text about a made-up" in text
    assert "tokens; the weights were not loaded" in text
    assert "reward exact_match: loaded; " in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward__judge__model": "no/such"}, "reward.judge.model: model 'no/such' is neither built in"),
        ({"reward__judge__answers": {"12": 1.0, "2": 0.0}}, "the answer word '12' must be one token"),
        ({"reward__judge__chat": True}, "no chat template"),
        ({"reward__judge__prompt": "{response}{note}"}, "{note}, which is no column of every prompt"),
        ({"reward__judge__profile": "nowhere.json"}, "reward.judge.profile: nowhere.json cannot be read"),
    ],
)
def test_a_judge_that_cannot_work_refuses(changes: dict[str, Any], words: str, place: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        said(settings(**JUDGE | changes))
    assert words in str(refusal.value)


def test_a_server_is_asked_about_one_response(place: Path) -> None:
    with openai_server() as server:
        given = {"reward__judge__model": "a-judge", "reward__judge__url": server.url}
        text = said(settings(reward__functions=["judge"], **given))
        assert "reward judge: loaded; a made-up response to a prompt of 'train' scores 0.75 (" in text
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("DENIED {response}", "answered with status 401"),
        ("EMPTY {response}", "it has no log-probs"),
        ("SILENT {response}", "no reply from"),
    ],
)
def test_a_server_that_cannot_be_used_refuses(prompt: str, words: str, place: Path) -> None:
    given = {"reward__judge__model": "a-judge", "reward__judge__prompt": prompt, "reward__judge__timeout_s": 2}
    lines: list[str] = []
    with openai_server() as server, pytest.raises(SettingsError, match=r"^reward judge: the server ") as refusal:
        dry_run(settings(reward__functions=["judge"], reward__judge__url=server.url, **given), lines.append)
    assert words in str(refusal.value)
    assert not any("reward judge: loaded" in line or "without --dry-run" in line for line in lines)


def test_a_server_whose_judge_says_something_else_is_no_reason_to_refuse(place: Path) -> None:
    given = {"reward__judge__model": "a-judge", "reward__judge__prompt": "VAGUE {response}"}
    with openai_server() as server:
        text = said(settings(reward__functions=["judge"], reward__judge__url=server.url, **given))
    assert "note: a made-up response has no score: no answer word ('Yes', 'No') is among" in text


def test_a_judge_that_nothing_asks_for_is_told(place: Path) -> None:
    text = said(settings(reward__judge__model="tiny-arith"))
    assert "note: reward.judge is given, but no prompt asks for the reward 'judge' (reward.functions)" in text


def test_a_profile_of_another_model_refuses(place: Path) -> None:
    profile = OffloadProfile(
        num_layers=7,
        layer_bytes=1,
        outside_bytes=1,
        held_bytes=1,
        copy_s=1.0,
        points=(LengthPoint(length=1, working_bytes=1, layer_s=1.0),),
    )
    measured = Measured(model=JUDGE["reward__judge__model"], dtype="float32", device="cpu")
    write_profile(place / "profile.json", profile, measured)
    with pytest.raises(SettingsError, match="is of a model with 7 layers, and the judge has 3"):
        said(settings(**JUDGE, reward__judge__profile="profile.json"))


# The prompt


def test_a_prompt_is_shown_as_the_model_sees_it() -> None:
    text = said(settings(data__shuffle=False))
    assert "prompt: number 0 of 'train' as the model sees it, " in text
    assert "\n  | <s>" in text


def test_a_long_prompt_is_clipped_in_the_middle_and_cannot_command_the_terminal() -> None:
    text = "begin\x1b[31m\n" + "x" * 5000 + "\nassistant:"
    title, *lines = prompt_lines(text, num_tokens=1234, source="math", number=7)
    assert title == "prompt: number 7 of 'math' as the model sees it, 1,234 tokens:"
    assert (lines[0], lines[-1]) == ("  | begin\\x1b[31m", "  | assistant:")
    assert "  | [... 3,822 characters ...]" in lines
    many = prompt_lines("\n".join(map(str, range(100))), num_tokens=9, source="a", number=0)
    assert (len(many), many[1], many[-1]) == (26, "  | 0", "  | 99")
    assert "  | [... 76 lines ...]" in many


# The run directory


def test_a_run_that_has_begun_is_compared_and_the_dry_run_says_where_it_would_continue(place: Path) -> None:
    given = settings()
    path = begin(given, trained(1), trained(2), trained(3))
    text = said(settings(trainer__threads=1))
    assert f"run directory: {path} holds an unfinished run" in text
    assert "would continue it after step 3: from its beginning, steps 1 to 3 repeated" in text
    assert "trainer.threads is 1, before null" in text
    assert text.endswith("nothing was written; to continue it, give the same command without --dry-run")


def test_a_run_that_was_asked_to_stop_is_unfinished(place: Path) -> None:
    path = begin(settings())
    RunDirectory(path).stop_note.reserve()
    RunDirectory(path).stop_note.write("it was asked to stop")
    assert f"run directory: {path} holds an unfinished run (it was asked to stop)\n" in said(settings())


def test_an_end_before_the_steps_that_are_taken_is_refused(place: Path) -> None:
    begin(settings(), trained(1), trained(2), trained(3))
    before = tree(place)
    with pytest.raises(SettingsError, match="has taken 3 steps, so it cannot end after 2; set"):
        said(settings(schedule__max_steps=2, resume="with-changes"))
    assert tree(place) == before


@pytest.mark.parametrize(
    ("first", "changes", "lines"),
    [
        ({}, {"trainer__learning_rate": 0.5}, ["learning rate of step 4: 0.5; with the settings before it would be "]),
        (
            {"algorithm__advantage_estimator": "gae"},
            {"algorithm__critic_learning_rate": 0.25},
            ["learning rate of the critic of step 4: 0.25; with the settings before it would be 1e-05"],
        ),
        ({}, {"algorithm__critic_learning_rate": 0.25}, []),
    ],
    ids=["of the policy", "of the critic", "of a critic that is not there"],
)
def test_changed_learning_rates_are_told(
    first: dict[str, Any], changes: dict[str, Any], lines: list[str], place: Path
) -> None:
    first = first | {"trainer__warmup_steps": 0, "trainer__lr_schedule": "constant"}
    begin(settings(**first), trained(1), trained(2), trained(3))
    text = said(settings(**first | changes, resume="with-changes"))
    assert all(f"  {line}" in text for line in lines)
    assert text.count("with the settings before") == len(lines)


def test_settings_that_the_run_would_refuse_are_shown_with_both_values(place: Path) -> None:
    begin(settings())
    lines: list[str] = []
    with pytest.raises(SettingsError, match=r"other settings \(rollout.temperature, seed\)"):
        dry_run(settings(seed=7, rollout__temperature=0.5), lines.append)
    assert lines == ["rollout.temperature is 0.5, before 1.0", "seed is 7, before 0"]


def test_prompts_that_changed_since_the_run_began_are_refused(place: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = settings(data__train="rows.jsonl")
    begin(given)
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows[1:])))
    with pytest.raises(SettingsError, match="the prompts of 'train' changed since the run"):
        said(given)


def test_a_run_that_has_begun_with_too_long_responses_gets_a_warning(place: Path) -> None:
    given = settings(rollout__max_response_length=1024)
    fits = settings(rollout__max_response_length=512)
    path = begin(fits)
    (path / "config.json").write_text(given.model_dump_json())
    assert "warning: the model has 1024 positions (max_position_embeddings), but the longest prompt" in said(given)


def test_a_finished_run_would_only_show_its_result(place: Path) -> None:
    path = begin(settings())
    (path / "result.json").write_text(json.dumps({"reason": "all 4 steps are done"}))
    assert "holds a finished run (all 4 steps are done); the command would show its result" in said(settings())


# Where it says what


def test_the_plan_comes_first_and_the_settings_only_on_request(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "quickstart", "--model.device", "cpu", "--dry-run"]
    assert main(arguments) == 0
    plan = capsys.readouterr()
    assert plan.out.startswith("model: tiny-arith, float32, on the CPU\nschedule: sync, 40 steps of 32 prompts x 8")
    assert plan.out.endswith("nothing was written; to start, give the same command without --dry-run\n")
    assert "learning_rate" not in plan.out
    assert plan.err == ""
    assert main([*arguments, "--show-settings"]) == 0
    both = capsys.readouterr()
    assert json.loads(both.out)["trainer"]["learning_rate"] > 0
    assert both.err.startswith("model: tiny-arith")
    assert main(["train", "quickstart", "--show-settings"]) == 2
    assert "--show-settings goes with --dry-run" in capsys.readouterr().err


def test_a_rollout_without_training_has_a_dry_run_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "quickstart", "--num-prompts", "3", "--model.device", "cpu", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "schedule: rollout-only, 3 prompts x 8 responses, no training" in text
    assert "reward exact_match: loaded" in text
    assert "training: micro-batches" not in text


# No trace


def command(*arguments: str, given: Settings, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with the settings as its recipe and a temporary folder of its own."""
    (folder / "temporary").mkdir()
    (folder / "recipe.yaml").write_text(given.model_dump_json())
    before = tree(folder)
    environment = os.environ | {"TMPDIR": str(folder / "temporary")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace", "train", "recipe.yaml", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    after = tree(folder)
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} <= {"temporary"}
    return ended


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_dry_run_writes_nothing_into_the_run_directory_its_parents_or_the_working_directory(
    place: Path, has_begun: bool
) -> None:
    pytest.importorskip("tensorboard")
    given = settings(reward__functions=["rewards.py:good", "rewards.py:wrong"], logger=["tensorboard"])
    if has_begun:
        begin(given, trained(1))
    ended = command("--dry-run", given=given, folder=place)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "reward rewards.py:good: loaded" in ended.stdout


def test_a_refused_dry_run_writes_nothing_either(place: Path) -> None:
    (place / "beside.py").write_text("raise RuntimeError('no')")
    ended = command("--dry-run", given=settings(reward__functions=["rewards.py:good"]), folder=place)
    assert ended.returncode == 2
    assert "importing it raised RuntimeError: no" in ended.stderr


def test_a_run_whose_first_entry_was_cut_off_would_be_started_anew(place: Path) -> None:
    journal = begin(settings()) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:300])
    text = said(settings())
    assert "which holds no run yet" in text
    assert "to start, give the same command without --dry-run" in text


def test_a_dry_run_says_once_what_a_preset_leaves_out() -> None:
    def said(card: str, **given: str) -> list[str]:
        lines: list[str] = []
        dry_run_on(parse_card(card), load("rollpacker-gpu", given), lines.append)
        return [line for line in lines if ": without " in line]

    two = {"trainer.num_ranks": "2", "trainer.num_replicas": "2"}
    one_size = "rollpacker: without changes of the parallel size, because there is one parallel size"
    one_gpu, two_gpus, asked = said("24GiB"), said("2x24GiB", **two), said("24GiB", **{"schedule.lending": "fixed"})
    assert [line.partition(", ")[0] for line in one_gpu] == [
        "rollpacker: without lent instances",
        "rollpacker: without changes of the parallel size",
    ]
    assert [line.partition(" (")[0] for line in two_gpus] == [one_size]
    assert [line.partition(", ")[0] for line in asked] == [
        "schedule.lending 'fixed': without lent instances",
        "rollpacker: without changes of the parallel size",
    ]
