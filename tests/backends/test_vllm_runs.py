"""Whole runs whose responses come from vLLM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from end_to_end import launch
from engines.rollouts import save_random_model, small_llama
from tailrace.data.models import resolve_model

REWARD = """
def shortness(prompts, completions, completion_ids, **columns):
    return [1 / len(ids) for ids in completion_ids]
"""


def steps(output: Path) -> list[dict[str, Any]]:
    """Metrics of the optimizer steps. Evaluations have rows of their own."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward/mean" in row]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the tokenizer of tiny-arith, whose own heads are too small for vLLM on a CPU."""
    folder, tiny = tmp_path_factory.mktemp("model"), resolve_model("tiny-arith")
    config = small_llama(head_dim=32, vocab_size=19, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    save_random_model(folder, config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder)
    return folder


@pytest.mark.parametrize(
    "asked",
    [
        {"schedule__preset": "sync", "model__lora_rank": 4, "trainer__learning_rate": 0.02},
        {"schedule__preset": "active-partial"},
        {"schedule__preset": "staleflow", "rollout__num_instances": 2},
    ],
    ids=["sync with LoRA", "active-partial", "staleflow"],
)
def test_a_run_takes_its_steps_with_weights_and_responses_that_fit(
    asked: dict[str, Any], small_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(REWARD)
    run = launch.train_well(
        tmp_path / "run",
        model__path=small_model,
        model__device="cpu",
        rollout__engine="vllm",
        reward__functions=f"{tmp_path / 'rewards.py'}:shortness",
        **asked,
    )
    rows = steps(run.output)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    if asked["schedule__preset"] == "sync":
        assert max(row["mismatch/logprob_abs_diff_max"] for row in rows) < 1e-3


def test_two_steps_of_a_real_language_model_agree_with_the_trainer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "train", "smollm2-cpu-smoke", "--rollout.engine", "vllm"]
    threads = ["--rollout.threads", "1", "--trainer.threads", "1"]
    subprocess.run([*command, *threads, "--output_dir", str(tmp_path / "run")], check=True, timeout=600)
    rows = steps(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        print(f"step {row['step']}: log-probs differ by {row['mismatch/logprob_abs_diff']:.1e} on average,"
              f" by {row['mismatch/logprob_abs_diff_max']:.1e} at most")  # fmt: skip
        assert row["mismatch/logprob_abs_diff_max"] < 1e-3
