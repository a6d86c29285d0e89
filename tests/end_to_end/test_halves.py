"""The two halves of a run, each without the other: rollout that trains nothing, training that generates nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from end_to_end import launch
from tailrace.cli.main import main
from tailrace.commands.train import RunResult, train
from tailrace.config.load import SettingsError, load
from tailrace.config.settings import Settings
from tailrace.core.events import RunResumed
from tailrace.observe.journal import journal_file
from tailrace.observe.prompts import length_trace
from tailrace.store.payload_reader import PayloadReader

pytestmark = [pytest.mark.slow, pytest.mark.long]
SMALL = {
    "schedule.rollout_batch_size": "2",
    "rollout.n_samples_per_prompt": "4",
    "rollout.max_response_length": "48",
    "rollout.max_running": "8",
    "rollout.threads": "1",
    "rollout.deterministic": "true",
    "rollout.progress_interval_s": "0.02",
    "trainer.threads": "1",
}
NUM_PROMPTS, NUM_STEPS = 6, 2


def settings(output: Path, **changes: Any) -> Settings:
    given = SMALL | {"output_dir": str(output), "eval_interval": "null", "save_interval": str(NUM_STEPS)}
    return load("quickstart", given | {name.replace("__", "."): str(value) for name, value in changes.items()})


def quiet(line: str) -> None:
    pass


def flags(output: Path) -> list[str]:
    given = SMALL | {"output_dir": str(output)}
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    return ["rollout", "quickstart", "--num-prompts", str(NUM_PROMPTS), *options]


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rollout run that was killed once in the middle."""
    output = tmp_path_factory.mktemp("rollouts") / "run"
    process = subprocess.Popen([sys.executable, "-m", "tailrace", *flags(output)], stdout=subprocess.DEVNULL)
    assert not launch.kill_when(process, lambda: b"ResponsesScored" in _bytes(output / "journal.jsonl"))
    assert main(flags(output)) == 0
    return output


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A training run that keeps its rollouts."""
    output = tmp_path_factory.mktemp("trained") / "run"
    return train(settings(output, schedule__max_steps=NUM_STEPS, keep_rollouts=True), quiet)


def test_a_killed_rollout_run_goes_on_and_leaves_a_trace_of_every_response(rollouts: Path) -> None:
    trace = length_trace.read(rollouts / "lengths.json")
    assert (trace.model, trace.cap, trace.group_size) == ("tiny-arith", 48, 4)
    assert trace.sampling["temperature"] == 1.0
    assert len({prompt.index for prompt in trace.prompts}) == NUM_PROMPTS
    with PayloadReader.open(rollouts / "payload") as payload:
        held = {response: payload.length(response) for response in payload.held()}
    lengths = {(p.source, p.epoch, p.index, m): n for p in trace.prompts for m, n in enumerate(p.lengths)}
    assert {(*response.group, response.member): length for response, length in held.items()} == lengths
    assert all(
        (finish == "length") == (n == 48)
        for p in trace.prompts
        for finish, n in zip(p.finishes, p.lengths, strict=True)
    )
    assert all(score in (0.0, 1.0) for prompt in trace.prompts for score in prompt.scores)
    events = [entry.event for _, entry in journal_file.read(rollouts / "journal.jsonl")]
    assert sum(isinstance(event, RunResumed) for event in events) == 1


def test_no_training_worker_is_started_and_nothing_is_saved(rollouts: Path) -> None:
    assert not (rollouts / "logs" / "training.log").exists()
    assert list((rollouts / "checkpoints").iterdir()) == []


def test_a_finished_rollout_run_says_what_it_found(rollouts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(rollouts)) == 0
    said = capsys.readouterr().out
    assert "this run is finished: every prompt is done" in said
    assert "length p50/p90/p95/p99/max" in said
    assert "cut off at 48 tokens" in said
    assert "pass@4" in said
    assert "tok/s" in said


def test_a_replay_gives_the_same_weights(trained: RunResult, tmp_path: Path) -> None:
    again = train(settings(tmp_path / "run", schedule__max_steps=NUM_STEPS, rollout__from_run=trained.directory), quiet)
    assert again.is_complete
    assert launch.final_weights(again.directory) == launch.final_weights(trained.directory)
    assert launch.untimed_metrics(again.directory) == launch.untimed_metrics(trained.directory)


def test_a_replay_of_more_steps_than_were_saved_ends_with_the_response_it_lacks(
    trained: RunResult, tmp_path: Path
) -> None:
    more = settings(tmp_path / "run", schedule__max_steps=NUM_STEPS + 1, rollout__from_run=trained.directory)
    again = train(more, quiet)
    assert not again.is_complete
    assert f"the run {trained.directory} has no finished response train:0:" in again.reason
    assert launch.untimed_metrics(again.directory) == launch.untimed_metrics(trained.directory)


def test_rollouts_are_what_training_asks_for_in_its_first_step(rollouts: Path, trained: RunResult) -> None:
    with PayloadReader.open(rollouts / "payload") as mine, PayloadReader.open(trained.directory / "payload") as theirs:
        first = [response for response in theirs.held() if theirs.response(response).versions[0][0] == 0]
        assert len(first) == 8
        for response in first:
            np.testing.assert_array_equal(mine.response(response).tokens, theirs.response(response).tokens)
            np.testing.assert_array_equal(mine.response(response).logprobs, theirs.response(response).logprobs)


def test_responses_to_other_prompts_are_refused(rollouts: Path, tmp_path: Path) -> None:
    given = settings(tmp_path / "run", rollout__from_run=rollouts, data__train="builtin:arith-heldout")
    with pytest.raises(SettingsError, match="are to other prompts than this run's"):
        train(given, quiet)
    with pytest.raises(SettingsError, match="there is no run directory"):
        train(settings(tmp_path / "other", rollout__from_run=tmp_path / "nowhere"), quiet)
