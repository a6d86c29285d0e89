"""Settings on the command line under short names, as `tailrace.train` takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.cli.main import main


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["train", "quickstart", "--dry-run", "--show-settings", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("model: ")  # the plan begins: there was no hint
    settings: dict[str, Any] = json.loads(printed.out)
    return settings


def test_a_setting_goes_by_its_own_name_with_either_dash(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--rollout_batch_size", "8", "--n-samples-per-prompt", "4", "--advantage_estimator", "rloo"]
    settings = dry_run(capsys, *own, "--max_prompt_length=99", "--trainer.learning-rate", "0.5")
    assert settings["trainer"]["learning_rate"] == 0.5
    assert settings["schedule"]["rollout_batch_size"] == 8
    assert settings["rollout"]["n_samples_per_prompt"] == 4
    assert settings["algorithm"]["advantage_estimator"] == "rloo"
    assert settings["data"]["max_prompt_length"] == 99


def test_a_name_means_the_setting_of_the_outer_section(capsys: pytest.CaptureFixture[str]) -> None:
    settings = dry_run(capsys, "--timeout_s", "33", "--workers", "2", "--placement", "shared")
    assert (settings["reward"]["timeout_s"], settings["reward"]["workers"]) == (33.0, 2)
    assert settings["reward"]["judge"]["timeout_s"] == 120.0
    assert settings["schedule"]["placement"] == "shared"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--threads", "1"], "threads is ambiguous: write one of rollout.threads, trainer.threads"),
        (
            ["--max_steps", "1", "--schedule.max_steps", "2"],
            "schedule.max_steps and max_steps both set schedule.max_steps; give it once",
        ),
        (
            ["--resume-mode", "auto"],
            "unknown setting --resume-mode; leave it out: the same command continues an unfinished run, unless resume "
            "is 'never'",
        ),
        (
            ["--use-tis"],
            "unknown setting --use-tis; set algorithm.importance_sampling.type to 'tis' and algorithm.old_logprobs to "
            "'recompute' instead",
        ),
    ],
)
def test_a_name_that_says_too_little_or_too_much_is_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "quickstart", *arguments]) == 2
    assert capsys.readouterr().err == f"tailrace: {sentence}\n"
