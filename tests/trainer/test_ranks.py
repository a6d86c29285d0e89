"""Several processes train as one: the same gradients, steps, metrics and log-probs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM, PhiForCausalLM

from tailrace.config.model_settings import ModelSettings
from tailrace.store.checksums import changed_files
from tailrace.trainer.checkpoints.export import export
from tailrace.trainer.model import lora
from tailrace.trainer.ranks.ranks import Alone, divide
from tailrace.trainer.trainer import Trainer
from trainer.mixtures import as_generated, with_routing, write_mixture
from trainer.rank_process import Found
from trainer.rank_scenarios import (
    ACCUMULATED,
    STEP,
    TWO_STEPS,
    Actions,
    Scenarios,
    assert_same,
    given,
    in_half_precision,
    with_trainer,
)

LORA = ModelSettings(device="cpu", lora_rank=4)


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_train_as_one_process_does(
    scenarios: Scenarios, model_path: Path, untied_model_path: Path, tmp_path: Path
) -> None:
    gradient: Actions = [*ACCUMULATED, ("gradient",), STEP, ("weights",)]
    scenarios.add("gradient", model_path, gradient)
    scenarios.add("untied", untied_model_path, gradient)
    scenarios.add("put off", model_path, TWO_STEPS, with_trainer(reduce_gradients="last"))
    scenarios.add("optimizer on the host", model_path, TWO_STEPS, with_trainer(optimizer_device="cpu"))
    scenarios.add("gradients on the host", model_path, TWO_STEPS, with_trainer(gradients_device="cpu"))
    on_host: dict[str, Any] = {"gradients_device": "cpu", "optimizer_device": "cpu"}
    scenarios.add("both on the host", model_path, TWO_STEPS, with_trainer(**on_host))
    scenarios.add("critic", model_path, TWO_STEPS, given(advantage_estimator="gae"))
    scenarios.add(
        "critic on the host", model_path, TWO_STEPS, with_trainer(given(advantage_estimator="gae"), **on_host)
    )
    scenarios.add("reference", model_path, TWO_STEPS, given(kl_loss_coef=0.1))
    reference = with_trainer(given(kl_loss_coef=0.1), reference_device="cpu")
    scenarios.add("reference on the host", model_path, TWO_STEPS, reference)
    scenarios.add("adapter on the host", model_path, TWO_STEPS, with_trainer(**on_host) | {"model": LORA})
    scenarios.add("adapter", model_path, TWO_STEPS, given(kl_loss_coef=0.1) | {"model": LORA})
    scenarios.add("overlong", model_path, TWO_STEPS, given(overlong={"filter_truncated": True}))
    dropped: Actions = [("accumulate", 1, None), ("drop_step",), *TWO_STEPS]
    scenarios.add("put off, then dropped", model_path, dropped, with_trainer(reduce_gradients="last"))
    halves = in_half_precision(model_path, tmp_path / "halves")
    scenarios.add("files in bfloat16", halves, TWO_STEPS, given(advantage_estimator="gae", kl_loss_coef=0.1))
    scenarios.add("adapter above bfloat16", halves, TWO_STEPS, given() | {"model": LORA})
    for name, found in scenarios.together(num_shards=2).items():
        alone = scenarios.alone(name)
        for each in found:
            assert_same(alone, each)
        assert [each.num_rows for each in found] == [16, 16], name


@pytest.mark.slow
@pytest.mark.long
def test_weights_that_are_published_beside_a_step_are_those_before_it(scenarios: Scenarios, model_path: Path) -> None:
    def actions(*, is_whole: bool) -> Actions:
        return [*ACCUMULATED, STEP, ("publish", 0, is_whole), ("accumulate", 1, None), STEP, ("weights",)]

    scenarios.add("plain", model_path, actions(is_whole=True))
    scenarios.add("adapter", model_path, actions(is_whole=True), given() | {"model": LORA})
    scenarios.add("parts", model_path, actions(is_whole=False))
    for name, found in scenarios.together(num_shards=2).items():
        alone = scenarios.alone(name)
        for each in found:
            before, published, after = each.weights
            assert list(published) == list(before)
            for key, tensor in before.items():
                assert torch.equal(published[key], tensor), (name, key)
            assert_same(
                Found(metrics=alone.metrics, weights=alone.weights[2:]), Found(metrics=each.metrics, weights=[after])
            )


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_replay_the_experts_of_the_rollout_as_one_process_does(make_groups: Any, tmp_path: Path) -> None:
    path = write_mixture(tmp_path / "mixture")
    # Experts that the model would not choose: without replay the gradient would be another.
    groups = with_routing(as_generated(path, make_groups(3, num_groups=6)), lambda routing: (routing + 1) % 8)
    scenarios = Scenarios(tmp_path, [groups[:4], groups[4:]])
    settings = given()
    for name, changes in {"plain": {}, "replay": {}, "recomputed": {"gradient_checkpointing": True}}.items():
        asked = settings["settings"].model_copy(update={"replay_routing": name != "plain"} | changes)
        scenarios.add(name, path, [*ACCUMULATED, ("gradient",), STEP, ("weights",)], settings | {"settings": asked})
    alone = {name: scenarios.alone(name) for name in scenarios.plans}
    assert not torch.allclose(alone["plain"].gradients[0], alone["replay"].gradients[0], rtol=0.1, atol=1e-3)
    for name, found in scenarios.together(num_shards=2).items():
        for each in found:
            assert_same(alone[name], each)
    assert alone["replay"].metrics[0]["mismatch/router_agreement"] < 0.5


@pytest.mark.slow
@pytest.mark.long
def test_a_response_that_cannot_be_trained_stops_the_step_on_every_rank_and_ranks_score_their_shares(
    scenarios: Scenarios, untied_model_path: Path, make_groups: Any, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(untied_model_path, broken)
    model = LlamaForCausalLM.from_pretrained(broken)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = math.nan
    model.generation_config = GenerationConfig()
    model.save_pretrained(broken)
    samples = [sample for group in make_groups(1) for sample in group]
    scenarios.add("broken", broken, [*ACCUMULATED, STEP])
    scenarios.add("scored", untied_model_path, [("forward", samples)])
    together = scenarios.together(num_shards=2)
    errors = {each.error for each in together["broken"]}
    assert len(errors) == 1
    assert "log-probs are not finite for train:0:" in str(errors.pop())
    [expected] = scenarios.alone("scored").scores
    for number, logprobs in enumerate(expected):
        [part] = [each.scores[0][number] for each in together["scored"] if len(each.scores[0][number])]
        np.testing.assert_allclose(part, logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_replicas_may_train_on_different_batches_until_the_step(scenarios: Scenarios, model_path: Path) -> None:
    divided: Actions = [("accumulate", 0, [0]), ("accumulate", 1, [1]), STEP, ("weights",)]
    only_one: Actions = [("accumulate", 0, [1]), ("accumulate", 1, [1]), STEP, ("weights",)]
    scenarios.add("divided", model_path, [*divided, *only_one])
    scenarios.add("both", model_path, TWO_STEPS)
    for name, changes in (
        ("gradients on the host", {"gradients_device": "cpu"}),
        ("optimizer too", {"gradients_device": "cpu", "optimizer_device": "cpu"}),
    ):
        scenarios.add(name, model_path, [*divided, *only_one], with_trainer(**changes))
    alone = scenarios.alone("both")
    for found in scenarios.together(num_shards=2, num_replicas=2).values():
        for each in found:
            assert_same(alone, each)


@pytest.mark.slow
@pytest.mark.long
def test_checkpoints_are_continued_by_other_numbers_of_ranks(scenarios: Scenarios, model_path: Path) -> None:
    saved, saved_alone, critic = (
        scenarios.folder / "saved",
        scenarios.folder / "alone",
        given(advantage_estimator="gae"),
    )
    second: Actions = [*ACCUMULATED, STEP, ("weights",)]
    scenarios.add("whole", model_path, [*ACCUMULATED, STEP, *second], critic)
    whole = scenarios.alone("whole")
    expected = Found(metrics=whole.metrics[1:], weights=whole.weights)
    scenarios.plans.clear()
    blocked = scenarios.folder / "blocked"
    (blocked / "trainer_state.json").mkdir(parents=True)  # a file that the first rank alone writes
    first: Actions = [*ACCUMULATED, STEP, ("fail to save", blocked), ("save", saved), ("weights",)]
    scenarios.add("first", model_path, first, critic)
    (scenarios.folder / "in vain" / "__1_0.distcp").mkdir(parents=True)  # a file that the second rank alone writes
    scenarios.add("in vain", model_path, [*ACCUMULATED, STEP, ("fail to save", scenarios.folder / "in vain")])
    together = scenarios.together(num_shards=2)
    for each in together["in vain"]:
        assert str(each.error).startswith("rank 1: [Errno 21] Is a directory"), "on both ranks, and in one line"
        assert "\n" not in str(each.error)
    written, other = together["first"]
    assert "trainer_state.json" in str(written.error)
    assert other.error == written.error
    assert not set(changed_files(saved))
    scenarios.plans.clear()
    scenarios.add("alone", model_path, [*ACCUMULATED, STEP, ("save", saved_alone)], critic)
    scenarios.alone("alone")
    scenarios.plans.clear()
    scenarios.add("second", model_path, [("load", saved), *second], critic)
    assert_same(expected, scenarios.alone("second"))
    scenarios.add("from one", model_path, [("load", saved_alone), *second], critic)
    on_host = critic | {"settings": critic["settings"].model_copy(update={"optimizer_device": "cpu"})}
    scenarios.add("on the host", model_path, [("load", saved), *second], on_host)
    scenarios.add("from one, on the host", model_path, [("load", saved_alone), *second], on_host)
    for found in scenarios.together(num_shards=4).values():
        for each in found:
            assert_same(expected, each)
    export(saved, scenarios.folder / "exported", base=None)
    model = LlamaForCausalLM.from_pretrained(scenarios.folder / "exported")
    for name, tensor in written.weights[0].items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert (scenarios.folder / "exported" / "tokenizer_config.json").is_file()


@pytest.mark.slow
@pytest.mark.long
def test_an_adapter_that_two_ranks_trained_is_exported_as_the_model_that_they_published(
    scenarios: Scenarios, model_path: Path
) -> None:
    saved, exported = scenarios.folder / "saved", scenarios.folder / "exported"
    scenarios.add("adapter", model_path, [*ACCUMULATED, STEP, ("weights",), ("save", saved)], given() | {"model": LORA})
    [published] = scenarios.together(num_shards=2)["adapter"][0].weights
    assert not set(changed_files(saved))
    assert Path(lora.base_of(saved) or "") == model_path.resolve()
    export(saved, exported, base=model_path)
    model, start = (LlamaForCausalLM.from_pretrained(path).state_dict() for path in (exported, model_path))
    assert any((start[name] - tensor).abs().max() > 1e-3 for name, tensor in published.items()), "nothing was learned"
    for name, tensor in published.items():
        assert torch.allclose(model[name], tensor, rtol=0, atol=1e-6), name


def test_a_model_that_sees_no_trees_is_refused(exact_model_path: Path, tmp_path: Path) -> None:
    class Two(Alone):
        size = 2

    model = PhiForCausalLM.from_pretrained(exact_model_path)
    model.config.layer_types = ["sliding_attention"] * 2
    model.generation_config = GenerationConfig()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"PhiForCausalLM cannot be trained by 2 ranks, .*; set trainer.num_ranks = 1"):
        Trainer(tmp_path, ranks=Two(), **given())


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_shares_are_whole_and_even(num_parts: int) -> None:
    costs = [5, 1, 1, 9, 3, 3, 3, 1, 20, 1]
    shares = divide(costs, num_parts)
    assert [index for start, end in shares for index in range(start, end)] == list(range(len(costs)))
    assert max(sum(costs[start:end]) for start, end in shares) <= sum(costs) / num_parts + max(costs)
    assert divide([], num_parts) == [(0, 0)] * num_parts
