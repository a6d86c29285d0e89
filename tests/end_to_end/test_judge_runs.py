"""Whole runs with a judge: a real model on the CPU, or a server; judges that are killed, stopped, or never answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from end_to_end import launch
from end_to_end.launch import Run
from judge.openai_server import openai_server
from tailrace.data.models import resolve_model

pytestmark = pytest.mark.slow
FUNCTIONS = '["exact_match", {"function": "judge", "weight": 0.5}]'
MODEL: dict[str, Any] = {
    "reward.functions": FUNCTIONS,
    "reward.judge.model": "tiny-arith",
    "reward.judge.prompt": '"{prompt}{response}+0="',
    "reward.judge.chat": False,
    "reward.judge.answers": '{"1": 1.0, "2": 0.0}',
    "rollout.deterministic": True,
}
SHORT: dict[str, Any] = {
    "eval": "[]",
    "eval_interval": "null",
    "schedule.max_steps": 2,
    "rollout.max_response_length": 16,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch.train_well(tmp_path_factory.mktemp("whole") / "run", **MODEL)


def judge_process(run: subprocess.Popen[bytes]) -> psutil.Process | None:
    found = [each for each in launch.children(run) if "tailrace.workers.judge_worker:serve" in launch.words(each)]
    return found[0] if found else None


def scores_of_judge(output: Path) -> int:
    """Reports of scores by the judge that the journal has."""
    journal = output / "journal.jsonl"
    lines = journal.read_bytes().splitlines() if journal.exists() else []
    return sum(b'"judge"' in line and b"ResponsesScored" in line for line in lines)


def strike(output: Path, blow: Callable[[psutil.Process], None], **settings: Any) -> tuple[str, int]:
    """Start a run and strike its judge when it has judged something. Returns what the run said, and its exit code."""
    command = launch.command(output, **settings)
    with (output.parent / "said").open("wb") as said:
        run = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        launch.wait_until(run, lambda: scores_of_judge(output) > 0)
        judge = judge_process(run)
        assert judge is not None
        blow(judge)
        code = run.wait(timeout=300)
    return (output.parent / "said").read_text(), code


def test_scores_add_up_as_the_weights_say(whole: Run) -> None:
    rows = launch.untimed_metrics(whole.output)
    assert len([row for row in rows if "reward/mean" in row]) == 4
    for row in rows:
        if "reward/mean" in row:
            parts = row["reward/exact_match/score/mean"] + 0.5 * row["reward/judge/score/mean"]
            assert row["reward/mean"] == pytest.approx(parts)
            assert 0 < row["reward/judge/score/mean"] < 1
            assert 0 < row["reward/judge/answer_mass/mean"] < 1
            assert row["reward/judge/num_tokens/mean"] > 5
    assert "judge: tiny-arith, with answer words '1' = 1, '2' = 0" in whole.said


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_with_the_same_scores(whole: Run, tmp_path: Path) -> None:
    output = tmp_path / "run"
    run = launch.start(output, **MODEL)
    survivors = launch.kill_when(run, lambda: scores_of_judge(output) > 2)
    assert not survivors, "a judge outlived its run"
    launch.train_well(output, **MODEL)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole.output)
    assert launch.final_weights(output) == launch.final_weights(whole.output)


@pytest.mark.long
def test_a_judge_that_is_killed_is_replaced_and_changes_nothing(whole: Run, tmp_path: Path) -> None:
    said, code = strike(tmp_path / "run", psutil.Process.kill, **MODEL)
    assert code == 0, said
    assert "judge-0 is lost: worker 'judge-0' was killed by SIGKILL; it is started again" in said
    assert launch.untimed_metrics(tmp_path / "run") == launch.untimed_metrics(whole.output)


@pytest.mark.long
def test_a_judge_that_is_stopped_costs_its_pass_or_nothing_and_is_replaced(tmp_path: Path) -> None:
    def stop(judge: psutil.Process) -> None:
        os.kill(judge.pid, signal.SIGSTOP)

    said, code = strike(tmp_path / "run", stop, **{**MODEL, "reward.judge.timeout_s": 5})
    assert code == 0, said
    assert "judge-0 is lost: " in said
    assert "was killed; it is started again (its log: logs/judge-0.log)" in said


@pytest.mark.long
def test_a_server_that_never_answers_fails_rewards_and_then_the_run(tmp_path: Path) -> None:
    with openai_server() as server:
        settings = {
            "reward.functions": FUNCTIONS,
            "reward.judge.model": "a-judge",
            "reward.judge.url": server.url,
            "reward.judge.prompt": "SILENT {response}",
            "reward.judge.timeout_s": 1,
        }
        result = launch.train(tmp_path / "run", **SHORT | settings)
    said = result.stdout + result.stderr
    [row] = launch.untimed_metrics(tmp_path / "run")
    assert (row["reward/num_timeout"], row["reward/mean"]) == (16, 0)
    assert f"timeout: no reply from {server.url} within 1 s" in said
    assert result.returncode == 1, "a run in which no reward works any more must end"
    assert "the last 32 rewards failed, every one of them; timeout: no reply from" in said


def test_a_server_judges_a_whole_run(tmp_path: Path) -> None:
    with openai_server() as server:
        settings = {
            "reward.functions": '[{"function": "judge", "weight": 2}]',
            "reward.judge.model": "a-judge",
            "reward.judge.url": server.url,
        }
        result = launch.train(tmp_path / "run", **SHORT | settings)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = launch.untimed_metrics(tmp_path / "run")
    assert [row["reward/mean"] for row in rows] == [pytest.approx(1.5)] * 2
    assert [row["reward/num_tokens/mean"] for row in rows] == [7.0, 7.0]
    assert len(server.asked) == 32


@pytest.mark.long
def test_functions_that_keep_dying_do_not_harm_the_judge(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\n\ndef score(response):\n    os._exit(3)\n")
    functions = json.dumps([f"{tmp_path}/dies.py:score", "judge"])
    result = launch.train(tmp_path / "run", **MODEL | SHORT | {"reward.functions": functions, "schedule.max_steps": 1})
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    [row] = launch.untimed_metrics(tmp_path / "run")
    assert row["reward/num_crash"] == 16
    assert "exited with code 3" in said
    assert "judge-0 is lost" not in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward.judge.model": "null"}, "the reward 'judge' needs a model"),
        ({"reward.judge.prompt": '"{response}{note}"'}, "reward.judge.prompt has {note}, which is no column"),
        (
            {"reward.judge.answers": '{"12": 1.0, "2": 0.0}'},
            "reward.judge.answers: the answer word '12' must be one token",
        ),
        ({"reward.judge.chat": True}, "no chat template"),
        ({"reward.judge.reading": "text"}, "needs a server that writes"),
    ],
)
def test_a_judge_that_cannot_work_is_refused_before_any_work(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    result = launch.train(tmp_path / "run", **MODEL | changes)
    assert result.returncode == 2
    assert words in result.stderr
    assert not (tmp_path / "run" / "journal.jsonl").exists()


@pytest.mark.long
def test_a_run_is_continued_with_the_same_judge_only(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve_model("tiny-arith"), model)
    given = MODEL | SHORT | {"reward.judge.model": model, "schedule.max_steps": 1}
    launch.train_well(tmp_path / "run", **given)
    more = {"schedule.max_steps": 2, "resume": "with-changes"}
    other = launch.train(tmp_path / "run", **given | more | {"reward.judge.prompt": '"{response}+0="'})
    assert (other.returncode, "(reward.judge.prompt)" in other.stderr) == (2, True), other.stderr
    free = {"reward.judge.max_pass_tokens": 100, "reward.judge.timeout_s": 60}
    launch.train_well(tmp_path / "run", **given | more | free)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    edited = launch.train(tmp_path / "run", **given | more | free | {"schedule.max_steps": 3})
    assert (edited.returncode, "the judge changed since the run in" in edited.stderr) == (2, True), edited.stderr
