"""A small random mixture of experts, and responses as an engine with the same weights would route them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tailrace.store.segment import Routing
from tailrace.trainer.batch import Sample

VOCAB_SIZE = 32
Groups = list[list[Sample]]


def small_mixture(**changes: Any) -> Qwen3MoeConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "mlp_only_layers": [1],  # a layer without experts
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    return Qwen3MoeConfig(**(settings | changes))


def write_mixture(path: Path, **changes: Any) -> Path:
    torch.manual_seed(7)
    Qwen3MoeForCausalLM(small_mixture(**changes)).save_pretrained(path)
    return path


def routers(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


@torch.no_grad()
def score(model: PreTrainedModel, sample: Sample) -> tuple[np.ndarray, Routing]:
    """Log-probs and experts of the response tokens, one plain forward pass per sequence."""
    found: list[torch.Tensor] = []
    hooks = [each.register_forward_hook(lambda *given: found.append(given[2][2])) for each in routers(model)]
    tokens = torch.from_numpy(np.concatenate([sample.prompt, sample.response.tokens]).astype(np.int64))
    logits = model(input_ids=tokens[None, :-1]).logits[0]
    for hook in hooks:
        hook.remove()
    first = len(sample.prompt) - 1
    logprobs = torch.log_softmax(logits[first:].double(), dim=-1).gather(1, tokens[first + 1 :, None])[:, 0]
    experts = torch.stack(found, dim=1)[first:].flip(-1)  # the order of a token's experts means nothing
    return logprobs.float().numpy(), experts.numpy().astype(np.int16)


def as_generated(path: Path, groups: Groups) -> Groups:
    """The samples with the log-probs and the experts of the model in ``path``."""
    model = Qwen3MoeForCausalLM.from_pretrained(path).eval()

    def generated(sample: Sample) -> Sample:
        logprobs, routing = score(model, sample)
        response = dataclasses.replace(sample.response, logprobs=logprobs, behaviour_logprobs=logprobs, routing=routing)
        return dataclasses.replace(sample, response=response)

    return [[generated(sample) for sample in group] for group in groups]


def with_prompt(groups: Groups, length: int) -> Groups:
    """The samples with prompts cut to this length."""
    return [[dataclasses.replace(sample, prompt=sample.prompt[:length]) for sample in group] for group in groups]


def with_routing(groups: Groups, change: Any) -> Groups:
    """The samples with ``change(routing)``."""
    return [
        [
            dataclasses.replace(
                sample, response=dataclasses.replace(sample.response, routing=change(sample.response.routing))
            )
            for sample in group
        ]
        for group in groups
    ]


def disturb_routers(model: torch.nn.Module, seed: int = 0, size: float = 1.0) -> None:
    """Change what the routers choose, and nothing else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for router in routers(model):
            router.weight.add_(size * torch.randn(router.weight.shape, generator=generator))
