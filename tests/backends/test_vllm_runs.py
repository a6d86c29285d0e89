"""Whole runs whose responses come from vLLM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

pytest.importorskip("vllm")

from end_to_end import launch
from engines.rollouts import make_request, reference_logprobs, save_random_model, small_llama
from tailrace.config.data_settings import DataSettings
from tailrace.core.commands import Accumulate
from tailrace.core.events import WeightsPublished
from tailrace.data.models import resolve_model
from tailrace.data.prompts import PromptSet
from tailrace.data.tokenizer import load_tokenizer
from tailrace.observe.journal import journal_file
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.segment import ResponsePayload, Tokens
from tailrace.trainer.checkpoints.export import export

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM for GPUs does not compute on the CPU")

REWARD = """
def shortness(prompts, completions, completion_ids, **columns):
    return [1 / len(ids) for ids in completion_ids]
"""

SAME = 1e-3
"""Log-probs of the same weights differ by less than this."""


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


def train(folder: Path, model: Path, asked: dict[str, Any]) -> Path:
    """Take four steps, check what holds under every schedule, and return the directory of the run."""
    (folder / "rewards.py").write_text(REWARD)
    run = launch.train_well(
        folder / "run",
        model__path=model,
        model__device="cpu",
        rollout__engine="vllm",
        reward__functions=f"{folder / 'rewards.py'}:shortness",
        **asked,
    )
    rows = steps(run.output)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["actor/grad_norm"] > 0 for row in rows)
    assert all(row["staleness/violations"] == 0 for row in rows)
    # These metrics are about tokens that were written by the version being trained.
    assert all(row.get("mismatch/logprob_abs_diff_max", 0.0) < SAME for row in rows)
    return run.output


LORA = {"model__lora_rank": 4, "trainer__learning_rate": 0.02}


@pytest.mark.parametrize(
    "asked",
    [
        {"schedule__preset": "sync", **LORA},
        {"schedule__preset": "sync", **LORA, "trainer__num_ranks": 2},
        {"schedule__preset": "active-partial"},
        {"schedule__preset": "staleflow", "rollout__num_instances": 2},
        {
            "schedule__preset": "sync",
            "trainer__num_ranks": 2,
            "trainer__weight_channel": "collective",
            "rollout__tensor_parallel_size": 2,
        },
    ],
    ids=["sync with LoRA", "sync with LoRA on two ranks", "active-partial", "staleflow", "two ranks to two ranks"],
)
def test_a_run_takes_its_steps_with_weights_and_responses_that_fit(
    asked: dict[str, Any], small_model: Path, tmp_path: Path
) -> None:
    rows = steps(train(tmp_path, small_model, asked))
    if asked["schedule__preset"] == "sync":
        assert all("mismatch/logprob_abs_diff_max" in row for row in rows)


TWO_RANKS = {
    "trainer__num_ranks": 2,
    "trainer__learning_rate": 0.01,
    # Rollout is faster than training, so a batch may be ready when a step ends, and neither waits for evaluations.
    "trainer__max_tokens_per_gpu": 32,
    "rollout__max_response_length": 8,
    "schedule__rollout_batch_size": 16,
    "eval": "[]",
    "eval_interval": "null",
}
OVERLAPPING = {"schedule__preset": "one-step", "save_interval": "null", "keep_rollouts": True}
REPLAYED = {"schedule__preset": "sync", "save_interval": 1, "keep_checkpoints": 4, "rollout__engine": "native"}


def test_two_ranks_of_an_overlapping_schedule_publish_the_weights_of_each_version(
    small_model: Path, tmp_path: Path
) -> None:
    """Most responses are a version old when they are trained, and the run's own metrics leave those out. Here the run
    is repeated with the same responses and a checkpoint after each step. Each response is scored again with the weights
    of the version that it names, and with the version before."""
    run = train(tmp_path, small_model, TWO_RANKS | OVERLAPPING)
    assert max(row["staleness/max"] for row in steps(run)) == 1
    print("published while the next step was computed:", published_beside_training(run) or "none, this time")
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in versions(run, small_model, tmp_path)]
    written = responses_by_version(run)
    assert min(written) == 0
    assert max(written) >= 2
    assert all(largest_gap(models[version], found) < SAME for version, found in written.items())
    assert all(largest_gap(models[version - 1], found) > 10 * SAME for version, found in written.items() if version)


def published_beside_training(run: Path) -> set[int]:
    """Versions whose next step was commanded before they were published."""
    training: set[int] = set()
    found: set[int] = set()
    for _, entry in journal_file.read(run / "journal.jsonl"):
        if isinstance(entry.event, WeightsPublished) and entry.event.version in training:
            found.add(entry.event.version)
        training |= {command.version for command in entry.commands if isinstance(command, Accumulate)}
    return found


def versions(run: Path, model: Path, folder: Path) -> list[Path]:
    """Models of versions 0 to 3, trained again from the responses of the run."""
    rewards = f"{folder / 'rewards.py'}:shortness"
    given = TWO_RANKS | REPLAYED | {"rollout__from_run": run, "reward__functions": rewards}
    again = launch.train_well(folder / "again", model__path=model, model__device="cpu", **given).output
    grad_norms = [[row["actor/grad_norm"] for row in steps(output)] for output in (run, again)]
    assert grad_norms[0] == pytest.approx(grad_norms[1], rel=1e-4)
    for step in (1, 2, 3):
        export(again / "checkpoints" / f"step_{step}", folder / f"version_{step}", base=None)
    return [model, *(folder / f"version_{step}" for step in (1, 2, 3))]


def responses_by_version(run: Path) -> dict[int, list[tuple[Tokens, ResponsePayload]]]:
    """Training responses with their prompts, by the version that wrote them."""
    tokenizer = load_tokenizer(resolve_model("tiny-arith"))
    prompts = PromptSet.load("train", "builtin:arith-train", tokenizer, DataSettings())
    written: dict[int, list[tuple[Tokens, ResponsePayload]]] = {}
    with PayloadReader.open(run / "payload") as payload:
        for response_id in payload.held():
            if response_id.group.source == "train":
                response = payload.response(response_id)
                ((version, _),) = response.versions
                written.setdefault(version, []).append((prompts[response_id.group.prompt].tokens, response))
    return written


def largest_gap(model: PreTrainedModel, found: list[tuple[Tokens, ResponsePayload]]) -> float:
    """Largest difference between the log-probs of vLLM and those of the model."""
    return max(
        float(
            np.abs(response.behaviour_logprobs - reference_logprobs(model, make_request(prompt=prompt), response)).max()
        )
        for prompt, response in found
    )


def test_two_steps_of_a_real_language_model_agree_with_the_trainer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "train", "smollm2-cpu-smoke", "--rollout.engine", "vllm"]
    threads = ["--rollout.threads", "1", "--trainer.threads", "1"]
    subprocess.run([*command, *threads, "--output_dir", str(tmp_path / "run")], check=True, timeout=600)
    rows = steps(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        print(f"step {row['step']}: log-probs differ by {row['mismatch/logprob_abs_diff']:.1e} on average,"
              f" by {row['mismatch/logprob_abs_diff_max']:.1e} at most")  # fmt: skip
        assert row["mismatch/logprob_abs_diff_max"] < SAME
