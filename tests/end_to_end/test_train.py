"""Whole runs of `tailrace train`, in deterministic mode: repeated, killed, resumed, replayed."""

from __future__ import annotations

import random
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from end_to_end import launch
from end_to_end.launch import Run
from tailrace.core.commands import FinishRun
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import InstanceLost, RunResumed
from tailrace.core.journal import replay_all
from tailrace.observe.journal.journal_file import read
from tailrace.policies.strategies import policies_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test waits for all runs that are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A run that was killed and continued, stopped and continued."""

    run: Run
    outliving: list[psutil.Process]
    """Workers that were alive although their controller was killed."""
    stop_code: int
    stop_reason: str


@pytest.fixture(scope="module")
def disturbed(whole: Run, tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    output = tmp_path_factory.mktemp("disturbed") / "run"
    total, given = launch.num_entries(whole.output), whole.given | {"report": False}

    def begin() -> subprocess.Popen[bytes]:
        return launch.start(output, **given)

    moment = random.Random(0).randrange(2, total // 2)
    outliving = launch.kill_when(begin(), lambda: launch.num_entries(output) >= moment)

    process = begin()
    launch.wait_until(process, lambda: launch.num_entries(output) >= total * 2 // 3)
    process.send_signal(signal.SIGTERM)
    stop_code = process.wait(timeout=100)
    *_, (_, last) = read(output / "journal.jsonl")
    run = launch.train_well(output, **given)
    [finish] = [command for command in last.commands if isinstance(command, FinishRun)]
    return Disturbed(run=run, outliving=outliving, stop_code=stop_code, stop_reason=finish.reason)


def test_the_checkpoint_loads_with_transformers(whole: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = whole.output / "checkpoints" / "latest"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokens = AutoTokenizer.from_pretrained(checkpoint)("1+2=", return_tensors="pt")
    assert model.generate(**tokens, max_new_tokens=3).shape[1] > tokens["input_ids"].shape[1]


@pytest.mark.long
def test_a_run_that_was_disturbed_ends_like_one_that_was_not(whole: Run, disturbed: Disturbed) -> None:
    output = disturbed.run.output
    assert launch.final_weights(output) == launch.final_weights(whole.output)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole.output)


@pytest.mark.long
def test_a_run_killed_as_it_starts_and_around_its_last_checkpoint_still_writes_it(whole: Run, tmp_path: Path) -> None:
    output, given = tmp_path / "run", whole.given | {"report": False}
    process = launch.start(output, **given)
    outliving = launch.kill_when(process, lambda: bool(launch.children(process)))
    for checkpoint in ("step_4.partial", "step_4"):
        outliving += launch.kill_when(launch.start(output, **given), (output / "checkpoints" / checkpoint).exists)
    run = launch.train_well(output, **given)
    assert outliving == []
    assert (output / "checkpoints" / "latest").resolve().name == "step_4"
    assert "done: 4 steps are done; reward" in run.said
    assert launch.final_weights(output) == launch.final_weights(whole.output)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole.output)


@pytest.mark.long
def test_a_run_ends_with_a_report_unless_told_otherwise(whole: Run, disturbed: Disturbed) -> None:
    assert f"report:     {whole.output / 'report.html'}" in whole.said
    assert (whole.output / "report.html").exists()
    assert "report:" not in disturbed.run.said
    assert not (disturbed.run.output / "report.html").exists()


@pytest.mark.long
def test_no_worker_outlives_a_killed_controller(disturbed: Disturbed) -> None:
    assert disturbed.outliving == []


@pytest.mark.long
def test_a_stopped_run_ends_in_good_order(disturbed: Disturbed) -> None:
    assert (disturbed.stop_code, disturbed.stop_reason) == (1, "it was asked to stop")


@pytest.mark.long
def test_journals_replay_to_identical_commands(whole: Run, disturbed: Disturbed) -> None:
    for output in (whole.output, disturbed.run.output):
        entries = [entry for _, entry in read(output / "journal.jsonl")]
        num_resumed = sum(isinstance(entry.event, RunResumed) for entry in entries)
        assert num_resumed == 0 if output == whole.output else num_resumed >= 2
        assert replay_all(entries, lambda made: Coordinator(made, policies=policies_of(made))) == len(entries)


def test_a_killed_rollout_instance_is_replaced_and_changes_nothing(whole: Run, tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **whole.given | {"report": False})
    journal = output / "journal.jsonl"
    launch.wait_until(process, lambda: journal.exists() and b"RolloutReported" in journal.read_bytes())
    (victim,) = [
        child for child in launch.children(process) if "tailrace.workers.rollout_worker:serve" in child.cmdline()
    ]
    victim.kill()
    assert process.wait(timeout=200) == 0
    lost = [entry.event for _, entry in read(journal) if isinstance(entry.event, InstanceLost)]
    assert len(lost) == 1
    assert "SIGKILL" in lost[0].reason
    assert launch.final_weights(output) == launch.final_weights(whole.output)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole.output)


def test_a_finished_run_shows_its_result_and_other_settings_are_refused(whole: Run) -> None:
    again = launch.train(whole.output, **whole.given)
    assert again.returncode == 0
    assert "this run is finished: 4 steps are done" in again.stdout
    other = launch.train(whole.output, **whole.given, seed=7)
    assert other.returncode == 2
    assert "holds a run with other settings (seed)" in other.stderr


def test_sources_in_other_words_are_explained_and_have_numbers_of_their_own(whole: Run) -> None:
    assert "hint: beta is algorithm.kl_loss_coef here" in whole.warned
    assert "sums: prompt from 'prompt', answer from 'reward_model.ground_truth' (verl format)" in whole.said
    assert "short: prompt from 'input', answer from 'output'" in whole.said
    rows = [row for row in launch.untimed_metrics(whole.output) if "reward/mean" in row]
    assert len(rows) == 4
    assert all({"reward/source/sums/mean", "reward/source/short/mean"} <= set(row) for row in rows)
