"""Requests in vLLM's own terms."""

from __future__ import annotations

import time

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest

from tailrace.engines.contract import Request


def core_request(
    name: str, request: Request, lora: LoRARequest | None, *, returns_routing: bool = False
) -> EngineCoreRequest:
    """Build the request that vLLM's core takes. Its prompt is ours followed by the tokens generated earlier.

    ``returns_routing``: whether vLLM itself returns experts.
    """
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[*request.prompt.tolist(), *request.prefix.tolist()],
        mm_features=None,
        sampling_params=sampling_params(request, returns_routing=returns_routing),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=lora,
        cache_salt=None,
        data_parallel_rank=None,
    )


def sampling_params(request: Request, *, returns_routing: bool = False) -> SamplingParams:
    sampling = request.sampling
    is_forced = request.forced_length is not None
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0 if sampling.top_k is None else sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=request.end - len(request.prefix),
        # The model's own end tokens are among stop_token_ids where they shall count.
        ignore_eos=True,
        stop_token_ids=[] if is_forced else list(sampling.stop_token_ids),
        # 0: the sampled token only. 1: one column more, in which our sampler writes the untruncated log-prob.
        logprobs=1 if sampling.is_truncated else 0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        # The first generated token is predicted at the last position of vLLM's prompt.
        routed_experts_prompt_start=len(request.prompt) + len(request.prefix) - 1 if returns_routing else 0,
    )
