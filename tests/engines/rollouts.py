"""Small random models on disk, requests for them, and what Transformers says about the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel

from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Engine, Output, Request, Sampling
from tailrace.store.segment import ResponsePayload, Segment, Tokens, join

VOCAB_SIZE = 32
NO_TOKENS = np.empty(0, np.int32)


def save_random_model(directory: Path, config: PretrainedConfig | None = None, seed: int = 0) -> PreTrainedModel:
    """A model whose distributions are far from uniform, saved in Hugging Face format."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config or small_llama()).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def small_llama(**changes: Any) -> LlamaConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        "tie_word_embeddings": True,
    }
    return LlamaConfig(**(settings | changes))


def random_prompt(seed: int, length: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).astype(np.int32)


def make_request(
    prompt_index: int = 0,
    member: int = 0,
    *,
    prompt: Tokens | None = None,
    prefix: Sequence[int] | Tokens = NO_TOKENS,
    budget: int = 20,
    forced_length: int | None = None,
    **sampling: Any,
) -> Request:
    return Request(
        response_id=ResponseId(GroupId("train", 0, prompt_index), member),
        prompt=random_prompt(prompt_index, 3 + 7 * prompt_index % 40) if prompt is None else prompt,
        prefix=np.asarray(prefix, np.int32),
        budget=budget,
        sampling=Sampling(**sampling),
        forced_length=forced_length,
    )


def finish_all(engine: Engine, num_steps: int = 2000) -> list[Output]:
    """Step until nothing is live."""
    outputs: list[Output] = []
    for _ in range(num_steps):
        outputs += engine.step()
        stats = engine.stats()
        if stats.num_running == stats.num_waiting == 0:
            return outputs
    raise AssertionError(f"still live after {num_steps} steps: {engine.stats()}")


def generate(engine: Engine, requests: Sequence[Request]) -> dict[ResponseId, ResponsePayload]:
    engine.submit(requests)
    return responses(requests, finish_all(engine))


def responses(requests: Iterable[Request], outputs: Sequence[Output]) -> dict[ResponseId, ResponsePayload]:
    """The outputs of each request, joined; every request must have ended."""
    ended = {output.segment.response_id for output in outputs if output.finish not in (None, Finish.INTERRUPTED)}
    assert ended == {request.response_id for request in requests}
    return {
        request.response_id: join(
            request.response_id, [prefix_segment(request), *_segments(outputs, request.response_id)]
        )
        for request in requests
    }


def prefix_segment(request: Request) -> Segment:
    zeros = np.zeros(len(request.prefix), np.float32)
    return Segment(
        response_id=request.response_id,
        start=0,
        version=None,
        tokens=request.prefix,
        logprobs=zeros,
        mask=zeros.astype(np.uint8),
    )


def _segments(outputs: Sequence[Output], response: ResponseId) -> list[Segment]:
    return [output.segment for output in outputs if output.segment.response_id == response]


@torch.no_grad()
def reference_logprobs(model: PreTrainedModel, request: Request, response: ResponsePayload) -> np.ndarray:
    """What Transformers gives the generated tokens, the distribution not truncated."""
    tokens = torch.from_numpy(np.concatenate([request.prompt, response.tokens]).astype(np.int64))
    logits = model(tokens[None, :-1]).logits[0, len(request.prompt) - 1 :].float()
    scores = torch.log_softmax(logits / (request.sampling.temperature or 1.0), dim=-1)
    taken = scores.gather(1, tokens[len(request.prompt) :, None])[:, 0].numpy()
    return taken[len(request.prefix) :]


def largest_gap(model: PreTrainedModel, requests: Sequence[Request], found: dict[ResponseId, ResponsePayload]) -> float:
    """Largest absolute difference between the engine's untruncated log-probs and Transformers'."""
    gaps = [0.0]
    for request in requests:
        response = found[request.response_id]
        own = response.behaviour_logprobs[len(request.prefix) :]
        if len(own):
            gaps.append(float(np.abs(own - reference_logprobs(model, request, response)).max()))
    return max(gaps)
