"""Runs whose vLLM instances change the number of ranks over which they divide the model, while the run goes on.

Two instances of one rank each start. In round 1 long responses do not fit into their KV caches, so preemptions rise and
an instance of two ranks takes their place. Four rounds without a preemption later they come back.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("vllm")

from end_to_end import launch
from end_to_end.test_lost_instances import worker
from end_to_end.wounds import entries_of
from engines.rollouts import save_random_model, small_llama
from tailrace.config.data_settings import DataSettings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.journal import Entry
from tailrace.data.models import resolve_model
from tailrace.data.prompts import PromptSet
from tailrace.data.tokenizer import load_tokenizer
from tailrace.engines.vllm.layout import engine_layout, model_parameters
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.segment import ResponsePayload, Tokens
from tailrace.weights.sharding.table import volume

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM for GPUs does not compute on the CPU")

NEAR_TIE = 1e-3
"""Where the two largest logits are nearer than this, greedy decoding may go either way."""
REWARD = """
def shortness(prompts, completions, completion_ids, **columns):
    return [1 / len(ids) for ids in completion_ids]
"""
LONG, SHORT = [96, 88, 80, 72], [12, 10, 8, 6]
"""Tokens of the responses to a prompt. A short one and its prompt fit into one block of the KV cache (32 tokens), so
it never needs another one; a long one needs four."""
PROMPTS = [f"{number}+{number % 7}=" for number in range(1, 33)]
GIVEN: dict[str, Any] = {
    "model__device": "cpu",
    "data__shuffle": "false",
    "data__max_prompt_length": 32,
    "rollout__engine": "vllm",
    "rollout__num_instances": 2,
    "rollout__top_k": 1,  # greedy; a run that trains may not have temperature 0
    "rollout__max_response_length": 96,
    "rollout__kv_tokens": 160,  # five blocks
    "schedule__preset": "sync",
    "trainer__learning_rate": 0.01,
    "eval": "[]",
    "eval_interval": "null",
    "save_interval": 1,
    "keep_checkpoints": 9,
    "keep_rollouts": True,
}
CHANGES: dict[str, Any] = {
    "rollout__parallel_sizes": "[1, 2]",
    "schedule__parallelism": "preemptions",
    "schedule__parallel_horizon": "any",
}
LIMIT_S = 400


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings with a random model that has the tokenizer of tiny-arith, a reward and lengths."""
    folder, tiny = tmp_path_factory.mktemp("given"), resolve_model("tiny-arith")
    config = small_llama(head_dim=32, vocab_size=19, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    save_random_model(folder / "model", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder / "model")
    (folder / "rewards.py").write_text(REWARD)
    rows = [LONG if number // 4 == 1 else SHORT for number in range(len(PROMPTS))]
    (folder / "lengths.json").write_text(json.dumps(rows))
    launch.write_rows(folder / "prompts.jsonl", [{"prompt": each, "answer": "0"} for each in PROMPTS])
    return GIVEN | {
        "model__path": folder / "model",
        "data__train": folder / "prompts.jsonl",
        "reward__functions": f"{folder / 'rewards.py'}:shortness",
        "rollout__forced_lengths": folder / "lengths.json",
    }


def finish(output: Path, **asked: Any) -> str:
    """Run to the end, or go on with the run in this directory, and return what it said."""
    result = subprocess.run(launch.command(output, **asked), capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def commands(entries: list[Entry], kind: type[do.Command]) -> Iterator[Any]:
    return (command for entry in entries for command in entry.commands if isinstance(command, kind))


def events(entries: list[Entry], kind: type[ev.Event]) -> Iterator[Any]:
    return (entry.event for entry in entries if isinstance(entry.event, kind))


def trained(run: Path) -> dict[ResponseId, ResponsePayload]:
    with PayloadReader.open(run / "payload") as payload:
        return {each: payload.response(each) for each in payload.held()}


def first_difference(one: Tokens, other: Tokens) -> int | None:
    assert len(one) == len(other), "lengths are given"
    different = np.flatnonzero(one != other)
    return int(different[0]) if len(different) else None


@torch.no_grad()
def top_two(weights: Path, prompt: Tokens, response: Tokens) -> float:
    """How far the two largest logits of the token after these are apart."""
    model = AutoModelForCausalLM.from_pretrained(weights).eval()
    tokens = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
    largest = model(tokens[None]).logits[0, -1].topk(2).values
    return float(largest[0] - largest[1])


def differences(run: Path, fixed: Path, model: Path) -> dict[ResponseId, float]:
    """The responses that differ from those of a run with one size, and how near a tie the first different token was."""
    tokenizer = load_tokenizer(resolve_model("tiny-arith"))
    prompts = PromptSet.load("train", str(model.parent / "prompts.jsonl"), tokenizer, DataSettings())
    mine, theirs = trained(run), trained(fixed)
    assert mine
    assert mine.keys() <= theirs.keys()
    found: dict[ResponseId, float] = {}
    for number, response in mine.items():
        at = first_difference(response.tokens, theirs[number].tokens)
        if at is not None:
            ((version, _),) = response.versions
            weights = fixed / "checkpoints" / f"step_{version}" if version else model
            found[number] = top_two(weights, prompts[number.group.prompt].tokens, response.tokens[:at])
    return found


def num_fetched(run: Path, instance: int) -> set[int]:
    """Bytes that an instance fetched for a version, its ranks together, as it says in its log."""
    text = (run / "logs" / f"rollout-{instance}.log").read_text()
    return {int(each.replace(",", "")) for each in re.findall(r"version \d+: ([\d,]+) bytes were fetched", text)}


def num_held(model: Path, num_ranks: int) -> int:
    """Bytes that this many ranks hold together: what is not divided, each of them."""
    layout = engine_layout(model, model_parameters(model, torch.float32), num_ranks)
    return 4 * sum(volume(piece.box) for holding in layout for piece in holding.pieces)


@pytest.fixture(scope="module")
def fixed(given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with one size, and one instance."""
    output = tmp_path_factory.mktemp("fixed") / "run"
    finish(output, **given | {"schedule__max_steps": 7, "rollout__num_instances": 1})
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert all(row["actor/grad_norm"] > 0 for row in rows), "each step writes with other weights"
    return output


def assert_equal(run: Path, fixed: Path, model: Path) -> None:
    found = differences(run, fixed, model)
    print(f"{len(found)} responses differ, where the two largest logits were {sorted(found.values())} apart")
    assert all(gap < NEAR_TIE for gap in found.values())


def test_a_run_goes_to_two_ranks_and_back_and_writes_what_one_rank_would(
    given: dict[str, Any], fixed: Path, tmp_path: Path
) -> None:
    run, model = tmp_path / "run", given["model__path"]
    said = finish(run, **given, **CHANGES, schedule__max_steps=7)
    assert "instances of another size end, because the engine cannot release its memory here" in said
    entries = entries_of(run)
    assert [each.parallel_size for each in commands(entries, do.OpenRound)] == [1, 1, 2, 2, 2, 2, 1]
    starts = [(each.instance, each.size, each.devices) for each in commands(entries, do.StartInstance)]
    assert starts == [(0, 1, (0,)), (1, 1, (1,)), (2, 2, (0, 1)), (0, 1, (0,)), (1, 1, (1,))]
    assert not list(events(entries, ev.InstanceLost))
    assert [each.instance for each in events(entries, ev.InstanceStopped)].count(2) == 1
    pulled = {(each.instance, each.version) for each in events(entries, ev.WeightsPulled)}
    assert {(2, 2), (2, 3), (2, 4), (2, 5)} <= pulled
    assert pulled & {(0, 6), (1, 6)}, "instances of one rank came back, and took the newest version"
    assert num_fetched(run, 2) == {num_held(model, 2)}, "each rank fetched what it holds, and no more"
    assert num_held(model, 2) < 1.1 * num_held(model, 1)
    assert_equal(run, fixed, model)


def test_a_change_survives_the_new_instance_and_the_controller(
    given: dict[str, Any], fixed: Path, tmp_path: Path
) -> None:
    """Both are killed while the first instance of two ranks starts; then the run is continued."""
    run, asked = tmp_path / "run", given | CHANGES | {"schedule__max_steps": 4}
    process = launch.start(run, **asked)

    def num_started() -> int:
        return sum(each.size == 2 for each in commands(entries_of(run), do.StartInstance))

    launch.wait_until(process, lambda: num_started() == 1)
    launch.wait_until(process, lambda: kill(process, "rollout-2"))
    assert launch.kill_when(process, lambda: num_started() == 2) == []
    finish(run, **asked)
    entries = entries_of(run)
    assert {each.round: each.parallel_size for each in commands(entries, do.OpenRound)} == {0: 1, 1: 1, 2: 2, 3: 2}
    # Beside busy neighbours an instance of one rank may be lost too, because it starts too slowly.
    assert [each.instance for each in events(entries, ev.InstanceLost) if each.instance == 2] == [2]
    assert len(list(events(entries, ev.RunResumed))) == 1
    assert max(each.version for each in events(entries, ev.StepTrained)) == 4
    assert num_fetched(run, 2) == {num_held(given["model__path"], 2)}
    assert_equal(run, fixed, given["model__path"])


def kill(process: subprocess.Popen[bytes], name: str) -> bool:
    """Kill a worker; False if it is not there yet."""
    try:
        worker(process, name).kill()
    except (StopIteration, FileNotFoundError, psutil.NoSuchProcess):
        return False
    return True
