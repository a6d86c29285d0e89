"""Data in the formats of other systems, rewards in their signatures and settings in their words, in real runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from end_to_end import launch
from end_to_end.launch import Run
from formats.systems import SYSTEMS
from tailrace.data.models import resolve_model

pytestmark = pytest.mark.slow

REWARDS = """
from trl.rewards import get_soft_overlong_punishment

trl_overlong = get_soft_overlong_punishment(max_completion_len=32, soft_punish_cache=32)

def is_right(response, answer):
    return response.rpartition("####")[2].strip() == answer

def is_the_answer(answer, question):
    left, right = question.removeprefix("<s>").removesuffix("=").split("+")
    return int(answer) == int(left) + int(right)

def verl_score(data_source, solution_str, ground_truth, extra_info=None):
    assert 3 <= int(ground_truth) <= 20 and data_source
    return {"score": 1 + is_right(solution_str, ground_truth), "num_seen": 1}

def areal_score(prompt, completions, prompt_ids, completion_ids, answer, **columns):
    assert is_the_answer(answer, prompt) and len(prompt_ids) > len(answer) and completion_ids
    return 3 + is_right(completions, answer)

async def slime_score(args, sample, **kwargs):
    assert is_the_answer(sample.label, sample.prompt) and sample.response_length < len(sample.tokens)
    return 5 + is_right(sample.response, sample.label)
"""
SCORED_BY = {
    "verl": "verl_score", "skyrl": "verl_score", "roll": "verl_score",
    "areal": "areal_score", "nemo_rl": "areal_score", "prime_rl": "areal_score",
    "slime": "slime_score", "openrlhf": "slime_score",
    "trl": "trl_overlong",
}  # fmt: skip
"""The reward of each system's file. That of TRL is TRL's own, beside its accuracy_reward."""
RANGES = {"verl_score": (1, 2), "areal_score": (3, 4), "slime_score": (5, 6), "trl_overlong": (-1, -1 / 32)}
"""No two overlap, and a reward that fails counts 0: a mean says which function scored."""
TEMPLATE = "<s>{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One step on nine files, each in the format of one system, a group from each."""
    for package in ("datasets", "math_verify", "pyarrow", "trl"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("nine")
    (folder / "rewards.py").write_text(REWARDS)
    functions = ["trl.rewards:accuracy_reward", *(f"{folder / 'rewards.py'}:{name}" for name in RANGES)]
    return launch.train_well(
        folder / "run",
        model__path=with_template(folder / "model"),
        data__sources=json.dumps([source(number, folder) for number in range(len(SYSTEMS))]),
        reward__functions=json.dumps(functions),
        reward__workers=1,
        schedule__rollout_batch_size=len(SYSTEMS),
        schedule__max_steps=1,
        rollout__n_samples_per_prompt=2,
        rollout__max_response_length=32,
        eval="[]",
        eval_interval="null",
    )


def with_template(directory: Path) -> Path:
    """tiny-arith, able to read chats."""
    shutil.copytree(resolve_model("tiny-arith"), directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return directory


def source(number: int, folder: Path) -> dict[str, Any]:
    system = SYSTEMS[number]
    questions = [(f"{number + 1}+{n}=", str(number + 1 + n)) for n in (2, 11)]
    rewards = ["accuracy_reward", "trl_overlong"] if system.name == "trl" else [SCORED_BY[system.name]]
    return {"name": system.name, "path": system.write(folder, questions), "weight": 1, "reward": rewards}


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_file_in_each_format_is_read_and_scored_by_its_own_reward(nine: Run, system: Any) -> None:
    assert f"{system.name}: 2 prompts from " in nine.said
    assert f"{system.name}: {system.note}" in nine.said
    (row,) = launch.untimed_metrics(nine.output)
    low, high = RANGES[SCORED_BY[system.name]]
    assert low <= row[f"reward/source/{system.name}/mean"] <= high


def test_every_reward_in_every_signature_scored_what_it_was_asked_to(nine: Run) -> None:
    (row,) = launch.untimed_metrics(nine.output)
    assert [row[f"reward/num_{kind}"] for kind in ("timeout", "crash", "error", "invalid")] == [0] * 4
    assert (row["groups/num"], row["groups/num_samples"]) == (len(SYSTEMS), 2 * len(SYSTEMS))
    assert {"reward/accuracy_reward/score/mean", "reward/verl_score/num_seen/mean"} <= set(row)


def test_a_setting_given_under_two_names_is_refused(tmp_path: Path) -> None:
    result = launch.train(tmp_path / "run", **{"num-rollout": 2})
    assert result.returncode == 2
    assert "schedule.max_steps and num_rollout both set schedule.max_steps; give it once" in result.stderr
    assert not (tmp_path / "run").exists()
