"""A run is continued with another number of training ranks, and a model comes out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end import launch
from end_to_end.test_lost_trainer import GIVEN, entries_of
from tailrace.cli.main import main
from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.observe.prompts.conservation import conservation

pytestmark = [pytest.mark.slow, pytest.mark.long]
RESPONSES_PER_STEP = 16
GATED_REWARD = f"""
import time
from pathlib import Path

calls = 0

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    global calls
    calls += 1
    while calls > {2 * RESPONSES_PER_STEP} and not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return float(len(solution_str) % 2)
"""
"""Two steps can be trained. The rewards of the third wait for a file, so a run cannot end before it is killed."""


def begin_and_kill(output: Path, **given: Any) -> dict[str, Any]:
    """Kill a run whose newest checkpoint is of step 2; its settings, with which it can go on to the end."""
    path = output.parent / "gated.py"
    path.write_text(GATED_REWARD)
    rewards = {"reward__functions": json.dumps([f"{path}:compute_score"]), "reward__timeout_s": 250}
    settings = GIVEN | {"schedule__max_steps": 4, "rollout__max_response_length": 32} | rewards | given
    process = launch.start(output, **settings)
    try:
        assert not launch.kill_when(process, (output / "checkpoints" / "step_2").exists)
    finally:
        process.kill()
        process.wait()
    path.with_name("go").touch()
    return settings


def assert_continued(run: launch.Run, *, before: int, after: int) -> None:
    """The run went on from its checkpoint, and trained every step once."""
    output = run.output
    assert f"trainer.num_ranks is {after}, before {before}" in run.said
    assert json.loads((output / "config.json").read_text())["trainer"]["num_ranks"] == after
    entries = entries_of(output)
    [resumed] = [number for number, entry in enumerate(entries) if isinstance(entry.event, ev.RunResumed)]
    reached = [entry.event.version for entry in entries[resumed:] if isinstance(entry.event, ev.TrainerReached)]
    assert reached[0] == 2
    rows = launch.untimed_metrics(output)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert any(row["actor/grad_norm"] > 0 for row in rows[2:])
    # The weights that the new trainer publishes are those that it scores with.
    assert max(row["mismatch/logprob_abs_diff"] for row in rows) < 1e-3
    assert conservation(entries)["adds_up"]
    assert main(["replay", str(output)]) == 0


def test_a_run_of_two_ranks_is_continued_by_one_but_not_with_another_learning_rate(tmp_path: Path) -> None:
    output = tmp_path / "run"
    settings = begin_and_kill(output, trainer__num_ranks=2)
    assert (output / "checkpoints" / "step_2" / ".metadata").is_file()
    refused = launch.train(output, **settings | {"trainer__learning_rate": 0.5})
    assert refused.returncode == 2
    assert (
        "other settings (trainer.learning_rate); to continue it with these, add --resume with-changes" in refused.stderr
    )
    run = launch.train_well(output, **settings | {"trainer__num_ranks": 1})
    assert_continued(run, before=2, after=1)
    assert (output / "checkpoints" / "latest" / "model.safetensors").is_file()


@torch.no_grad()
def test_an_adapter_that_one_rank_began_and_two_finished_is_exported(tmp_path: Path) -> None:
    output, exported = tmp_path / "run", tmp_path / "model"
    settings = begin_and_kill(output, model__lora_rank=4, trainer__learning_rate=0.02)
    run = launch.train_well(output, **settings | {"trainer__num_ranks": 2})
    assert_continued(run, before=1, after=2)
    assert (output / "checkpoints" / "latest" / ".metadata").is_file()
    assert main(["export", str(output), str(exported)]) == 0
    assert_same_as_trainer(exported, output)


def assert_same_as_trainer(exported: Path, output: Path) -> None:
    """An exported model has the weights with which a trainer of one process would go on."""
    from transformers import AutoModelForCausalLM

    from tailrace.data.models import resolve_model
    from tailrace.trainer.trainer import Trainer

    settings = Settings.model_validate(json.loads((output / "config.json").read_text()))
    base = resolve_model(settings.model.path)
    trainer = Trainer(
        base,
        model=settings.model,
        settings=settings.trainer,
        algorithm=settings.algorithm,
        temperature=settings.rollout.temperature,
        max_steps=4,
        seed=settings.seed,
    )
    trainer.load(output / "checkpoints" / "latest")
    model, start = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (exported, base))
    weights = dict(trainer.named_weights())
    assert any((start[name] - tensor).abs().max() > 1e-3 for name, tensor in weights.items()), "nothing was learned"
    for name, tensor in weights.items():
        assert torch.allclose(model[name], tensor, rtol=0, atol=1e-6), name
