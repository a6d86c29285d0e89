"""What a model computes over a tree of tokens is what it computes over each sequence by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GPT2Config,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from tailrace.algorithms.prefix_tree import plant
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.model import tree_attention
from tailrace.trainer.model.model_files import load_model
from tailrace.trainer.model.tree_attention import TreeInput
from tailrace.trainer.trainer import Trainer
from trainer.packed_attention import pack_rows
from trainer.probes import gradient, near_the_policy

CPU = torch.device("cpu")
Groups = list[list[Sample]]
SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
HEADS = {"intermediate_size": 48, "num_key_value_heads": 2}
SEEING = {
    "phi": PhiConfig(**SIZES, **HEADS),
    "gpt2": GPT2Config(vocab_size=32, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3),
    "llama": LlamaConfig(**SIZES, **HEADS),
    "qwen3": Qwen3Config(**SIZES, **HEADS, head_dim=8),
    "granite, with a scale of its own": GraniteConfig(**SIZES, **HEADS, attention_multiplier=0.9),
}
WINDOW = 8
"""Longer than the sequences with which a model is tried out, so that only its config tells of the window."""
BLIND = {
    "told nothing about trees": StableLmConfig(**SIZES, **HEADS),
    "short window": MistralConfig(**SIZES, **HEADS, sliding_window=3),
    "window": MistralConfig(**SIZES, **HEADS, sliding_window=WINDOW),
    "window in one layer": Qwen2Config(
        **SIZES, **HEADS, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "chunks": Llama4TextConfig(
        **SIZES, **HEADS, intermediate_size_mlp=48, head_dim=8, num_local_experts=2, attention_chunk_size=WINDOW
    ),
}
WITH_NORMS_IN_FP32 = (
    "llama",
    "qwen3",
    "granite, with a scale of its own",
    "short window",
    "window",
    "window in one layer",
    "chunks",
)


def made(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()


def alike(seed: int = 0) -> list[np.ndarray]:
    """Sequences of unequal length that begin alike: groups below a common prompt, repeated and continued ones."""
    random = np.random.default_rng(seed)
    system = random.integers(0, 32, 4)
    found = []
    for _ in range(3):
        prompt = np.concatenate([system, random.integers(0, 32, random.integers(1, 6))])
        found += [np.concatenate([prompt, random.integers(0, 32, random.integers(1, 12))]) for _ in range(4)]
    found += [found[0], found[1][:-1], random.integers(0, 32, 60)]
    return [sequence.astype(np.int32) for sequence in found]


@pytest.mark.parametrize(
    ("name", "is_packed"), [*((name, False) for name in [*SEEING, *BLIND]), *((name, True) for name in SEEING)]
)
def test_logits_and_gradients_are_those_of_each_sequence_by_itself(
    name: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sequences = made((SEEING | BLIND)[name]), alike()
    weights_of = [torch.randn(len(sequence), 32, dtype=torch.float64) for sequence in sequences]
    expected = [model(input_ids=torch.from_numpy(s.astype(np.int64))[None]).logits[0] for s in sequences]
    sum((logits * weights).sum() for logits, weights in zip(expected, weights_of, strict=True)).backward()
    expected_gradient = gradient(model)
    model.zero_grad(set_to_none=True)

    tree_attention.teach(model)
    assert tree_attention.sees_trees(model) == (name in SEEING)
    tree = plant(sequences)
    pack_rows(monkeypatch)
    read = TreeInput.without_padding if is_packed else TreeInput.of
    found_UV = tree_attention.run(model, read(tree, CPU), "logits")
    found = [found_UV[torch.from_numpy(path)] for path in tree.paths]
    sum((logits * weights).sum() for logits, weights in zip(found, weights_of, strict=True)).backward()
    close = 1e-6 if name in WITH_NORMS_IN_FP32 else 1e-12
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < close * theirs.abs().max()
    assert (gradient(model) - expected_gradient).abs().max() < close * expected_gradient.abs().max()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 computes it another way
def test_in_bfloat16_packed_rows_give_about_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotation gives queries and keys in float32, values are in bfloat16; the kernel takes one precision."""
    model, tree = made(SEEING["llama"]).float(), plant(alike())
    tree_attention.teach(model)
    pack_rows(monkeypatch)
    with torch.no_grad():
        exact = tree_attention.run(model, TreeInput.of(tree, CPU), "logits")
        with torch.autocast("cpu", torch.bfloat16):
            found = tree_attention.run(model, TreeInput.without_padding(tree, CPU), "logits")
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()


def test_heads_of_two_widths_are_told_apart() -> None:
    config = DeepseekV3Config(
        **SIZES,
        intermediate_size=48,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )
    assert tree_attention.head_dim(made(config)) is None
    assert tree_attention.head_dim(made(SEEING["qwen3"])) == 8


class Guarded(LlamaForCausalLM):
    """Like a model that comes with its own code and refuses arguments it does not know."""

    refusal: type[Exception] = TypeError

    def forward(self, *given: torch.Tensor, tree: TreeInput | None = None, **others: object) -> object:
        if tree is not None:
            raise self.refusal("what is a tree?")
        return super().forward(*given, **others)


@pytest.mark.parametrize("refusal", [TypeError, ValueError, RuntimeError])
def test_a_model_that_refuses_trees_gets_whole_rows(refusal: type[Exception]) -> None:
    model = Guarded(LlamaConfig(**SIZES, **HEADS, attn_implementation="sdpa")).eval()
    model.refusal = refusal
    tree_attention.teach(model)
    assert not tree_attention.sees_trees(model)
    tree = plant([np.array([1, 2, 3], np.int32), np.array([1, 2, 4, 5], np.int32)])
    found_UV = tree_attention.run(model, TreeInput.of(tree, CPU), "logits")
    expected_TV = model(input_ids=torch.tensor([[1, 2, 4, 5]])).logits[0]
    torch.testing.assert_close(found_UV[torch.from_numpy(tree.paths[1])], expected_TV)


def test_a_row_asks_again_for_what_others_asked_only_if_that_is_the_smaller_part() -> None:
    sequences = [np.array(tokens, np.int32) for tokens in ([1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 7, 8, 9])]
    given = TreeInput.of(plant(sequences), CPU)
    asked = [(block.num_rows, block.num_queries, block.mask_BQL is None) for block in given.blocks]
    assert asked == [(2, 5, True), (1, 1, False)]


def test_long_and_short_rows_go_to_attention_apart() -> None:
    sequences = [np.full(length, length, np.int32) for length in (900, 3, 4, 5)]
    given = TreeInput.of(plant(sequences), CPU)
    assert [(block.num_rows, block.num_keys) for block in given.blocks] == [(1, 900), (3, 5)]


def test_a_model_that_sees_trees_still_reads_plain_batches(model_path: Path) -> None:
    model, plain = load_model(model_path, device=CPU), AutoModelForCausalLM.from_pretrained(model_path)
    assert tree_attention.sees_trees(model)
    input_ids = torch.arange(2, 20).view(2, 9)
    torch.testing.assert_close(model(input_ids=input_ids).logits, plain(input_ids=input_ids).logits)


VARIANTS = {
    "token mean": AlgorithmSettings(),
    "kl": AlgorithmSettings(kl_loss_coef=0.1, loss_agg_mode="seq-mean-token-mean"),
    "gspo": AlgorithmSettings(loss="gspo", loss_agg_mode="seq-mean-token-sum", clip_ratio_low=0.1, clip_ratio_high=0.2),
    "critic": AlgorithmSettings(advantage_estimator="gae"),
}


@pytest.mark.parametrize(("variant", "lora_rank"), [*((variant, 0) for variant in VARIANTS), ("critic", 4)])
def test_a_step_on_shared_prefixes_has_the_gradient_of_separate_sequences(
    make_trainer: Callable[..., Trainer],
    make_groups: Callable[..., Groups],
    exact_model_path: Path,
    variant: str,
    lora_rank: int,
) -> None:
    """A budget of one token makes every sequence a tree of its own."""
    found = []
    for budget in (1, 16384):
        settings = TrainerSettings(learning_rate=1e-3, max_tokens_per_gpu=budget, gradient_checkpointing=budget > 1)
        trainer = make_trainer(
            algorithm=VARIANTS[variant], settings=settings, lora_rank=lora_rank, path=exact_model_path
        )
        models = [trainer.model, *([trainer.critic.model] if trainer.critic else [])]
        for model in [*models, *([trainer.reference_model] if trainer.reference_model else [])]:
            model.double()
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in (p for model in models for p in model.parameters() if p.requires_grad):
                parameter.add_(0.1 * torch.randn_like(parameter))
        groups = with_repeated_words(near_the_policy(trainer, make_groups(), noise=0.1))
        trainer.accumulate(groups)
        trained = [p for model in models for p in model.parameters() if p.requires_grad and p.grad is not None]
        found.append((torch.cat([p.grad.flatten() for p in trained]), trainer.finish_step().metrics))
    (separate, separate_metrics), (shared, shared_metrics) = found
    assert separate.abs().max() > 1e-3
    torch.testing.assert_close(shared, separate, rtol=1e-10, atol=1e-10)
    assert shared_metrics == pytest.approx(separate_metrics, rel=1e-9, abs=1e-9)


def with_repeated_words(groups: Groups) -> Groups:
    """Members of a group that begin alike, and one that says just what another said."""
    (first, second, *others), *rest = groups
    length = min(len(first.response), len(second.response)) // 2
    tokens = np.concatenate([first.response.tokens[:length], second.response.tokens[length:]])
    second = dataclasses.replace(second, response=dataclasses.replace(second.response, tokens=tokens))
    last = dataclasses.replace(
        rest[0][1], response=dataclasses.replace(rest[0][0].response, response_id=rest[0][1].response_id)
    )
    return [[first, second, *others], [rest[0][0], last, *rest[0][2:]], *rest[1:]]
