"""`tailrace profile` measures the built-in model with the engine of real runs. What it finds is not looked at here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.config.parallel_profile import read_profile
from tailrace.config.schedule_builder import schedule
from tailrace.config.settings import Settings

SMALL = (
    "--max_running", "4", "--kv_tokens", "512", "--max_prompt_length", "16", "--max_response_length", "80",
    "--rollout.threads", "1", "--repeats", "1", "--device", "cpu",
)  # fmt: skip


def small(*arguments: str) -> list[str]:
    return ["profile", *arguments, *SMALL]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    assert main(small("quickstart", "--json", str(path))) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_fit_is_told_with_its_error_and_every_measurement(profiled: dict[str, Any]) -> None:
    assert all(profiled[name] >= 0 for name in ("k1", "k2", "k3", "k4", "prefill_s", "mean_error_held_out"))
    assert profiled["k5"] >= 1, "the native engine hands its cache out in rows"
    held_out = [point["is_held_out"] for point in profiled["points"]]
    assert held_out.count(True) == profiled["num_held_out"] >= 3
    assert held_out.count(False) == profiled["num_fitted"] >= 6
    assert {point["num_running"] for point in profiled["points"]} == {1, 2, 3, 4}
    setting = profiled["setting"]
    assert (setting["model"], setting["device"], setting["threads"]) == ("tiny-arith", "cpu", 1)
    assert setting["clock"] == "processor", "one thread waits for nothing but its core"
    assert (setting["max_running"], setting["max_length"], setting["repeats"]) == (4, 96, 1)


def test_a_model_stands_in_for_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small("tiny-arith", "--dry-run")) == 0
    assert json.loads(capsys.readouterr().out)["model"]["path"] == "tiny-arith"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-recipe"], "no recipe 'no-such-recipe'"),
        (["tiny-arith", "--model.path", "x"], "both name a model"),
        (["tiny-arith", "--json", "no/such/folder/profile.json"], "there is no folder no/such/folder"),
        (["quickstart", "--repeats", "0"], "--repeats must be at least 1"),
        (["quickstart", "--max_prompt_length", "8", "--max_response_length", "8"], "give them more than"),
        (["quickstart", "--max_running", "1", "--max_prompt_length", "8", "--max_response_length", "32"], "too few"),
        (["tiny-arith", "--from_run", "x"], "the replay engine has no decode steps to measure"),
        (["quickstart", "--no-such-setting", "1"], "unknown setting --no-such-setting"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments, "--device", "cpu"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_is_no_model_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_parallel_sizes_are_measured_each_in_a_process_of_its_own_and_a_run_can_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sizes.json"
    assert main(small("tiny-arith", "--parallel-sizes", "1", "--json", str(path))) == 0
    told = capsys.readouterr()
    assert "size 1: started in" in told.err
    assert "size 1: pass 1 of 1" in told.err
    assert told.out.startswith("tiny-arith, float32, native on cpu\n")
    found = read_profile(path, model="tiny-arith", dtype="float32", sizes=[1])
    [size] = found.sizes
    assert (size.size, size.max_running, size.kv_tokens) == (1, 4, 512)
    assert size.start_s > 0
    assert size.release_s is not None
    assert size.wake_s is not None
    lengths = {"data": {"max_prompt_length": 16}, "rollout": {"max_response_length": 32}}
    sizes = {"parallel_sizes": [1], "parallel_profile": path}
    run = Settings.model_validate({**lengths, "rollout": {**lengths["rollout"], **sizes}})
    [layout] = schedule(run, {"train": 500}, prompt_length=8).parallelism.layouts
    assert layout.costs == size.costs


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tiny-arith", "--parallel-sizes", "1,x"], "rollout.parallel_sizes: input should be a valid tuple, got '1,x'"),
        (["tiny-arith", "--parallel-sizes", "1,2"], "parallel_sizes has 2, but the native engine uses at most 1"),
        (["tiny-arith", "--judge", "--parallel-sizes", "1,2"], "and --rollout.parallel_sizes the engine; give one"),
        (["quickstart", "--parallel-sizes", "2,4"], "tensor_parallel_size 1 is the size with which the run starts"),
        (["tiny-arith", "--parallel-sizes", "1", "--max_running", "1", "--max_response_length", "33"], "size 1 cannot"),
    ],
)
def test_sizes_that_cannot_be_measured_are_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments, "--device", "cpu", "--max_prompt_length", "8"]) == 2
    assert sentence in capsys.readouterr().err
