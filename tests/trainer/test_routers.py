"""Experts of a mixture in training: compared with those of the rollout, and replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.model.routers import Routers
from tailrace.trainer.trainer import Trainer
from trainer.mixtures import as_generated, disturb_routers, routers, score, with_prompt, with_routing, write_mixture
from trainer.probes import gradient

MakeGroups = Callable[..., list[list[Sample]]]
MakeTrainer = Callable[..., Trainer]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def one_expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token goes to one expert, whose weight is 1: what the router thinks matters only through its choice."""
    return write_mixture(tmp_path_factory.mktemp("one_expert"), num_experts_per_tok=1)


@pytest.fixture
def groups(make_groups: MakeGroups, mixture: Path) -> list[list[Sample]]:
    return as_generated(mixture, make_groups(num_groups=3))


def settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings(learning_rate=1e-3, **changes)


def test_with_the_same_weights_all_choices_agree(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    found = make_trainer(path=mixture).train(groups).metrics
    assert found["mismatch/router_agreement"] == found["mismatch/router_overlap"] == found["mismatch/router_known"] == 1
    assert found["mismatch/logprob_abs_diff_max"] < 1e-5
    assert "mismatch/router_replayed_tokens" not in found


def test_one_expert_of_two_that_differs_is_half_an_overlap_and_no_agreement(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    def change(routing: np.ndarray) -> np.ndarray:
        changed = routing.copy()
        for experts in changed[:, 0]:  # in the first of two layers
            experts[0] = next(other for other in range(8) if other not in experts)
        return changed

    found = make_trainer(path=mixture).train(with_routing(groups, change)).metrics
    assert found["mismatch/router_agreement"] == 0.5
    assert found["mismatch/router_overlap"] == 0.75


def test_disturbed_routers_disagree_and_replay_restores_the_log_probs(
    make_trainer: MakeTrainer, make_groups: MakeGroups, one_expert: Path
) -> None:
    # With prompts of one token every position has the experts of the rollout.
    groups = as_generated(one_expert, with_prompt(make_groups(num_groups=3), 1))
    found = {}
    for replays in (False, True):
        trainer = make_trainer(path=one_expert, settings=settings(replay_routing=replays))
        disturb_routers(trainer.model)
        found[replays] = trainer.train(groups).metrics
    for metrics in found.values():
        assert metrics["mismatch/router_agreement"] < 0.6
    assert found[False]["mismatch/logprob_abs_diff"] > 0.1
    assert found[True]["mismatch/logprob_abs_diff_max"] < 1e-5
    assert found[True]["mismatch/router_replayed_tokens"] == sum(
        len(sample.response) for group in groups for sample in group
    )


def test_replay_gives_every_router_a_gradient(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    trainer = make_trainer(path=mixture, settings=settings(replay_routing=True))
    disturb_routers(trainer.model)
    trainer.accumulate(groups)
    assert [float(router.weight.grad.abs().max()) > 0 for router in routers(trainer.model)] == [True, True]


def test_replaying_what_the_model_would_choose_changes_nothing(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    found = []
    for replays in (False, True):
        trainer = make_trainer(path=mixture, settings=settings(replay_routing=replays))
        trainer.accumulate(groups)
        found.append(gradient(trainer.model))
    assert torch.allclose(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_tokens", [30, 4096])
def test_recomputed_layers_replay_what_the_forward_pass_replayed(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]], max_tokens: int
) -> None:
    found = []
    for recomputes in (False, True):
        asked = settings(replay_routing=True, gradient_checkpointing=recomputes, max_tokens_per_gpu=max_tokens)
        trainer = make_trainer(path=mixture, settings=asked)
        disturb_routers(trainer.model)
        trainer.accumulate(groups)
        found.append(gradient(trainer.model))
    assert torch.allclose(*found, rtol=1e-4, atol=1e-6)
    own = make_trainer(path=mixture, settings=settings(gradient_checkpointing=True))
    disturb_routers(own.model)
    own.accumulate(groups)
    assert not torch.allclose(gradient(own.model), found[0], rtol=1e-2, atol=1e-4)


def test_a_shared_prefix_is_replayed_as_each_response_alone_is(
    make_trainer: MakeTrainer, mixture: Path, make_groups: MakeGroups
) -> None:
    [first, *_], *_ = make_groups(num_groups=1)
    tokens = first.response.tokens
    continued = dataclasses.replace(first.response, tokens=np.concatenate([tokens[:-1], 31 - tokens[-1:]]))
    second = dataclasses.replace(first, response=continued)
    pair = as_generated(mixture, [[first, second]])[0]
    trainer = make_trainer(path=mixture, settings=settings(replay_routing=True))
    disturb_routers(trainer.model)
    together = trainer.forward(pair)
    for sample, logprobs in zip(pair, together, strict=True):
        np.testing.assert_allclose(logprobs, trainer.forward([sample])[0], atol=1e-5)


def test_for_tokens_of_unknown_routing_the_model_chooses(
    make_trainer: MakeTrainer, one_expert: Path, make_groups: MakeGroups
) -> None:
    groups = as_generated(one_expert, make_groups(num_groups=2))
    trainer = make_trainer(path=one_expert, settings=settings(replay_routing=True))
    disturb_routers(trainer.model)
    same = make_trainer(path=one_expert).model
    disturb_routers(same)
    samples = [sample for group in with_routing(groups, lambda routing: np.full_like(routing, -1)) for sample in group]
    for sample, logprobs in zip(samples, trainer.forward(samples), strict=True):
        np.testing.assert_allclose(logprobs, score(same, sample)[0], atol=1e-4)

    def first_half(routing: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(routing))[:, None, None] < len(routing) / 2, routing, -1).astype(np.int16)

    found = make_trainer(path=one_expert).train(with_routing(groups, first_half)).metrics
    assert 0.4 < found["mismatch/router_known"] < 0.7
    assert found["mismatch/router_agreement"] == 1


def test_tokens_of_other_weights_are_replayed_but_not_compared(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    old = [
        [
            dataclasses.replace(
                sample,
                response=dataclasses.replace(sample.response, versions=((Version(-1), len(sample.response)),)),
            )
            for sample in group
        ]
        for group in groups
    ]
    found = make_trainer(path=mixture, settings=settings(replay_routing=True)).train(old).metrics
    assert "mismatch/router_agreement" not in found
    assert found["mismatch/router_known"] == 1
    assert found["mismatch/router_replayed_tokens"] > 0


@pytest.mark.filterwarnings("ignore:The following .* keys did not match")  # of PEFT, about the experts
def test_the_reference_of_an_adapter_chooses_its_own_experts(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    pytest.importorskip("peft")
    found = []
    for routed in (groups, with_routing(groups, lambda routing: (routing + 1) % 8)):
        trainer = make_trainer(
            path=mixture,
            lora_rank=2,
            settings=settings(replay_routing=True),
            algorithm=AlgorithmSettings(kl_loss_coef=0.1),
        )
        found.append(trainer.train(routed).metrics["actor/kl_loss"])
    assert found[0] == pytest.approx(0.0, abs=1e-6)  # the adapter begins as nothing
    assert found[1] > 1e-3


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2_moe", {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}),
        ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 8, "norm_topk_prob": False}),
        ("olmoe", {"num_experts": 4}),
        ("mixtral", {"num_local_experts": 4}),
    ],
)
def test_families_whose_routers_can_be_replayed(family: str, changes: dict[str, Any]) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts_per_tok": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **heads, **changes))
    disturb_routers(model)
    Routers(model, sees_trees=True, replays=True)


class SigmoidTopKRouter(torch.nn.Module):
    """Weighs its experts in a way that replay does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 8))

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = states @ self.weight.T
        return logits, *logits.sigmoid().topk(2, dim=-1)


def test_routers_that_weigh_experts_in_another_way_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match="the routers of Sequential cannot be replayed, they use no softmax"):
        Routers(torch.nn.Sequential(SigmoidTopKRouter()), sees_trees=True, replays=True)
    with pytest.raises(ValueError, match="the attention of Sequential cannot be replaced"):
        Routers(torch.nn.Sequential(SigmoidTopKRouter()), sees_trees=False, replays=True)


def test_a_model_without_routers_cannot_replay(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="LlamaForCausalLM has no router that can be replayed"):
        make_trainer(settings=settings(replay_routing=True))


def test_experts_of_another_model_are_refused(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    fewer = with_routing(groups, lambda routing: routing[:, :1])
    with pytest.raises(ValueError, match="the experts of 1 layers, but the model has 2 layers with a router"):
        make_trainer(path=mixture).train(fewer)


def test_without_routing_nothing_is_said_about_routers(
    make_trainer: MakeTrainer, mixture: Path, groups: list[list[Sample]]
) -> None:
    found = make_trainer(path=mixture).train(with_routing(groups, lambda routing: None)).metrics
    assert not [name for name in found if "router" in name]
