"""A whole run with an adapter: what it writes, what the engine sampled from, and how it goes on after kill -9."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from end_to_end import launch
from tailrace.cli.main import main
from tailrace.data.models import resolve_model
from tailrace.store.checkpoint_files import damage

pytestmark = [pytest.mark.slow, pytest.mark.long]
ADAPTER = "adapter_model.safetensors"
LORA = {
    "rollout__deterministic": True,
    "model__lora_rank": 4,
    "trainer__learning_rate": 0.02,
    "schedule__max_steps": 3,
    "save_interval": 2,
    "eval_interval": "null",
    "rollout__max_response_length": 32,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    output = tmp_path_factory.mktemp("lora") / "run"
    result = launch.train(output, **LORA)
    assert result.returncode == 0, result.stdout + result.stderr
    return output


def test_the_engine_sampled_from_the_adapted_model_at_every_step(whole: Path) -> None:
    rows = launch.untimed_metrics(whole)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["mismatch/logprob_abs_diff_max"] < 1e-4 for row in rows)
    assert any(tensor.abs().max() > 0.01 for name, tensor in _adapter(whole).items() if "lora_B" in name)


def test_the_checkpoint_is_whole_and_holds_the_adapter_alone(whole: Path) -> None:
    checkpoint = whole / "checkpoints" / "latest"
    assert damage(checkpoint) is None
    assert not list(checkpoint.glob("model*"))
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (4, str(resolve_model("tiny-arith").resolve()))


@torch.no_grad()
def test_peft_loads_it_with_the_logits_of_the_merged_export(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["export", str(whole), str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out == f"model: {tmp_path / 'model'}\n"
    adapted = AutoPeftModelForCausalLM.from_pretrained(whole / "checkpoints" / "latest")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    start = AutoModelForCausalLM.from_pretrained(resolve_model("tiny-arith"))
    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")("17+8-5=", return_tensors="pt")
    torch.testing.assert_close(adapted(**tokens).logits, merged(**tokens).logits, atol=1e-4, rtol=0)
    assert (merged(**tokens).logits - start(**tokens).logits).abs().max() > 0.01
    assert main(["export", str(whole), str(tmp_path / "model")]) == 2


def test_a_killed_run_ends_with_the_adapter_of_one_that_was_not(whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **LORA)
    assert not launch.kill_when(process, lambda: (output / "checkpoints" / "step_2").exists())
    result = launch.train(output, **LORA)
    assert result.returncode == 0, result.stdout + result.stderr
    assert launch.final_weights(output, ADAPTER) == launch.final_weights(whole, ADAPTER)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole)


def test_layers_the_model_does_not_have_are_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--output_dir", str(tmp_path / "run"), "--lora_rank", "4", "--lora-target-modules", "[query]"]
    assert main(["train", "quickstart", *flags]) == 2
    assert "model.lora_target_modules: 'query' is no layer of this model" in capsys.readouterr().err


def _adapter(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "checkpoints" / "latest" / ADAPTER)
