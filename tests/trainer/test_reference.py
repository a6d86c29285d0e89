"""A reference model whose layers lie on the host says the same, bit for bit, as one on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, JambaConfig, LlamaConfig, LlamaForCausalLM

from offload.late_copies import LateCopies
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.load import SettingsError, check
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.offload import layer_offload
from tailrace.runtime.inputs.sources import check_model
from tailrace.trainer.batch import Sample
from tailrace.trainer.model import reference
from tailrace.trainer.model.tree_attention import sees_trees
from tailrace.trainer.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
MakeGroups = Callable[..., list[list[Sample]]]
WITH_KL = AlgorithmSettings(kl_loss_coef=0.1)
NUM_LAYERS = 4
PLAIN = TrainerSettings(learning_rate=1e-2, max_tokens_per_gpu=64)
ON_HOST = PLAIN.model_copy(update={"reference_device": "cpu"})


def copies_between_two_memories(monkeypatch: pytest.MonkeyPatch) -> list[LateCopies]:
    """Let layers be copied as on a GPU, as late as a GPU may."""
    made: list[LateCopies] = []

    def copies_to(device: torch.device) -> LateCopies:
        made.append(LateCopies(is_late=True))
        return made[-1]

    monkeypatch.setattr(layer_offload, "copies_to", copies_to)
    return made


@pytest.mark.parametrize("has_two_memories", [False, True])
@pytest.mark.parametrize("kind", ["trees", "rows"])
def test_steps_with_a_reference_on_the_host_are_the_same_bit_for_bit(
    make_trainer: MakeTrainer,
    make_groups: MakeGroups,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    has_two_memories: bool,
) -> None:
    path = write_model(tmp_path, sees_trees=kind == "trees")
    plain = make_trainer(algorithm=WITH_KL, settings=PLAIN, path=path)
    copies = copies_between_two_memories(monkeypatch) if has_two_memories else []
    on_host = make_trainer(algorithm=WITH_KL, settings=ON_HOST, path=path)
    assert on_host.reference_model is not None
    assert sees_trees(on_host.reference_model) == sees_trees(on_host.model) == (kind == "trees")
    for step in range(3):
        groups = make_groups(step, version=step)
        expected = plain.train(groups).metrics
        assert expected["actor/kl_loss"] > 0 or not step
        assert on_host.train(groups).metrics == expected
    for mine, theirs in zip(on_host.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert len(copies) == has_two_memories
    for each in copies:
        assert each.on_device == [], "no layer is resident"
        assert each.num_copies > 2 * 3 * NUM_LAYERS, "several micro-batches in each of three steps"


def write_model(folder: Path, *, sees_trees: bool) -> Path:
    """A model with more layers than there are buffers. With sliding windows its attention is not replaced, so it is
    called with whole rows."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    if not sees_trees:
        config.layer_types = ["sliding_attention"] * NUM_LAYERS
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_the_reference_stays_in_fp32_and_as_it_was(
    make_trainer: MakeTrainer, make_groups: MakeGroups, model_path: Path
) -> None:
    start = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).state_dict()
    trainer = make_trainer(algorithm=WITH_KL, settings=ON_HOST)
    trainer.train(make_groups(0))
    assert trainer.reference_model is not None
    found = trainer.reference_model.state_dict()
    assert all(
        torch.equal(found[name], weight) and found[name].dtype == torch.float32 for name, weight in start.items()
    )
    assert not any(parameter.requires_grad for parameter in trainer.reference_model.parameters())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, r"trainer\.reference_device is given but algorithm\.kl_loss_coef is 0"),
        (
            {"algorithm": {"kl_loss_coef": 0.1}, "model": {"lora_rank": 8}},
            r"trainer\.reference_device is given with model\.lora_rank",
        ),
    ],
)
def test_a_place_for_a_reference_that_there_is_not_is_refused(asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        check({**asked, "trainer": {"reference_device": "cpu"}})


def test_whole_gradients_on_every_rank_cannot_wait_on_the_host() -> None:
    asked = {"gradients_device": "cpu", "reduce_gradients": "last"}
    check({"trainer": asked})  # one rank has nothing to put off
    with pytest.raises(SettingsError, match="so gradients cannot wait on the host; leave out reduce_gradients"):
        check({"trainer": asked | {"num_ranks": 2}})


def test_a_model_whose_layers_differ_is_refused_before_its_weights_are_read(tmp_path: Path, model_path: Path) -> None:
    settings = check(
        {
            "model": {"path": str(tmp_path), "device": "cpu"},
            "algorithm": {"kl_loss_coef": 0.1},
            "trainer": {"reference_device": "cpu"},
        }
    )
    reference.check(settings, model_path)
    check_model(settings, model_path)
    # Some of its layers attend, the others are state spaces.
    JambaConfig(num_hidden_layers=2, attn_layer_period=2, attn_layer_offset=1).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"trainer\.reference_device is 'cpu', but the layers of JambaForCausalLM differ"
    ):
        reference.check(settings, tmp_path)
    reference.check(check({"model": {"path": str(tmp_path)}}), tmp_path)
