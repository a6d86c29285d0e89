"""Adapters: only they learn, the engine follows them, PEFT reads them, and they go on from a checkpoint exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from engines.rollouts import generate, largest_gap, make_request
from tailrace.algorithms.kl import k3
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits
from tailrace.trainer.batch import Sample
from tailrace.trainer.checkpoints.export import export, find_checkpoint
from tailrace.trainer.model import lora
from tailrace.trainer.trainer import Trainer
from trainer.probes import reference_logprobs

MakeTrainer = Callable[..., Trainer]
MakeGroups = Callable[..., list[list[Sample]]]
FAST = TrainerSettings(learning_rate=0.05)
"""So fast that two steps make another model of it."""
TOKENS = torch.arange(2, 30)[None]


@pytest.fixture
def trained(make_trainer: MakeTrainer, make_groups: MakeGroups) -> Trainer:
    trainer = make_trainer(settings=FAST, lora_rank=4)
    for step in range(2):
        trainer.train(make_groups(step, version=step))
    return trainer


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=TOKENS).logits


def load(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def test_only_the_adapter_learns(trained: Trainer, model_path: Path) -> None:
    start = load(model_path).state_dict()
    state = {name.replace(".base_layer", ""): tensor for name, tensor in trained.model.state_dict().items()}
    assert all(torch.equal(state[name], tensor) for name, tensor in start.items())
    deltas = [tensor for name, tensor in state.items() if "lora_B" in name]
    assert len(deltas) == 14  # seven projections in each of two layers
    assert all(tensor.abs().max() > 0.01 for tensor in deltas)


def test_lora_alpha_scales_what_the_adapter_adds(make_trainer: MakeTrainer, model_path: Path) -> None:
    start, changes = load(model_path).state_dict(), []
    for alpha in (8, 16):
        trainer = make_trainer(lora_rank=4, lora_alpha=alpha)
        adapters = {name: tensor for name, tensor in trainer.model.state_dict().items() if "lora_" in name}
        for number, tensor in enumerate(adapters.values()):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
        name = "model.layers.0.mlp.up_proj.weight"
        changes.append(dict(trainer.named_weights())[name] - start[name])
    torch.testing.assert_close(changes[1], 2 * changes[0], rtol=0, atol=1e-4)


def test_the_engine_gets_the_same_names_and_shapes_as_without_an_adapter(make_trainer: MakeTrainer) -> None:
    plain, adapted = make_trainer(), make_trainer(lora_rank=4)
    for (name, tensor), (same_name, same) in zip(plain.named_weights(), adapted.named_weights(), strict=True):
        assert (name, tensor.shape, tensor.dtype) == (same_name, same.shape, same.dtype)
        assert torch.equal(tensor, same), "a new adapter changes nothing"


def test_the_engine_samples_from_the_adapted_model(trained: Trainer, model_path: Path) -> None:
    engine = NativeEngine(model_path, seed=3, limits=EngineLimits(max_running=8, max_length=60))
    requests = [make_request(index, budget=20, forced_length=20) for index in range(8)]
    assert largest_gap(trained.model, requests, generate(engine, requests)) > 0.1, "the model has moved"
    engine.pull([dict(trained.named_weights())], Version(2))
    assert largest_gap(trained.model, requests, generate(engine, requests)) < 1e-4


def test_with_the_adapter_off_the_model_is_the_starting_model(trained: Trainer, model_path: Path) -> None:
    adapted, start = logits(trained.model), logits(load(model_path))
    with trained.adapter.off():
        assert torch.equal(logits(trained.model), start)
    assert torch.equal(logits(trained.model), adapted)
    assert (adapted - start).abs().max() > 0.1


def test_the_kl_term_is_to_the_starting_model(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer, start = (
        make_trainer(settings=FAST, algorithm=AlgorithmSettings(kl_loss_coef=0.1), lora_rank=rank) for rank in (4, 0)
    )
    assert trainer.train(make_groups(0)).metrics["actor/kl_loss"] == 0.0
    groups = make_groups(1, version=1)
    samples = [sample for group in groups for sample in group]
    mask = torch.cat([torch.from_numpy(sample.response.mask) for sample in samples]).bool()
    policy, reference = (torch.cat([reference_logprobs(t, s).detach() for s in samples]) for t in (trainer, start))
    expected = k3(policy[None], reference[None])[0][mask].mean()
    assert expected > 0.01
    assert trainer.train(groups).metrics["actor/kl_loss"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("algorithm", [{"kl_loss_coef": 0.01}, {"advantage_estimator": "gae"}])
def test_training_on_from_a_checkpoint_equals_never_having_stopped(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path, algorithm: dict[str, object]
) -> None:
    settings = {"settings": FAST, "algorithm": AlgorithmSettings.model_validate(algorithm), "lora_rank": 4}
    whole, second = make_trainer(**settings), make_trainer(**settings)
    whole.train(make_groups(0))
    whole.save(tmp_path / "step")
    expected = whole.train(make_groups(1, version=1)).metrics
    second.load(tmp_path / "step")
    assert second.train(make_groups(1, version=1)).metrics == expected
    for (name, mine), (_, theirs) in zip(second.named_weights(), whole.named_weights(), strict=True):
        assert torch.equal(mine, theirs), name


def test_where_the_policy_learns_by_an_adapter_so_does_the_critic(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(algorithm=AlgorithmSettings(advantage_estimator="gae"), lora_rank=4)
    trainer.save(tmp_path / "step")
    names = load_file(tmp_path / "step" / "critic.safetensors").keys()
    assert "head.weight" in names
    assert all("lora_" in name for name in names - {"head.weight"})


def test_peft_reads_a_checkpoint_and_it_equals_the_merged_export(
    trained: Trainer, model_path: Path, tmp_path: Path
) -> None:
    trained.save(tmp_path / "step")
    assert Path(lora.base_of(tmp_path / "step") or "") == model_path.resolve()
    adapted = PeftModel.from_pretrained(load(model_path), tmp_path / "step")
    assert torch.equal(logits(adapted), logits(trained.model))
    export(tmp_path / "step", tmp_path / "model", base=model_path)
    torch.testing.assert_close(logits(load(tmp_path / "model")), logits(adapted), atol=1e-4, rtol=0)
    merged = load(tmp_path / "model").state_dict()
    for name, tensor in trained.named_weights():
        assert torch.equal(merged[name], tensor), name


def test_a_checkpoint_of_all_weights_is_exported_as_it_is(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.save(tmp_path / "step")
    export(find_checkpoint(tmp_path / "step"), tmp_path / "model", base=None)
    assert torch.equal(logits(load(tmp_path / "model")), logits(trainer.model))
    assert not [path.name for path in (tmp_path / "model").iterdir() if "trainer" in path.name]
    with pytest.raises(ValueError, match="is not empty"):
        export(tmp_path / "step", tmp_path / "model", base=None)
    with pytest.raises(ValueError, match="neither a run with a checkpoint nor a checkpoint"):
        find_checkpoint(tmp_path / "model")


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("q_proj", "query"), "'query' is no layer of this model; its linear layers are down_proj, gate_proj"),
        ("embed_tokens", "'embed_tokens' is not a linear layer"),
        ("lm_head", "'lm_head' shares its weights with the input embedding"),
        (("all-linear", "q_proj"), "'all-linear' is no layer of this model; .* alone"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_refused(model_path: Path, targets: object, words: str) -> None:
    settings = {"path": str(model_path), "lora_rank": 4, "lora_target_modules": targets}
    with pytest.raises(ValueError, match=f"lora_target_modules: {words}"):
        lora.check(ModelSettings.model_validate(settings), model_path)


def test_a_head_of_its_own_can_be_adapted(make_groups: MakeGroups, untied_model_path: Path, model_path: Path) -> None:
    model = ModelSettings(
        path=str(untied_model_path), device="cpu", lora_rank=2, lora_target_modules=("lm_head", "v_proj")
    )
    lora.check(model, untied_model_path)
    trainer = Trainer(
        untied_model_path,
        model=model,
        settings=FAST,
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_steps=2,
        seed=0,
    )
    trainer.train(make_groups())
    start = load(untied_model_path).state_dict()
    changed = {name.split(".")[-2] for name, tensor in trainer.named_weights() if not torch.equal(tensor, start[name])}
    assert changed == {"lm_head", "v_proj"}
